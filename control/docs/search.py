"""Search over the text of all pages, kept in memory: each part of a page under its heading is found by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from control.docs.markdown import operation_address, rendered
from control.docs.reference import operations
from control.docs.site import all_pages

MOST = 30
LONGEST = 200
"""Characters of a query that are looked at."""
AROUND = 90

_WORD = re.compile(r"[\w.-]*\w")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a page that is found by itself."""

    address: str
    page: str
    title: str
    text: str
    low_title: str
    low_text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A part that has all words of a query, and the place in it where the first stands."""

    part: Part
    excerpt: SafeString


@cache
def _parts() -> Sequence[Part]:
    return list(_all_parts())


def _all_parts() -> Iterator[Part]:
    for page in all_pages():
        for heading in rendered(page.slug).headings:
            anchor = "" if heading.level == 1 else f"#{heading.anchor}"
            yield _part(f"/docs/{page.slug}/{anchor}", page.title, heading.title, heading.text)
    for one in operations().values():
        fields = " ".join(f"{field.name} {field.meaning}" for field in one.body + one.parameters)
        about = f"{one.method} {one.path} {one.description} {fields}"
        yield _part(operation_address(one.id), f"API: {one.group}", one.summary, about)


def _part(address: str, page: str, title: str, text: str) -> Part:
    return Part(address, page, title, text, f"{page} {title}".lower(), text.lower())


def search(query: str) -> list[Hit]:
    """Return the parts that have all words of `query`, those with them in their titles first."""
    words = list(dict.fromkeys(_WORD.findall(query[:LONGEST].lower())))
    if not words:
        return []
    scored = [(score, part) for part in _parts() if (score := _score(part, words))]
    scored.sort(key=lambda one: -one[0])
    return [Hit(part, _excerpt(part, words)) for _, part in scored[:MOST]]


def _score(part: Part, words: Sequence[str]) -> float:
    score = 0.0
    for word in words:
        in_title, in_text = part.low_title.count(word), part.low_text.count(word)
        if not in_title and not in_text:
            return 0
        score += 10 * in_title + min(in_text, 5) + 1 / (1 + len(part.text))
    return score


def _excerpt(part: Part, words: Sequence[str]) -> SafeString:
    places = [at for word in words if (at := part.low_text.find(word)) >= 0]
    start = max(min(places, default=0) - AROUND, 0)
    end = min(start + 2 * AROUND + 60, len(part.text))
    shown = ("… " if start else "") + part.text[start:end] + (" …" if end < len(part.text) else "")
    wanted = re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))), re.IGNORECASE)
    parts, at = [], 0
    for found in wanted.finditer(shown):
        parts += [escape(shown[at : found.start()]), f"<mark>{escape(found[0])}</mark>"]
        at = found.end()
    return mark_safe("".join([*parts, escape(shown[at:])]))  # noqa: S308 - escaped
