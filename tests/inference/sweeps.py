"""Which cases of a sweep each run takes: one of each kind; the others are marked `sweep`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest

Params = list[Any]  # what `parametrize` and `fixture(params=...)` take


def first(cases: Iterable[Any], *, of: Callable[[Any], Hashable] | None = None) -> Params:
    """Return the cases, all but the first of each kind (as `of` tells it; else of all) for the sweep."""
    seen: set[Hashable] = set()
    params = []
    for case in cases:
        kind = of(case) if of else None
        params.append(pytest.param(*_values(case), marks=pytest.mark.sweep) if kind in seen else case)
        seen.add(kind)
    return params


def crossed(rows: Iterable[Any], columns: Iterable[Any], *, ids: Callable[[Any], str] = str) -> Params:
    """Return each row in each column; not the sweep's are the first row in every one, and every row in the first."""
    rows, columns = list(rows), list(columns)
    return [
        pytest.param(row, column, id=f"{ids(row)}-{column}", marks=pytest.mark.sweep if number and place else ())
        for number, row in enumerate(rows)
        for place, column in enumerate(columns)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
