"""Usage rollups, summed from the outbox: each event takes effect once, in the transaction that deletes it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import OperationalError, connection, transaction
from django.db.models import Exists, F, OuterRef, Sum
from django.db.models.functions import Least

from base import clock
from base.ids import day_of, moment_of
from base.sql import load
from billing.models import KeyTotal, OutboxEvent, UsageRecord, UsageRollup
from billing.services import promises
from billing.services.costs import cost_changes

TOPIC = "usage"
MAX_EVENTS = 64
BEGINNING = datetime.min.replace(tzinfo=UTC)
_ALL_KEYS = UUID(int=0)
_YOUNG = timedelta(days=27)  # no total has an hour that isn't older, by anybody's clock
MAX_ATTEMPTS = 1_000  # the count stops there: the column is a small integer

_NAMED = {
    "postgresql": "SELECT * FROM unnest(%s::uuid[], %s::date[], %s::timestamptz[], %s::smallint[], %s::bigint[],"
    " %s::bigint[]) AS n(request, day, hour, revision, cost, costed)",
    "sqlite": "SELECT value ->> 0 AS request, value ->> 1 AS day, value ->> 2 AS hour, value ->> 3 AS revision,"
    " value ->> 4 AS cost, value ->> 5 AS costed FROM json_each(%s)",
}
_NEW_ID = {"postgresql": "gen_random_uuid()", "sqlite": "lower(hex(randomblob(16)))"}
_SQL = load(Path(__file__).parents[1] / "sql" / "rollups.sql")
_ADDITIONS = [
    *(
        _SQL["add"].replace("{key}", key).replace("{condition}", condition)
        for key, condition in (("api_key, ", "NOT NULL"), ("", "NULL"))
    ),
    _SQL["add_days"],
]
STATEMENTS = {
    vendor: [
        f"{_SQL['changes']} {addition}".replace("{named}", named).replace("{id}", _NEW_ID[vendor])
        for addition in _ADDITIONS
    ]
    for vendor, named in _NAMED.items()
}


def consume_usage(records: int = 1024) -> int:
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
    named = [(UUID(request), 0) for payload in payloads for request in payload["records"]]
    named += [(UUID(request), revision) for payload in payloads for request, revision in payload.get("revisions", ())]
    if named:
        _add(named)
        promises.note(request for request, revision in named if not revision)
    return len(payloads)


def _take(events: list[int]) -> list[dict[str, Any]]:
    """Delete events and return their payloads."""
    table = OutboxEvent._meta.db_table
    places = ", ".join(["%s"] * len(events))
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {table} WHERE id IN ({places}) RETURNING payload", events)  # noqa: S608
        return [json.loads(payload) for (payload,) in cursor.fetchall()]


def _add(named: list[tuple[UUID, int]]) -> None:
    """Add these revisions (request, revision), each less the one before it, to the sums of their hours and days."""
    _add_to_totals(named)
    costs = cost_changes(named)
    rows = [
        (request.hex, str(day_of(request)), hour_of(request), revision, *costs.get((request, revision), (0, 0)))
        for request, revision in named
    ]
    if connection.vendor == "postgresql":
        given: Any = [list(column) for column in zip(*rows, strict=True)]
    else:
        given = [json.dumps([[*row[:2], _stored(row[2]), *row[3:]] for row in rows])]
    with connection.cursor() as cursor:
        for statement in STATEMENTS[connection.vendor]:
            cursor.execute(statement, given)


def add_up_keys(most: int = 100) -> bool:
    """Add hours that are over by a month to the totals of at most so many keys; return whether there are more."""
    until = (clock.now().replace(day=1) - timedelta(days=1)).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    whole, _ = KeyTotal.objects.get_or_create(pk=_ALL_KEYS, defaults={"until": BEGINNING})
    if whole.until >= until:
        return False
    done = KeyTotal.objects.filter(api_key=OuterRef("api_key"), until__gte=until)
    due = UsageRollup.objects.filter(~Exists(done), hour__gte=whole.until, hour__lt=until, api_key__isnull=False)
    keys = list(due.order_by().values_list("api_key", flat=True).distinct()[:most])
    for key in filter(None, keys):
        _add_up(key, until)
    if len(keys) < most:
        KeyTotal.objects.filter(pk=_ALL_KEYS).update(until=until)
    return len(keys) == most


@transaction.atomic
def _add_up(key: UUID, until: datetime) -> None:
    KeyTotal.objects.get_or_create(pk=key, defaults={"until": BEGINNING})
    total = KeyTotal.objects.select_for_update().get(pk=key)
    tenants = UsageRollup.objects.filter(api_key=key, hour__gte=total.until, hour__lt=until)
    more = tenants.aggregate(sum=Sum("charge"))["sum"] or 0
    KeyTotal.objects.filter(pk=key).update(charge=total.charge + more, until=until)


def _add_to_totals(named: list[tuple[UUID, int]]) -> None:
    """Add what these revisions changed to the totals of their keys that have their hours already."""
    since = datetime.now(UTC) - _YOUNG
    old = [one for one in named if hour_of(one[0]) < since]
    if not old:
        return
    asked = UsageRecord.objects.filter(day__in={day_of(one) for one, _ in old}, request__in={one for one, _ in old})
    columns = asked.exclude(api_key=None).values_list("request", "revision", "api_key", "charge")
    charges = {(request, revision): (key, charge) for request, revision, key, charge in columns}
    locked = KeyTotal.objects.select_for_update().filter(pk__in={key for key, _ in charges.values()})
    until = {total.pk: total.until for total in locked.order_by("pk")}
    for request, revision in old:
        key, charge = charges.get((request, revision), (None, 0))
        if key in until and hour_of(request) < until[key]:
            _, before = charges.get((request, revision - 1), (None, 0))
            KeyTotal.objects.filter(pk=key).update(charge=F("charge") + charge - before)


def _stored(moment: datetime) -> str:
    """Return a moment as Django stores it on SQLite."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")


def hour_of(request: UUID) -> datetime:
    """Return the UTC hour in which a request's uuid7 was made."""
    return moment_of(request).replace(minute=0, second=0, microsecond=0)
