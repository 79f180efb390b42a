"""Rows that many tests begin with: made once by the services, afterwards put back by the statements that wrote them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from unittest.mock import patch

from django.conf import settings
from django.db import connection, transaction

from billing.writer.sqlite import statements as sqlite

T = TypeVar("T")

_WRITES = ("INSERT", "UPDATE", "DELETE", "WITH")
_kept: dict[Hashable, tuple[list[Write], Any]] = {}

Write = tuple[str, Any, bool]  # statement, parameters, whether they are of many


def again(name: Hashable, make: Callable[[], T]) -> T:
    """Return what `make` returns, whose rows are in the database then.

    Only the first call under `name` calls it: the others must find a database with as many rows as that one did.
    """
    name = (name, connection.vendor, settings.SLUICE_KEY_HASH_SECRET)
    if name not in _kept:
        writes: list[Write] = []
        with _noting(writes):
            made = make()
        _kept[name] = writes, copy.deepcopy(made)
        return made
    writes, made = _kept[name]
    with transaction.atomic(), connection.cursor() as cursor:
        for sql, params, is_many in writes:
            (cursor.executemany if is_many else cursor.execute)(sql, params)
    return copy.deepcopy(made)


@contextmanager
def _noting(writes: list[Write]) -> Iterator[None]:
    """Note what is written inside the block, by Django's cursors and by the ledger's writer on SQLite, which goes past
    them.
    """

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        done = execute(sql, params, many, context)
        if sql.startswith(_WRITES):
            writes.append((sql, params, many))
        return done

    write = sqlite.write

    def noted(raw: Any, changes: Any) -> None:
        write(raw, changes)
        told = SimpleNamespace(executemany=lambda sql, rows: writes.append((sql.replace("?", "%s"), rows, True)))
        write(cast("Any", told), changes)

    with connection.execute_wrapper(note), patch.object(sqlite, "write", noted):
        yield
