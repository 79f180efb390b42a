"""Usage by the hour, summed up from the outbox: each event takes effect once, in the transaction that deletes it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F

from billing.ids import day_of
from billing.models import OutboxEvent, UsageRecord, UsageRollup

TOPIC = "usage"

_SUMS = ("input_tokens", "cache_read_tokens", "output_tokens", "charge")


@dataclass(frozen=True, slots=True)
class Cell:
    """What a rollup is of."""

    hour: datetime
    tenant: UUID
    project: UUID
    api_key: UUID | None
    model: str

    @property
    def order(self) -> tuple[Any, ...]:
        """A key by which two consumers lock the same cells in the same order."""
        return (self.hour, self.tenant, self.project, str(self.api_key or ""), self.model)


@transaction.atomic
def consume_usage(limit: int = 8) -> int:
    """Add the usage of at most `limit` outbox events to the rollups, and return how many events there were.

    An event is one flush of the writer, of at most 256 records, so a chunk stays short. Consumers may overlap: an
    event belongs to the one whose delete returned it.
    """
    payloads = _take_events(limit)
    if payloads:
        requests = [UUID(request) for payload in payloads for request in payload["records"]]
        corrected = [
            (UUID(request), revision) for payload in payloads for request, revision in payload.get("revisions", ())
        ]
        sums = _sums_of(requests)
        for cell, more in _differences_of(corrected).items():
            sums[cell].update(more)
        _add(sums)
    return len(payloads)


def _take_events(limit: int) -> list[dict[str, Any]]:
    """Delete the oldest events and return their payloads."""
    table = OutboxEvent._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE topic = %s ORDER BY id LIMIT %s) "  # noqa: S608
            "RETURNING payload",
            [TOPIC, limit],
        )
        return [json.loads(payload) for (payload,) in cursor.fetchall()]


def _sums_of(requests: list[UUID]) -> dict[Cell, Counter[str]]:
    """Return what these requests' first records add to each cell."""
    records = UsageRecord.objects.filter(
        day__in={day_of(request) for request in requests}, request__in=requests, revision=0
    )
    sums: dict[Cell, Counter[str]] = defaultdict(Counter)
    for record in records.only("request", "tenant", "project", "api_key", "model", *_SUMS):
        cell = Cell(hour_of(record.request), record.tenant, record.project, record.api_key, record.model)
        sums[cell]["requests"] += 1
        for name in _SUMS:
            sums[cell][name] += getattr(record, name)
    return sums


def _differences_of(corrected: list[tuple[UUID, int]]) -> dict[Cell, Counter[str]]:
    """Return what these revisions (request, revision) change in each cell: each one less the one before it."""
    differences: dict[Cell, Counter[str]] = defaultdict(Counter)
    if not corrected:
        return differences
    wanted = set(corrected)
    records = UsageRecord.objects.filter(
        day__in={day_of(request) for request, _ in corrected}, request__in={request for request, _ in corrected}
    )
    for record in records.only("request", "revision", "tenant", "project", "api_key", "model", *_SUMS):
        cell = Cell(hour_of(record.request), record.tenant, record.project, record.api_key, record.model)
        times = ((record.request, record.revision) in wanted) - ((record.request, record.revision + 1) in wanted)
        for name in _SUMS:
            differences[cell][name] += times * getattr(record, name)
    return differences


def _add(sums: dict[Cell, Counter[str]]) -> None:
    """Add to the cells' rollups, making those that are missing."""
    cells = sorted(sums, key=attrgetter("order"))
    UsageRollup.objects.bulk_create(
        [
            UsageRollup(
                hour=cell.hour, tenant=cell.tenant, project=cell.project, api_key=cell.api_key, model=cell.model
            )
            for cell in cells
        ],
        ignore_conflicts=True,
    )
    for cell in cells:
        UsageRollup.objects.filter(
            hour=cell.hour, tenant=cell.tenant, project=cell.project, api_key=cell.api_key, model=cell.model
        ).update(**{name: F(name) + amount for name, amount in sums[cell].items()})


def hour_of(request: UUID) -> datetime:
    """Return the UTC hour in which a request's uuid7 was made."""
    moment = datetime.fromtimestamp((request.int >> 80) / 1000, tz=UTC)
    return moment.replace(minute=0, second=0, microsecond=0)
