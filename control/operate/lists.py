"""Lists of tenants and people: their filters as the address has them, and pages in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self
from urllib.parse import urlencode

from django.db.models import Q, QuerySet
from django.http import QueryDict

PAGING = ("after", "before")
LONGEST = 254


@dataclass(frozen=True)
class Listing:
    """The filters of a list: `q` is part of a name. Pages begin behind the row that `after` or `before` names."""

    q: str = ""
    state: str = ""
    after: str = ""
    before: str = ""

    @classmethod
    def read(cls, data: QueryDict, choices: Mapping[str, Mapping[str, str]]) -> Self:
        """Read the address; a text that is none of its field's `choices` counts as not given."""
        given = {one.name: data.get(one.name, "").replace("\0", "").strip()[:LONGEST] for one in fields(cls)}
        return cls(**{name: text if text in choices.get(name, {text}) else "" for name, text in given.items()})

    @property
    def is_filtered(self) -> bool:
        """Whether a part of the rows is asked for."""
        return any(getattr(self, one.name) for one in fields(self) if one.name not in PAGING)

    def query(self, **changes: str) -> str:
        """Return the address's query with `changes`."""
        one = replace(self, **changes)
        given = {field.name: getattr(one, field.name) for field in fields(one)}
        return "?" + urlencode({name: value for name, value in given.items() if value})

    def turned(self, rows: QuerySet[Any], size: int, *order: str) -> tuple[list[Any], str, str]:
        """Return a page of `rows` in an order whose last field is unique, and stands in addresses; with the queries of
        the pages before and after it.
        """
        edge, unique = self.after or self.before, order[-1]
        values: Any = (edge,) if edge else None
        if edge and order[1:]:
            everybody = rows.model._default_manager  # noqa: SLF001 - documented
            values = everybody.filter(**{unique: edge}).values_list(*order).first()
        is_back = bool(self.before and not self.after and values)
        if values:
            rows = rows.filter(beyond(order, values, is_back=is_back))
        found = list(rows.order_by(*(f"-{name}" if is_back else name for name in order))[: size + 1])
        is_more, found = len(found) > size, found[:size]
        if is_back:
            found.reverse()
        if not found:
            return [], "", ""
        is_first, is_last = (not is_more, False) if is_back else (not values, not is_more)
        previous = "" if is_first else self.query(before=getattr(found[0], unique), after="")
        return found, previous, "" if is_last else self.query(after=getattr(found[-1], unique), before="")


def beyond(order: tuple[str, ...], values: tuple[Any, ...], *, is_back: bool = False) -> Q:
    """Return the condition of the rows behind the one with these values, or before it."""
    found, same = Q(), Q()
    for name, value in zip(order, values, strict=True):
        found |= same & Q(**{f"{name}__{'lt' if is_back else 'gt'}": value})
        same &= Q(**{name: value})
    return found
