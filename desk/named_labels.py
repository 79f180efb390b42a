"""The labels that an instruction names, and the text below it. Pure, and linear in what it reads.

An instruction is read, not understood: a sentence that speaks of labels, categories, topics, teams or the like and has
a list, in brackets, behind a colon or behind such a word; or a list with one label a line; or, whatever its sentence
speaks of, a list of three and more that ends with "other" and stands behind a colon, a
bracket or a word like "from".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from routing.hook import LONGEST_LABEL

MOST_WORDS = 6  # of a label: what has more is a sentence
_MOST_READ = 20_000  # characters of an instruction
_MOST_TRIED = 4  # words of a sentence behind which a list may begin

_CUE = re.compile(
    r"\b(?:labels?|labell?ed|categor(?:y|ies|i[sz]e)|class(?:es|ify)?|topics?|teams?|queues?|departments?|intents?"
    r"|options?|tags?|choices?|possible|choose|pick|select|assign|sort|route|one of)\b",
    re.IGNORECASE,
)
_BEHIND = re.compile(
    r"\b(?:one of|labels|categories|classes|topics|teams|queues|departments|intents|options|tags|choices|into"
    r"|(?<!not )as|either)(?: are)?(?: the| these| following)* ",
    re.IGNORECASE,
)
_ORDERS = re.compile(
    r"(?:please )?(?:classify|categori[sz]e|label|tag|sort|route|assign|choose|pick|select|decide|(?:in(?:to)? )?which"
    r"|what)\b.{0,200}\b(?:the|this|following|customer'?s?) (?:\w{1,20} )?"
    r"(?:ticket|message|text|e-?mail|mail|request|review|comment|sentence|document|question)\b",
    re.IGNORECASE | re.DOTALL,
)
_LEAD = re.compile(
    r".*(?:[:(\[{]|\b(?:from|into|between|among|with|is this|are|we (?:use|have)|the \w{1,20}s"
    r"|(?:any|either|one|out|which|whichever) of) )",
    re.IGNORECASE,
)
_TO = re.compile(r"[^,;|]*?\bto ", re.IGNORECASE)
"""A lead too before the first label, where there is no other: "money to be returned" is a label."""
_OTHER = re.compile(r"(?<=[,;|/]) ?(?:or )?other\b", re.IGNORECASE)
_BRACKETS = re.compile(r"\(([^()]*)\)|\[([^\[\]]*)\]|\{([^{}]*)\}")
_COLON = re.compile(r":(?!//|\d)")
_SENTENCE_END = re.compile(r"(?<=[.?!])\s|\n")
_BULLET = re.compile(r"(?:[-*•]|\d{1,3}[.)]) (.+)")
_EXPLANATION = re.compile(r":(?: |$)| [-–—] ")
_SEPARATORS = (",", ";", "|", "/")
_LAST = re.compile(r"(?:or|and) ", re.IGNORECASE)
_OR = re.compile(r" or ", re.IGNORECASE)
_ORDER = re.compile(
    r"(?:and )?(?:that|which|(?:answer|assign|choose|give|output|pick|reply|respond|return|say|select|tell|use)"
    r" (?:an?|exactly|in|it|just|me|nothing|one|only|the|with|your)|in (?:lower|upper|one|the|your)|without)\b",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"([\"'`])([^\"'`]+)\1")
_AROUND = " \"'`“”„‘’«»*"
_PARAGRAPHS = re.compile(r"\n[ \t]*\n\s*")


class Asked(NamedTuple):
    """A message as an instruction with the `labels` that it names, and the `text` that it is about: all of it where no
    instruction was found, nothing where there is nothing else.
    """

    text: str
    labels: tuple[str, ...] = ()


def read(message: str) -> Asked:
    """Return what a message asks whose instruction is its first paragraph, or its last if that names labels.

    Without paragraphs the instruction is the first line.
    """
    message = message.strip()
    paragraphs = _PARAGRAPHS.split(message)
    if len(paragraphs) == 1:
        first, _, rest = message.partition("\n")
        if rest and (labels := labels_in(first)):
            return Asked(rest.strip(), labels)
        return Asked("", labels) if (labels := labels_in(message)) else Asked(message)
    head = 1
    while head < len(paragraphs) - 1 and paragraphs[head - 1].endswith(":") and _is_list(paragraphs[head]):
        head += 1
    instruction, below = "\n".join(paragraphs[:head]), "\n\n".join(paragraphs[head:])
    if labels := labels_in(instruction):
        return Asked(below, labels)
    if labels := labels_in(paragraphs[-1]):
        return Asked("\n\n".join(paragraphs[:-1]), labels)
    return Asked(below) if _ORDERS.match(" ".join(instruction[:_MOST_READ].split())) else Asked(message)


def labels_in(instruction: str) -> tuple[str, ...]:
    """Return the labels that `instruction` names, in its order and spelling; empty where it names none."""
    if len(instruction) > _MOST_READ or not (_CUE.search(instruction) or _OTHER.search(instruction)):
        return ()
    lines = [" ".join(line.split()) for line in instruction.splitlines()]
    return next((found for found in _candidates(lines) if len(found) > 1), ())


def _candidates(lines: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield what may be the labels, the surest first."""
    yield _one_a_line(lines)
    sentences = _SENTENCE_END.split("\n".join(lines).replace(",\n", ", "))
    for sentence in sentences:
        cue = _CUE.search(sentence)
        if cue is None:
            continue
        for found in _BRACKETS.finditer(sentence, cue.end()):
            yield _items(_COLON.split(next(group for group in found.groups() if group is not None), maxsplit=1)[-1])
        if colon := _COLON.search(sentence, cue.end()):
            yield _items(sentence[colon.end() :])
        for found in reversed(list(_BEHIND.finditer(sentence))[-_MOST_TRIED:]):
            yield _items(sentence[found.end() :], may_go_on=True)
    has_cue = any(_CUE.search(line) for line in lines)
    for sentence in sentences:
        if end := _OTHER.search(sentence):
            begin = _begin(sentence[: end.end()])  # one place only: linear in the sentence
            if begin or has_cue or sentence.startswith(":", end.end()):
                labels = _items(sentence[begin : end.end()])
                yield labels if len(labels) > 2 else ()


def _begin(sentence: str) -> int:
    """Return where the list at the sentence's end begins."""
    lead = _LEAD.match(sentence) or _TO.match(sentence)
    return lead.end() if lead else 0


def _is_list(paragraph: str) -> bool:
    return all(_BULLET.match(line.strip()) for line in paragraph.splitlines())


def _one_a_line(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the labels that have a bullet each, or stand behind a line that speaks of them and ends with a colon."""
    found: list[str] = []
    is_behind = False
    for line in lines:
        bullet = _BULLET.match(line)
        label = _cleaned(_EXPLANATION.split(bullet[1] if bullet else line, maxsplit=1)[0])
        if _is_label(label) and (bullet or (is_behind and not line.endswith((".", "?", "!", ":")))):
            found.append(label)
        elif len(found) > 1:
            break
        elif line:
            found, is_behind = [], line.endswith(":") and _CUE.search(line) is not None
    return tuple(dict.fromkeys(found))


def _items(listed: str, *, may_go_on: bool = False) -> tuple[str, ...]:
    """Return the labels of a list in one line; empty where something in it is none, unless the sentence may go on
    behind its last.
    """
    if may_go_on and "," in listed.partition(";")[0]:
        listed = listed.partition(";")[0]
    separator = next((one for one in _SEPARATORS if one in listed), None)
    pieces = listed.split(separator) if separator else [listed]
    pieces[-1:] = _OR.split(pieces[-1])
    labels: list[str] = []
    for piece in pieces:
        label = _cleaned(_LAST.sub("", piece.strip(), count=1) if _LAST.match(piece.strip()) else piece)
        if not label:
            continue  # behind a last separator
        if may_go_on and label.casefold().startswith("other "):
            labels.append(label[: len("other")])
            break
        if not _is_label(label) or (may_go_on and _ORDER.match(label)):
            if may_go_on:
                break
            return ()
        labels.append(label)
    return tuple(dict.fromkeys(labels))


def _cleaned(label: str) -> str:
    if quoted := _QUOTED.match(label.strip()):
        return quoted[2].strip()
    return label.strip(_AROUND).rstrip(".?!").strip(_AROUND)


def _is_label(text: str) -> bool:
    return 0 < len(text) <= LONGEST_LABEL and len(text.split()) <= MOST_WORDS and text.isprintable()
