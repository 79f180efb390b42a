"""The second generator: tickets as a mixed inbox has them, in English, German and French, and the questions about them.

Mails, threads with quoted answers, chats, forms, tables and notes of calls, some about two matters, some with typos;
keys in many spellings, listed before or behind the ticket. It shares no sentence, value, key or instruction with the
first (`corpus`), nor does its `held_out` half with its `train`.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from random import Random
from typing import Any

from desk.training import texts
from desk.training.corpus import SLOT, Draft, Example, Ticket
from desk.training.texts import OTHER, Split

LANGUAGES = ("en", "de", "fr")
FRAMES = ("mail", "thread", "chat", "form", "table", "note", "short", "two")
KINDS = ("order", "invoice", "amount", "date", "phone", "name", "email", "product", "city", "plan")
"""What a field may be, however it is called."""
_IN_ENGLISH = 0.3  # of the instructions about a ticket in another language


def examples(split: Split, seed: int, count: int | None = None) -> Iterator[Example]:
    """Yield `count` examples (without end for None), half of them classification, half extraction.

    The same `split` and `seed` give the same examples on every machine.
    """
    return islice(_stream(Random(f"inbox {split} {seed}"), split), count)


def said(language: str, split: Split, *place: str) -> tuple[str, ...]:
    """Return the texts at that place of the language's data."""
    return _of(texts.read(f"inbox/{language}"), split, *place)


def forms(split: Split, *place: str) -> tuple[str, ...]:
    """Return the forms of a value."""
    return _of(texts.read("inbox/values"), split, *place)


def _of(data: Mapping[str, Any], split: Split, *place: str) -> tuple[str, ...]:
    for name in place:
        data = data[name]
    return texts.of(data, split) or tuple(data["train"])  # of one text `fit` and `dev` both have it


def _stream(random: Random, split: Split) -> Iterator[Example]:
    while True:
        yield _classified(random, split, random.choice(LANGUAGES))
        yield _extracted(random, split, random.choice(LANGUAGES))


# -- questions --------------------------------------------------------------------------------------------------------


def _classified(random: Random, split: Split, language: str) -> Example:
    """Return a question for the label of the (most urgent) matter; `other` where its own isn't offered."""
    asked_in = _asked_in(random, language)
    known = list(texts.labels())
    if random.random() < 0.5:
        known = random.sample(known, random.randrange(3, len(known)))
    random.shuffle(known)
    shown = {label: random.choice(said(asked_in, split, "labels", label)) for label in known}
    if asked_in == "en" and random.random() < 0.3:
        shown = {label: label for label in known}
    label = random.choice(known if random.random() < 0.8 else [*texts.labels(), OTHER])
    ticket = _ticket(random, split, language, label, frames=FRAMES if label in known else FRAMES[:-1])
    choices = (*shown.values(), OTHER)
    instruction = _instruction(random, split, asked_in, "classify", choices)
    answer = shown.get(ticket.label, OTHER)
    return Example("classify", instruction, ticket, answer, choices, is_behind=random.random() < 0.5)


def _extracted(random: Random, split: Split, language: str) -> Example:
    """Return a question for some fields of a ticket, some of which it may not mention."""
    asked_in = _asked_in(random, language)
    ticket = _ticket(random, split, language, random.choice((*texts.labels(), OTHER)), frames=FRAMES)
    present = random.sample(list(ticket.fields), min(len(ticket.fields), random.randrange(1, 5)))
    absent = random.sample([kind for kind in KINDS if kind not in ticket.fields], random.randrange(1, 3))
    kinds = random.sample([*present, *absent], len(present) + len(absent))
    keys = {random.choice(said(asked_in, split, "keys", kind)): ticket.fields.get(kind) for kind in kinds}
    instruction = _instruction(random, split, asked_in, "extract", tuple(keys))
    answer = json.dumps(keys, ensure_ascii=False)
    return Example("extract", instruction, ticket, answer, tuple(keys), is_behind=random.random() < 0.5)


def _asked_in(random: Random, language: str) -> str:
    return "en" if random.random() < _IN_ENGLISH else language


def _instruction(random: Random, split: Split, language: str, task: str, names: Sequence[str]) -> str:
    """Return an instruction that lists `names` in one line, one a line, or as a pattern of JSON."""
    quote = random.choice(("", "", '"', "`")) if task == "extract" else ""
    bullet = random.choice(("- ", "* "))
    listed = {
        "labels": ", ".join(names),
        "fields": ", ".join(f"{quote}{name}{quote}" for name in names),
        "lines": "".join(f"\n{bullet}{name}" for name in names),
        "pattern": "{" + ", ".join(f'"{name}": ...' for name in names) + "}",
    }
    wording = random.choice(said(language, split, "instructions", task))
    return SLOT.sub(lambda slot: listed[slot[1]], wording)


# -- one ticket -------------------------------------------------------------------------------------------------------


def _ticket(random: Random, split: Split, language: str, label: str, *, frames: Sequence[str]) -> Ticket:
    """Return a ticket of `label`, in one of `frames`."""
    register = random.choice(frames)
    draft = Draft(random, split, _fillers(language), noisy=0.5 if random.random() < 0.2 else 0.0)
    frame = random.choice(said(language, split, "frames", register))
    used = [frame]

    def piece(*place: str) -> str:
        used.append(random.choice(said(language, split, *place)))
        return used[-1]

    def details(least: int) -> str:
        kinds = random.sample(KINDS, random.randrange(least, 3))
        return " ".join(piece("details", kind) for kind in kinds)

    aside = random.choice([one for one in texts.labels() if one != label])
    parts: dict[str, Callable[[], str]] = {
        "matter": lambda: piece("matters", label),
        "aside": lambda: piece("matters", aside),
        "more": lambda: details(0),
        "some": lambda: details(1),
        "greeting": lambda: piece("talk", "greeting"),
        "closing": lambda: piece("talk", "closing"),
    }
    whole = SLOT.sub(lambda slot: parts[slot[1]]() if slot[1] in parts else slot[0], frame)
    text = "\n".join(line.replace("  ", " ").rstrip() for line in draft.say(whole).splitlines())
    fields = {kind: value for kind, value in draft.values.items() if kind in KINDS}
    return Ticket(text, label, fields, register, tuple(used), language)


# -- values -----------------------------------------------------------------------------------------------------------


def _fillers(language: str) -> Mapping[str, Callable[[Random, Split], str]]:
    """Return the makers of values, and of what looks like one and is none: an agent, a case, a time."""
    words = {"product": "products", "plan": "plans", "city": "cities", "name": "names", "agent": "agents"}
    return {
        **{kind: partial(_word, language, name) for kind, name in words.items()},
        **{kind: partial(_number, kind) for kind in ("order", "invoice", "case")},
        **{kind: partial(_number, language, kind) for kind in ("phone", "amount", "time")},
        "date": partial(_date, language),
        "email": partial(_email, language),
    }


def _word(language: str, kind: str, random: Random, split: Split) -> str:
    return random.choice(said(language, split, "values", kind))


def _number(*place_random_split: Any) -> str:
    *place, random, split = place_random_split
    form = random.choice(forms(split, *place))
    digits = {"#": "0123456789", "%": "123456789"}
    return "".join(random.choice(digits[one]) if one in digits else one for one in form)


def _date(language: str, random: Random, split: Split) -> str:
    named = texts.read("inbox/values")[language]["names_of"]
    day, month = random.randrange(1, 29), random.randrange(1, 13)
    parts = {
        "d": day,
        "dd": f"{day:02}",
        "m": month,
        "mm": f"{month:02}",
        "month": named["months"][month - 1],
        "weekday": random.choice(named["weekdays"]),
    }
    return random.choice(forms(split, language, "date")).format(**parts)


def _email(language: str, random: Random, split: Split) -> str:
    plain = unicodedata.normalize("NFKD", _word(language, "names", random, split)).encode("ascii", "ignore").decode()
    names = "".join(one if one.isalnum() else " " for one in plain.lower()).split()
    person = random.choice((f"{names[-1]}_{names[0]}", f"{names[0]}-{random.randrange(1970, 2009)}", "".join(names)))
    return f"{person}@{random.choice(forms(split, 'domains'))}"
