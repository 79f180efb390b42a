"""Usage rollups, summed from the outbox: each event takes effect once, in the transaction that deletes it."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, cast
from uuid import UUID

from django.db import OperationalError, connection, transaction
from django.db.models import F, Field
from django.db.models.functions import Least

from billing.ids import day_of, moment_of, uuid7
from billing.models import OutboxEvent, UsageRecord, UsageRollup

TOPIC = "usage"
MAX_EVENTS = 64
MAX_ATTEMPTS = 1_000  # the count stops there: the column is a small integer

_SUMS = ("input_tokens", "cache_read_tokens", "output_tokens", "charge")
_ADDED = ("requests", *_SUMS)
_READ = (*_SUMS, "reasoning_tokens")


@dataclass(frozen=True, slots=True)
class RollupKey:
    """What a rollup sums the usage of."""

    hour: datetime
    tenant: UUID
    project: UUID
    api_key: UUID | None
    model: str

    @property
    def order(self) -> tuple[Any, ...]:
        """A sort key, so that two consumers lock the same rollups in the same order."""
        return (self.hour, self.tenant, self.project, str(self.api_key or ""), self.model)


def consume_usage(records: int = 256) -> int:
    """Add usage from the outbox's oldest events to the rollups, and return how many events took effect.

    Takes at least one event, and more until they name `records` usage records together, so a chunk stays short.
    Consumers may overlap: an event belongs to the one whose delete returned it. When a chunk fails, its events are
    tried one by one: one that fails again stays in the outbox behind all others, to be tried when those are done, and
    the failures are raised together.
    """
    try:
        return _consume(_oldest(records))
    except OperationalError:  # a fault of the database, not of an event
        raise
    except Exception:  # noqa: BLE001 - tried again below, event by event
        return _consume_singly(_oldest(records))


def _oldest(records: int) -> list[int]:
    """Return the ids of the oldest events that name `records` usage records together; one that failed comes alone."""
    chosen: list[int] = []
    found = OutboxEvent.objects.filter(topic=TOPIC).order_by("attempts", "id")[:MAX_EVENTS]
    for event, attempts, payload in found.values_list("id", "attempts", "payload"):
        records -= _size(payload)
        if chosen and (attempts or records < 0):
            break
        chosen.append(event)
    return chosen


def _size(payload: Any) -> int:
    """Return how many records an event names; works for malformed payloads too."""
    lists = payload.values() if isinstance(payload, dict) else ()
    return sum(len(names) for names in lists if isinstance(names, list))


def _consume_singly(events: list[int]) -> int:
    done, errors = 0, []
    for event in events:
        try:
            done += _consume([event])
        except OperationalError:
            raise
        except Exception as error:  # noqa: BLE001 - all are raised together below
            error.add_note(f"while consuming outbox event {event}")
            errors.append(error)
            OutboxEvent.objects.filter(pk=event).update(attempts=Least(F("attempts") + 1, MAX_ATTEMPTS))
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {len(events)} outbox events failed", errors)
    return done


@transaction.atomic
def _consume(events: list[int]) -> int:
    """Let `events` take effect, all or none, except those that another consumer took; return how many did."""
    payloads = _take(events) if events else []
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


def _take(events: list[int]) -> list[dict[str, Any]]:
    """Delete events and return their payloads."""
    table = OutboxEvent._meta.db_table
    places = ", ".join(["%s"] * len(events))
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {table} WHERE id IN ({places}) RETURNING payload", events)  # noqa: S608
        return [json.loads(payload) for (payload,) in cursor.fetchall()]


def _sums_of(requests: list[UUID]) -> dict[RollupKey, Counter[str]]:
    """Return what these requests' first records add to each cell."""
    records = UsageRecord.objects.filter(
        day__in={day_of(request) for request in requests}, request__in=requests, revision=0
    )
    sums: dict[RollupKey, Counter[str]] = defaultdict(Counter)
    for record in records.only("request", "tenant", "project", "api_key", "model", *_READ):
        cell = RollupKey(hour_of(record.request), record.tenant, record.project, record.api_key, record.model)
        sums[cell]["requests"] += 1
        sums[cell].update(_counted(record))
    return sums


def _differences_of(corrected: list[tuple[UUID, int]]) -> dict[RollupKey, Counter[str]]:
    """Return what these revisions (request, revision) change in each cell: each one less the one before it."""
    differences: dict[RollupKey, Counter[str]] = defaultdict(Counter)
    if not corrected:
        return differences
    wanted = set(corrected)
    records = UsageRecord.objects.filter(
        day__in={day_of(request) for request, _ in corrected}, request__in={request for request, _ in corrected}
    )
    for record in records.only("request", "revision", "tenant", "project", "api_key", "model", *_READ):
        cell = RollupKey(hour_of(record.request), record.tenant, record.project, record.api_key, record.model)
        times = ((record.request, record.revision) in wanted) - ((record.request, record.revision + 1) in wanted)
        for name, more in _counted(record).items():
            differences[cell][name] += times * more
    return differences


def _counted(record: UsageRecord) -> dict[str, int]:
    """Return what a record adds to its cell's sums; reasoning is output there, as in the usage of one request."""
    return {name: getattr(record, name) for name in _SUMS} | {"output_tokens": record.completion_tokens}


def _add(sums: dict[RollupKey, Counter[str]]) -> None:
    """Add to the cells' rollups, making those that are missing: one statement for cells with a key, one for others."""
    cells = sorted(sums, key=attrgetter("order"))
    for has_key in (True, False):
        some = [cell for cell in cells if (cell.api_key is not None) == has_key]
        if some:
            _upsert(some, sums, has_key=has_key)


def _upsert(cells: list[RollupKey], sums: dict[RollupKey, Counter[str]], *, has_key: bool) -> None:
    """Add `sums` to each cell's row. The table has a partial unique index for rows with a key and one for those
    without.
    """
    names = ("id", *(field.name for field in dataclasses.fields(RollupKey)), *_ADDED)
    fields = [cast("Field[Any, Any]", UsageRollup._meta.get_field(name)) for name in names]
    rows = [(uuid7(), *dataclasses.astuple(cell), *(sums[cell][name] for name in _ADDED)) for cell in cells]
    values = [
        field.get_db_prep_save(value, connection) for row in rows for field, value in zip(fields, row, strict=True)
    ]
    places = ", ".join([f"({', '.join(['%s'] * len(fields))})"] * len(rows))
    key, condition = ("api_key, ", "IS NOT NULL") if has_key else ("", "IS NULL")
    added = ", ".join(f"{name} = present.{name} + excluded.{name}" for name in _ADDED)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {UsageRollup._meta.db_table} AS present ({', '.join(names)}) VALUES {places} "  # noqa: S608
            f"ON CONFLICT (hour, tenant, project, {key}model) WHERE api_key {condition} DO UPDATE SET {added}",
            values,
        )


def hour_of(request: UUID) -> datetime:
    """Return the UTC hour in which a request's uuid7 was made."""
    return moment_of(request).replace(minute=0, second=0, microsecond=0)
