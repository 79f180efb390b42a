"""The task that a request's instruction states: choose one of the labels that it names, or fill the fields of its JSON.

Read from the system's message, and from the first and the last paragraph of the user's, where instructions stand; never
from the text between. A request for something made of labels or fields (a program, a summary, a translation) asks for
neither, and one that names them without a text to which they could apply may be only talk. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from desk import english
from desk.named_labels import labels_in
from routing.hook import CLASSIFY, EXTRACT, Instruction

MOST_READ = 2000  # characters of a paragraph
_MOST_WORDS = 4  # of a field's name

_PARAGRAPHS = re.compile(r"\n[ \t]*\n\s*")
_SPACES = re.compile(r"\s+")
_MOST_CUES = 8  # words like "keys" behind which fields are looked for
_ORDERS = r"(?:^|[.!?:;,\n]\s*|\b(?:and|please|to|you|must|should|then) )"
_WHAT = (
    r"(?:labels?|categor(?:y|ies)|class(?:es)?|topics?|teams?|queues?|departments?|intents?|tags?|sentiments?|kinds?|types?"
    r"|groups?|tones?|moods?|priorit(?:y|ies)|severit(?:y|ies)|urgency|of the following|of these)\b"
)
_ASKS_LABEL = re.compile(
    rf"{_ORDERS}(?:classif|categori[sz]e|label|tag|assign|sort|route|rate|detect|determine)\w*\b"
    rf"|{_ORDERS}(?:choose|pick|select|decide|identify|name|give|return)\b.{{0,40}}\b{_WHAT}"
    rf"|\b(?:which|what)\b.{{0,30}}\b{_WHAT}"
    r"|\b(?:answer|reply|respond)\b.{0,30}\b(?:one of|label|category|exactly|single)\b",
    re.IGNORECASE,
)
_ASKS_FIELDS = re.compile(
    rf"{_ORDERS}(?:extract|pull|parse|get|find|collect|return|give|output|fill|list|read|identify|answer|reply|respond"
    r"|copy|take)\b",
    re.IGNORECASE,
)
_MAKES = re.compile(
    rf"{_ORDERS}(?:write|implement|create|generate|build|refactor|fix|debug|explain|summari[sz]e|translate|rewrite"
    r"|shorten|compare|recommend|suggest|invent|imagine)\b"
    r"|\b(?:function|script|program|regex|python|javascript|typescript|java|rust|sql|schema|dataclass|endpoint|api)\b|```"
    r"|\bhow (?:do|can|should|would|does)\b|\bwhy\b",
    re.IGNORECASE,
)
_JSON = re.compile(r"\bjson\b", re.IGNORECASE)
_FIELDS = re.compile(r"\b(?:fields?|keys?|properties|attributes|columns|entries)\b", re.IGNORECASE)
_KEY = re.compile(r"[\"']([^\W\d][\w -]{0,40})[\"']\s*:")
_SEPARATOR = re.compile(r"[,;]|\band\b|\n[-*•]? ?")
_NAME = re.compile(r"[^\W\d][\w-]*(?: [\w-]+)*")


def instruction_in(system: str, user: str) -> Instruction | None:
    """Return what `system`, or else the user's message, asks for; None where that isn't written in so many words."""
    for part in instructions_of(system, user):
        if _MAKES.search(part):
            continue
        if _JSON.search(part) and _ASKS_FIELDS.search(part) and (count := _fields(part)) > 1:
            return Instruction(EXTRACT, f"its instruction asks for JSON with {count} fields that it names")
        if _ASKS_LABEL.search(part) and len(labels := labels_in(part)) > 1:
            return Instruction(CLASSIFY, f"its instruction asks for one of {len(labels)} labels that it names")
    return None


def instructions_of(system: str, user: str) -> Iterator[str]:
    """Yield where an instruction may stand that has a text to which it could apply, single-spaced."""
    if user.strip():
        for paragraph in (system, *_parts(user)):
            if len(paragraph) <= MOST_READ:
                yield _single_spaced(paragraph)


def _parts(message: str) -> tuple[str, ...]:
    """Return where the instruction of a message may stand that has a text beside it; nothing where it has none."""
    message = _ends(message).strip()
    paragraphs = _PARAGRAPHS.split(message)
    if len(paragraphs) == 1:  # an instruction in its first line, or in its last
        lines = message.splitlines()
        paragraphs = lines if len(lines) > 1 else paragraphs
    first, last = paragraphs[0], paragraphs[-1]
    if len(paragraphs) > 2:  # a list behind a colon has a paragraph of its own
        first = f"{first}\n{paragraphs[1]}" if first.endswith(":") else first
        last = f"{paragraphs[-2]}\n{last}" if paragraphs[-2].endswith(":") else last
    return (first, last) if len(paragraphs) > 1 else ()


def _ends(message: str) -> str:
    """Return beginning and end of a long message, apart as its own paragraphs or lines are; others as they are."""
    if len(message) <= 8 * MOST_READ:
        return message
    first, last = message[: 2 * MOST_READ], message[-2 * MOST_READ :]
    apart = "\n\n" if _PARAGRAPHS.search(first) or _PARAGRAPHS.search(last) else "\n"
    return f"{first}{apart}{last}"


def is_english(system: str, user: str) -> bool:
    """Whether instruction and text are English: each paragraph of them, and the whole."""
    user = _ends(user)
    paragraphs = _PARAGRAPHS.split(user.strip())
    parts = paragraphs if len(paragraphs) > 1 else user.splitlines()
    return all(english.is_english(part) for part in (system, user, *parts))


def _single_spaced(text: str) -> str:
    """Return `text` with one space or line break for each run of them: patterns would try each run's every part."""
    return _SPACES.sub(lambda run: "\n" if "\n" in run[0] else " ", text)


def _fields(part: str) -> int:
    """Return how many fields `part` names: as a pattern of JSON, or as a list behind a word like "keys"."""
    keys = set(_KEY.findall(part))
    if len(keys) > 1:
        return len(keys)
    for cue in islice(_FIELDS.finditer(part), _MOST_CUES):
        rest = re.split(r"[.?!](?:\s|$)|\n\n", part[cue.end() : cue.end() + 500], maxsplit=1)[0]
        rest = re.sub(r"\([^()]*\)", "", rest.rpartition(":")[2] if ":" in rest else rest)
        names: list[str] = []
        for piece in _SEPARATOR.split(rest):
            name = piece.strip(" \"'`*“”.-")
            if not name:
                continue
            if not _NAME.fullmatch(name) or len(name.split()) > _MOST_WORDS:
                break
            names.append(name)
        if len(names) > 1:
            return len(names)
    return 0
