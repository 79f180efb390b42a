"""The writer's operations in one Django transaction: for commands, tests and background tasks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from billing.writer.decide import PutAside, decide
from billing.writer.operations import Answer, Operation
from billing.writer.postgresql import statements as postgresql
from billing.writer.queue import LARGEST_FLUSH
from billing.writer.rows import closed_before
from billing.writer.sqlite import statements as sqlite
from billing.writer.state import Demand, groups_of_distinct, requests_of


def apply_now(operations: Sequence[Operation]) -> list[Answer]:
    """Apply the operations in order, all or none, and return an answer to each.

    Raises ValueError for an operation that can never be applied; then nothing was.
    """
    from billing.services import credits

    with transaction.atomic():
        answers: list[Answer] = []
        for group in groups_of_distinct(operations, LARGEST_FLUSH):
            found = _apply(group, ())
            aside = {answer.wallet for answer in found if isinstance(answer, PutAside)}
            for wallet in sorted(aside):
                credits.roll(wallet)
            if aside:
                again = [op for op, answer in zip(group, found, strict=True) if isinstance(answer, PutAside)]
                later = iter(_apply(again, {request for op in again for request in requests_of(op)}))
                found = [next(later) if isinstance(answer, PutAside) else answer for answer in found]
            answers += [answer for answer in found if not isinstance(answer, PutAside)]
        return answers


def _apply(group: Sequence[Operation], rolled: Collection[UUID]) -> list[Answer | PutAside]:
    return _on_postgresql(group, rolled) if connection.vendor == "postgresql" else _on_sqlite(group, rolled)


def _on_postgresql(group: Sequence[Operation], rolled: Collection[UUID]) -> list[Answer | PutAside]:
    with connection.cursor() as cursor:

        def run(query: postgresql.Query) -> list[tuple[Any, ...]]:
            cursor.execute(postgresql.STATEMENTS[query[0]], query[1])
            return cursor.fetchall() if cursor.description else []

        queries = postgresql.reads(Demand.of(group))
        view = postgresql.view(queries, [run(query) for query in queries])
        closed = closed_before(group, view)
        if closed:
            view.charges = dict(run(postgresql.charges_of(closed)))
        answers, changes = decide(group, view, rolled)
        for query in postgresql.writes(changes):
            run(query)
    return answers


def _on_sqlite(group: Sequence[Operation], rolled: Collection[UUID]) -> list[Answer | PutAside]:
    raw = connection.connection  # inside atomic(), so it is connected
    answers, changes = decide(group, sqlite.read(raw, group), rolled)
    sqlite.write(raw, changes)
    return answers
