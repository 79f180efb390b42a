"""The rows of stored responses. All of this runs on database threads, for one project, and sees nothing expired."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import connection, models, transaction
from django.db.models import QuerySet
from django.db.models.functions import Length
from django.utils import timezone

from base import clock
from billing.services.sweeps import Sweep
from billing.writer.operations import LEASE_SECONDS
from gateway.apis.responses.models import StoredResponse
from gateway.durable import answers

MOST_TURNS = 512  # of one conversation
LOOKED_UP_AT_ONCE = 500
RUNNING = ("queued", "in_progress")

# A conversation from its last turn back to its first, or to where it is longer than may be. One query.
_TURNS = """
WITH RECURSIVE turns (id, previous, place, total) AS (
    SELECT id, previous, 1, size FROM gateway_storedresponse
        WHERE id = %(last)s AND tenant_id = %(tenant)s AND project_id = %(project)s AND expires_at > %(now)s
    UNION ALL
    SELECT row.id, row.previous, turns.place + 1, turns.total + row.size
        FROM turns JOIN gateway_storedresponse row ON row.id = turns.previous
        WHERE row.tenant_id = %(tenant)s AND row.project_id = %(project)s AND row.expires_at > %(now)s
            AND turns.place < %(turns)s AND turns.total <= %(bytes)s
)
SELECT row.*, turns.total FROM turns JOIN gateway_storedresponse row ON row.id = turns.id ORDER BY turns.place DESC
"""


class Owner(NamedTuple):
    """Whose a response is."""

    tenant: UUID
    project: UUID


def add(
    owner: Owner,
    identifier: UUID,
    *,
    status: str,
    given: bytes,
    body: bytes,
    previous: UUID | None = None,
    is_background: bool = False,
) -> None:
    """Store a response: `given` are its input items and `body` is the response, both as JSON."""
    StoredResponse(
        id=identifier,
        tenant_id=owner.tenant,
        project_id=owner.project,
        previous=previous,
        status=status,
        is_background=is_background,
        input=given,
        body=body,
        size=len(given) + len(body),
        expires_at=timezone.now() + timedelta(days=settings.SLUICE_RESPONSE_DAYS),
    ).save(force_insert=True)


def change(identifier: UUID, *, status: str, body: bytes) -> None:
    """Give a response that is being made another state; one that has ended stays as it is. Of one that was deleted
    meanwhile nothing is kept.
    """
    mine = StoredResponse.objects.unscoped().filter(id=identifier)
    changed = mine.filter(status__in=RUNNING).update(status=status, body=body, size=Length("input") + len(body))
    if not changed and not mine.exists():
        answers.erase(identifier)


def tell_of(run: UUID, identifier: UUID) -> None:
    """Let the answer of `run`, which is being stored, be deleted with the response `identifier`, of which it tells."""
    answers.tell_of(run, identifier)
    if not StoredResponse.objects.unscoped().filter(id=identifier).exists():
        answers.erase(identifier)


def find(owner: Owner, identifier: UUID) -> StoredResponse | None:
    """Return the response, or None where there is none."""
    return _good(owner).filter(id=identifier).first()


def sizes(owner: Owner, identifiers: Collection[UUID]) -> dict[UUID, int]:
    """Return how many bytes those of the responses have that there are, by id."""
    found: dict[UUID, int] = {}
    left = iter(identifiers)
    while some := list(islice(left, LOOKED_UP_AT_ONCE)):
        found.update(_good(owner).filter(id__in=some).values_list("id", "size"))
    return found


def each(owner: Owner, identifiers: Mapping[UUID, int], most_bytes: int) -> Iterator[StoredResponse]:
    """Yield those of the responses that there are, of which so many are in memory at once as have `most_bytes`, or one.

    `identifiers` has their sizes.
    """
    some: list[UUID] = []
    total = 0
    for identifier, size in identifiers.items():
        if some and (total + size > most_bytes or len(some) >= LOOKED_UP_AT_ONCE):
            yield from _good(owner).filter(id__in=some)
            some, total = [], 0
        some.append(identifier)
        total += size
    yield from _good(owner).filter(id__in=some)


def remove(owner: Owner, identifier: UUID) -> bool:
    """Delete the response for good, its events included; False where there is none."""
    with transaction.atomic():
        count, _ = _good(owner).filter(id=identifier).delete()
        if count:  # a kept answer without a row is not the owner's to erase: it may be anybody's
            answers.erase(identifier)
    return bool(count)


def is_running(owner: Owner, identifier: UUID) -> bool:
    """Whether the response is still being made."""
    return _good(owner).filter(id=identifier, status__in=RUNNING).exists()


def fail_if_lost(row: StoredResponse) -> bool:
    """Let a response in the background fail whose gateway ended before it was stored: it is charged nothing. False for
    any other, and for one that is deleted meanwhile.
    """
    if row.status not in RUNNING or answers.look(row.id) is not None or answers.closings_of(row.id) is not None:
        return False
    body = msgspec.json.decode(bytes(row.body))
    error = {
        "code": "response_lost",
        "message": "What made this response ended before it was stored. It costs nothing.",
    }
    change(row.id, status="failed", body=msgspec.json.encode({**body, "status": "failed", "error": error}))
    try:
        row.refresh_from_db(from_queryset=StoredResponse.objects.unscoped())
    except StoredResponse.DoesNotExist:  # deleted meanwhile
        return False
    return True


def losses() -> Sweep:
    """Return the sweep that lets responses fail whose gateway ended while it made them, however many others run."""

    def due() -> QuerySet[StoredResponse]:
        since = clock.now() - timedelta(seconds=LEASE_SECONDS)
        return StoredResponse.objects.unscoped().filter(status__in=RUNNING, created_at__lt=since)

    def look(identifier: UUID) -> None:
        row = StoredResponse.objects.unscoped().filter(id=identifier).first()
        if row is not None:
            fail_if_lost(row)

    return Sweep(due, look)


def conversation(owner: Owner, last: UUID, most_bytes: int) -> list[Any]:
    """Return the turns of the conversation that the response `last` ends, the first one first; none where it isn't
    stored. Each has the `total` bytes of itself and those after it.

    Where the first turn has a `previous` all the same, that is gone, or more turns or bytes than may be lie before it.
    """
    parameters = {
        "last": _uuid(last),
        "tenant": _uuid(owner.tenant),
        "project": _uuid(owner.project),
        "now": models.DateTimeField().get_db_prep_value(timezone.now(), connection),
        "turns": MOST_TURNS,
        "bytes": most_bytes,
    }
    return list(StoredResponse.objects.unscoped().raw(_TURNS, parameters))


def _good(owner: Owner) -> QuerySet[StoredResponse]:
    mine = StoredResponse.objects.unscoped().filter(tenant=owner.tenant, project=owner.project)
    return mine.filter(expires_at__gt=timezone.now())


def _uuid(value: UUID) -> Any:
    return models.UUIDField().get_db_prep_value(value, connection)
