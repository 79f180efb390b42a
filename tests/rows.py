"""Rows that many tests begin with: made once by the services, afterwards put back by the statements that wrote them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from django.conf import settings
from django.db import connection, transaction

T = TypeVar("T")

_WRITES = ("INSERT", "UPDATE", "DELETE")
_kept: dict[Hashable, tuple[list[tuple[str, Any, bool]], Any]] = {}


def again(name: Hashable, make: Callable[[], T]) -> T:
    """Return what `make` returns, whose rows are in the database then.

    Only the first call under `name` calls it: the others must find a database with as many rows as that one did.
    """
    name = (name, connection.vendor, settings.SLUICE_KEY_HASH_SECRET)
    if name not in _kept:
        writes: list[tuple[str, Any, bool]] = []

        def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            done = execute(sql, params, many, context)
            if sql.startswith(_WRITES):
                writes.append((sql, params, many))
            return done

        with connection.execute_wrapper(note):
            made = make()
        _kept[name] = writes, copy.deepcopy(made)
        return made
    writes, made = _kept[name]
    with transaction.atomic(), connection.cursor() as cursor:
        for sql, params, is_many in writes:
            (cursor.executemany if is_many else cursor.execute)(sql, params)
    return copy.deepcopy(made)
