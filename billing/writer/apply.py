"""The writer's operations in one Django transaction: for commands, tests and background tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast
from uuid import UUID

from django.db import connection, transaction

from billing.writer.decide import decide
from billing.writer.operations import Answer, Operation, requests_of
from billing.writer.postgresql import statements as postgresql
from billing.writer.queue import MAX_FLUSH
from billing.writer.sqlite import statements as sqlite
from billing.writer.view import Demand, FollowUp, View


def apply_now(operations: Sequence[Operation]) -> list[Answer]:
    """Apply the operations in order, all or none, and return an answer to each; waits for rows that
    other transactions have locked.

    Raises ValueError for an operation that can never be applied; then none was.
    """
    with transaction.atomic():
        answers: list[Answer] = []
        for group in groups_of_distinct(operations, MAX_FLUSH):
            found = _on_postgresql(group) if connection.vendor == "postgresql" else _on_sqlite(group)
            answers += cast("list[Answer]", found)  # no answer is Locked, since the reads wait for the locks
        return answers


def groups_of_distinct(operations: Iterable[Operation], limit: int) -> Iterable[list[Operation]]:
    """Split into runs, in order, in which no request comes twice and none is longer than `limit`."""
    group: list[Operation] = []
    seen: set[UUID] = set()
    for operation in operations:
        identifiers = requests_of(operation)
        if len(group) == limit or not seen.isdisjoint(identifiers):
            yield group
            group, seen = [], set()
        group.append(operation)
        seen.update(identifiers)
    if group:
        yield group


def _on_postgresql(group: Sequence[Operation]) -> Sequence[object]:
    with connection.cursor() as cursor:

        def run(query: postgresql.Query) -> list[tuple[Any, ...]]:
            cursor.execute(postgresql.sql_of(query), query[1])
            return cursor.fetchall() if cursor.description else []

        demand = Demand.of(group)
        queries = postgresql.reads(demand, waits=True)
        view: View = postgresql.view(queries, [run(query) for query in queries])
        view.redate_holds()
        run(postgresql.redating(view))
        rest = FollowUp.of(group, demand, view)
        queries = postgresql.follow_up_reads(rest)
        postgresql.complete(view, rest, queries, [run(query) for query in queries])
        view.locked = frozenset()
        answers, changes = decide(group, view)
        for query in postgresql.encoded(changes):
            run(query)
    return answers


def _on_sqlite(group: Sequence[Operation]) -> Sequence[object]:
    raw = connection.connection  # inside atomic(), so it is connected
    answers, changes = decide(group, sqlite.read(raw, group, Demand.of(group)))
    sqlite.write(raw, changes)
    return answers
