"""Tickets with their labels and fields, and the questions about them: an endless stream that a seed decides."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from random import Random

from desk.training import texts
from desk.training.fillers import FILLERS
from desk.training.texts import OTHER, Split

SLOT = re.compile(r"\{(\w+)\}")
_MOST_TYPOS = 3


@dataclass(frozen=True)
class Ticket:
    """A customer's message, what it is about, and the fields that it mentions, as they are written in it."""

    text: str
    label: str
    fields: Mapping[str, str]
    register: str
    sentences: tuple[str, ...]
    """The sentences it was made from, with their slots: what two splits may not share."""
    language: str = "en"


@dataclass(frozen=True)
class Example:
    """A question about a ticket and its only right answer."""

    task: str
    instruction: str
    ticket: Ticket
    answer: str
    choices: tuple[str, ...]
    """The names of the labels to choose from, or of the fields that are asked for."""
    is_behind: bool = False
    """Whether the instruction stands behind the ticket."""

    @property
    def prompt(self) -> str:
        """The user's message: the instruction before or behind the ticket."""
        parts = (self.ticket.text, self.instruction) if self.is_behind else (self.instruction, self.ticket.text)
        return "\n\n".join(parts)


def examples(split: Split, seed: int, count: int | None = None) -> Iterator[Example]:
    """Yield `count` examples (without end for None), half of them classification, half extraction.

    The same `split` and `seed` give the same examples on every machine.
    """
    random = Random(f"{split} {seed}")
    return islice(_stream(random, split), count)


def tickets(split: Split, seed: int, count: int) -> list[Ticket]:
    """Return `count` tickets of all labels in turn."""
    random = Random(f"{split} tickets {seed}")
    names = (*texts.labels(), OTHER)
    return [_ticket(random, split, names[number % len(names)]) for number in range(count)]


def _stream(random: Random, split: Split) -> Iterator[Example]:
    while True:
        yield _classified(random, split)
        yield _extracted(random, split)


def _classified(random: Random, split: Split) -> Example:
    """Return a question for the label among all, some, or renamed labels; `other` where its own isn't among them."""
    known = list(texts.labels())
    if random.random() < 0.4:
        known = random.sample(known, random.randrange(3, len(known)))
    random.shuffle(known)
    shown = {label: label for label in known}
    if random.random() < 0.4:
        shown = {label: random.choice(texts.names_of(label, split)) for label in known}
    # A label that isn't offered is `other` too: now and then a ticket has one.
    pool = known if random.random() < 0.7 else [*texts.labels(), OTHER]
    ticket = _ticket(random, split, random.choice(pool))
    choices = (*shown.values(), OTHER)
    wording = random.choice(texts.instructions("classify", split))
    instruction = wording.replace("{labels}", ", ".join(choices))
    return Example("classify", instruction, ticket, shown.get(ticket.label, OTHER), choices)


def _extracted(random: Random, split: Split) -> Example:
    """Return a question for some fields of a ticket, some of which it may not mention."""
    ticket = _ticket(random, split, random.choice((*texts.labels(), OTHER)))
    present = random.sample(list(ticket.fields), min(len(ticket.fields), random.randrange(1, 5)))
    absent = random.sample([name for name in FILLERS if name not in present], random.randrange(1, 4))
    asked = random.sample([*present, *absent], len(present) + len(absent))
    wording = random.choice(texts.instructions("extract", split))
    instruction = wording.replace("{fields}", ", ".join(asked))
    answer = json.dumps({name: ticket.fields.get(name) for name in asked}, ensure_ascii=False)
    return Example("extract", instruction, ticket, answer, tuple(asked))


# -- one ticket -------------------------------------------------------------------------------------------------------


@dataclass
class Draft:
    """A ticket that is being written: each slot has one value wherever it stands."""

    random: Random
    split: Split
    fillers: Mapping[str, Callable[[Random, Split], str]] = field(default_factory=lambda: FILLERS)
    values: dict[str, str] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)
    noisy: float = 0.0

    def say(self, sentence: str) -> str:
        """Return `sentence` with its slots filled, and remember it; typos stay out of the values."""
        self.used.append(sentence)
        pieces: list[str] = []
        for number, piece in enumerate(SLOT.split(sentence)):
            pieces.append(self._value(piece) if number % 2 else self._mistyped(piece))
        return "".join(pieces)

    def pick(self, kind: str) -> str:
        return self.say(self.random.choice(texts.talk(kind, self.split)))

    def _value(self, slot: str) -> str:
        if slot not in self.values:
            self.values[slot] = self.fillers[slot](self.random, self.split)
        return self.values[slot]

    def _mistyped(self, text: str) -> str:
        letters = list(text)
        places = [n for n in range(1, len(letters) - 2) if letters[n].isalpha() and letters[n + 1].isalpha()]
        for place in self.random.sample(places, min(len(places), _MOST_TYPOS)):
            if self.random.random() < self.noisy:
                _slip(letters, place, self.random)
        return "".join(letters)


def _slip(letters: list[str], place: int, random: Random) -> None:
    match random.randrange(3):
        case 0:
            letters[place], letters[place + 1] = letters[place + 1], letters[place]
        case 1:
            letters[place] *= 2
        case _:
            letters[place] = ""


def _ticket(random: Random, split: Split, label: str) -> Ticket:
    register = random.choice(list(_REGISTERS))
    draft = Draft(random, split, noisy=0.5 if random.random() < 0.25 else 0.0)
    text = _REGISTERS[register](draft, label)
    return Ticket(text, label, dict(draft.values), register, tuple(draft.used))


def _core(draft: Draft, label: str, details: int) -> list[str]:
    """Return the matter itself and up to `details` sentences with fields, in some order, the matter mostly first."""
    said = [draft.say(draft.random.choice(texts.situations(label, draft.split)))]
    for sentence in draft.random.sample(texts.details(draft.split), draft.random.randrange(details + 1)):
        said.insert(draft.random.choice((0, len(said), len(said))), draft.say(sentence))
    return said


def _terse(draft: Draft, label: str) -> str:
    return " ".join(_core(draft, label, 1))


def _plain(draft: Draft, label: str) -> str:
    said = " ".join(_core(draft, label, 2))
    return f"{draft.pick('greetings')}\n\n{said}\n\n{draft.pick('closings')}"


def _angry(draft: Draft, label: str) -> str:
    said = [draft.pick("anger"), *_core(draft, label, 2)]
    if draft.random.random() < 0.5:
        said.append(draft.pick("anger"))
    return " ".join(said)


def _chatty(draft: Draft, label: str) -> str:
    said = [draft.pick("chatter"), *_core(draft, label, 2)]
    if label != OTHER and draft.random.random() < 0.5:
        aside = draft.random.choice(texts.asides(draft.split, but=label))
        said.insert(draft.random.randrange(1, len(said) + 1), draft.say(aside))
    said.append(draft.pick("chatter"))
    return f"{draft.pick('greetings')} {' '.join(said)} {draft.pick('closings')}"


def _signed(draft: Draft, label: str) -> str:
    said = _plain(draft, label)
    lines = draft.random.sample(("{name}", "{city}", "{phone}", "{email}"), draft.random.randrange(1, 4))
    return "\n".join((said, *map(draft.say, lines)))


def _forwarded(draft: Draft, label: str) -> str:
    said = " ".join(_core(draft, label, 2))
    head = draft.random.choice(("---------- Forwarded message ----------", "Begin forwarded message:", "FW:"))
    return (
        f"{draft.pick('greetings')}\n{head}\n{draft.say('From: {name} <{email}>')}\n\n{said}\n{draft.pick('closings')}"
    )


_REGISTERS: Mapping[str, Callable[[Draft, str], str]] = {
    "terse": _terse,
    "plain": _plain,
    "angry": _angry,
    "chatty": _chatty,
    "signed": _signed,
    "forwarded": _forwarded,
}
