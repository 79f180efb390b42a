"""The fields that an instruction names for the JSON that it asks for: all of them as it spells them, or none. Pure.

Whoever gets JSON with exactly these fields must miss none, so what isn't surely a list of plain names is no list:
fields in fields, lists, numbers and truth values belong into a `response_format`, which says types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

MOST_FIELDS = 64
_MOST_CUES = 8  # words like "keys" behind which fields are looked for
_MOST_WORDS = 3  # of a name
_MOST_LISTED = 500  # characters of a list

CUE = re.compile(r"\b(?:fields?|keys?|properties|attributes|columns|entries)\b", re.IGNORECASE)
_ORDER = re.compile(
    r"\b(?:extract|pull(?: out)?|return|get|find|collect|give(?: me)?|list|read out|take|identify|retrieve|capture"
    r"|fill in|(?:json|object|record) with|containing|values (?:of|for)) (?:only |just )?(?=[\w`\"']+,)",
    re.IGNORECASE,
)
"""What a list of names that are one word each may stand behind where nothing calls them fields."""
_WISH = re.compile(
    r"\b(?:(?:needs?|wants?|copy|detect|determine|enter|getting|grab|isolate|locate|look (?:for|up)|note(?: down)?"
    r"|provide|record|scan (?:\w+ ){1,3}for|show|spot|state|store|can i have|let me have|tell me) (?:only |just )?"
    r"|(?:(?:data|details|entities|information|values) (?:needed|required|wanted|to (?:collect|extract|find|return))"
    r"|extract|fill in|find the following|needed|wanted): ?)(?=[\w`\"']+,)",
    re.IGNORECASE,
)
"""And behind these where it asks for JSON: else who wants or shows things may only be talking."""
_JSON = re.compile(r"\bjson\b", re.IGNORECASE)
_KEY = re.compile(r"[\"']([^\W\d][\w -]{0,40})[\"'] ?: ?")
_BRACES = re.compile(r"\{[^{}]*\}")
_TYPED = re.compile(
    r"\b(?:arrays?|lists? of|nested|integers?|booleans?|numeric)\b"
    r"|[(:] ?(?:an? )?(?:number|int|float|bool|list|object|true|false)\b",
    re.IGNORECASE,
)
_TYPED_VALUE = re.compile(r": ?(?:-?\d|true\b|false\b|\[|\{)")
_SENTENCE_END = re.compile(r"[.?!;](?:\s|$)|\n\n")
_BRACKETS = re.compile(r"\([^()]*\)")
_BULLET = re.compile(r"(?:[-*•]|\d{1,2}[.)]) ?(.+)")
_EXPLAINED = re.compile(r"[:(]| [-–—] ")
_SEPARATOR = re.compile(r",|\band\b|&", re.IGNORECASE)
_NAME = re.compile(r"[^\W\d][\w-]*(?: [\w-]+)*")
_ARTICLE = re.compile(r"(?:the|an?) ", re.IGNORECASE)
_AROUND = " \"'`*“”"
_NO_NAME = re.compile(
    r"an?|all|any(?:thing)?|are|as|at|each|else|every|exactly|for|found|from|given|if|in|into|is|its?|json|just|missing|no"
    r"|none|not|nothing|null|on|only|or|others?|out|please|such|taken|that|the|their|them|then|these|this|use|when|where"
    r"|which|whose|with|without|your?",
    re.IGNORECASE,
)
"""Words of no field's name: what stands behind one goes on with the sentence."""
_ORDERS = re.compile(r"answer|copy|formatted|hand|leave|output|put|reply|respond|return|set|stop|write", re.IGNORECASE)
"""Words that begin another order, and alone may be names."""
_ENDS = frozenset(("json", "null", "nothing", "only", "please"))
_BEFORE = frozenset(("of", "by", "to"))  # what may stand before such a word


def fields_in(instruction: str) -> tuple[str, ...]:
    """Return the names of the fields, in their order; empty where it isn't certain which they are."""
    if _TYPED.search(instruction):
        return ()
    found = [names for names in _candidates(instruction) if names is not None and len(names) != 1]
    is_certain = found and all(names == found[0] for names in found) and len(found[0]) <= MOST_FIELDS
    return found[0] if is_certain else ()


def _candidates(instruction: str) -> Iterator[tuple[str, ...] | None]:
    """Yield every list of fields; an empty one for what looks like a list and can't be read, None for what doesn't."""
    if "{" in instruction:
        braces = _BRACES.findall(instruction)
        whole = len(braces) == 1 == instruction.count("{") and not _TYPED_VALUE.search(braces[0])
        yield _distinct(_KEY.findall(braces[0])) if whole else ()
        return
    called = list(_called_fields(instruction))
    yield from called
    if called:
        return
    leads = (_ORDER, _WISH) if _JSON.search(instruction) else (_ORDER,)
    for lead in (found for one in leads for found in islice(one.finditer(instruction), _MOST_CUES)):
        names = _listed(_first_sentence(instruction[lead.end() : lead.end() + _MOST_LISTED]))
        yield names if names is None or not any(" " in name for name in names) else ()


def _called_fields(instruction: str) -> Iterator[tuple[str, ...] | None]:
    """Yield what stands behind each word like "fields" and may be a list."""
    for cue in islice(CUE.finditer(instruction), _MOST_CUES):
        rest = instruction[cue.end() : cue.end() + _MOST_LISTED]
        first, _, below = rest.partition("\n")
        if below and first.rstrip().endswith(":"):
            yield _one_a_line(below)
            continue
        listed = _first_sentence(rest).rpartition(":")[2]
        if "," in listed or " and " in listed:
            yield _listed(listed)


def _first_sentence(text: str) -> str:
    return _BRACKETS.sub("", _SENTENCE_END.split(text, maxsplit=1)[0].partition("\n")[0])


def _listed(text: str) -> tuple[str, ...] | None:
    """Return the names of a list in one line, behind which the sentence may go on; empty where something is no name,
    None where nothing is one.
    """
    names: list[str] = []
    is_over = False
    for piece in _SEPARATOR.split(text):
        words = _without_article(piece.strip()).strip(_AROUND).rstrip(".").split()
        if not words:
            continue
        name = words[: next((at for at, word in enumerate(words) if _NO_NAME.fullmatch(word)), len(words))]
        if not name or _ORDERS.fullmatch(name[0]):
            if len(words) == 1 and words[0].casefold() not in _ENDS:
                return ()
            is_over = True
            continue
        is_cut = len(name) < len(words)
        if is_cut and len(name) > 1 and name[-1].casefold() in _BEFORE:
            name.pop()
        if is_over or not _is_name(" ".join(name)):
            return ()
        is_over = is_cut
        names.append(" ".join(name).strip(_AROUND))
    return _distinct(names) if names else None


def _without_article(words: str) -> str:
    found = _ARTICLE.match(words)
    return words[found.end() :] if found else words


def _one_a_line(text: str) -> tuple[str, ...]:
    """Return the names of a list with one a line; what a bracket, colon or dash begins explains a name.

    Without bullets each line has to be one word.
    """
    lines = [line.strip() for line in text.strip().splitlines()]
    if len(lines) > 1 and all(_NAME.fullmatch(line.strip(_AROUND + ",")) and " " not in line for line in lines):
        return _distinct([line.strip(_AROUND + ",") for line in lines])
    names: list[str] = []
    for line in lines:
        bullet = _BULLET.fullmatch(line)
        if bullet is None:
            break
        name = _EXPLAINED.split(bullet[1], maxsplit=1)[0].strip(_AROUND)
        if not _is_name(name) or _NO_NAME.fullmatch(name.split()[0]):
            return ()
        names.append(name)
    return _distinct(names)


def _is_name(text: str) -> bool:
    name = text.strip(_AROUND)
    return _NAME.fullmatch(name) is not None and len(name.split()) <= _MOST_WORDS


def _distinct(names: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
