"""Counts refused requests in memory and adds the counts to the database once a second, so no request waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID, uuid5

from django.db import connection, transaction
from django.utils import timezone

from base.database.threads import DatabaseThreads
from gateway.errors.refusal import Refusal
from gateway.runtime.metrics import Metrics
from gateway.runtime.models import RefusalCount

MOST_COUNTS = 2_000  # between two writes; each is some hundred bytes

_FIELDS = RefusalCount._meta.concrete_fields
_ADD = """
INSERT INTO gateway_refusalcount ({columns}) VALUES ({values})
ON CONFLICT (id) DO UPDATE SET
  count = gateway_refusalcount.count + excluded.count, last_request = excluded.last_request, last_at = excluded.last_at
""".format(columns=", ".join(str(field.column) for field in _FIELDS), values=", ".join(["%s"] * len(_FIELDS)))
_NAMESPACE = UUID("5e2d94a3-1f0b-4c5e-9d58-6a1f3c0e7b42")


class Group(NamedTuple):
    """The refusals that are counted together."""

    minute: datetime
    tenant: UUID
    api_key: UUID | None
    status: int
    code: str
    model: str


@dataclass(slots=True)
class _Count:
    count: int
    last_request: UUID
    last_at: datetime

    def add(self, later: _Count) -> None:
        self.count += later.count
        self.last_request, self.last_at = later.last_request, later.last_at


class Refusals:
    """The counts since the last write: at most `most`; what is refused beyond them is only counted in the metrics."""

    def __init__(
        self,
        threads: DatabaseThreads,
        metrics: Metrics,
        *,
        most: int = MOST_COUNTS,
        clock: Callable[[], datetime] = timezone.now,
    ) -> None:
        self._threads = threads
        self._metrics = metrics
        self._most = most
        self._clock = clock
        self._counts: dict[Group, _Count] = {}

    def note(self, refusal: Refusal, request: UUID, *, tenant: UUID, api_key: UUID | None, model: str) -> None:
        """Count a refused request; `model` is one that exists, or empty."""
        now = self._clock()
        minute = now.replace(second=0, microsecond=0)
        self._add(Group(minute, tenant, api_key, refusal.status, refusal.code, model), _Count(1, request, now))

    async def write(self) -> None:
        """Add the counts to the database in one transaction; those of a failed write go with the next one."""
        if not self._counts:
            return
        counts, self._counts = self._counts, {}
        try:
            await self._threads.run(lambda: _write(counts))
        except Exception:  # not when cancelled: the thread goes on, and adding its counts again would double them
            later, self._counts = self._counts, counts
            for group, count in later.items():
                self._add(group, count)
            raise

    def _add(self, group: Group, count: _Count) -> None:
        known = self._counts.get(group)
        if known is not None:
            known.add(count)
        elif len(self._counts) < self._most:
            self._counts[group] = count
        else:
            self._metrics.refusals_dropped.inc(count.count)


def _write(counts: dict[Group, _Count]) -> None:
    rows = [
        RefusalCount(
            id=uuid5(_NAMESPACE, "|".join(map(str, group))),
            minute=group.minute,
            tenant_id=group.tenant,
            api_key_id=group.api_key,
            status=group.status,
            code=group.code,
            model=group.model,
            count=count.count,
            last_request=count.last_request,
            last_at=count.last_at,
        )
        for group, count in counts.items()
    ]
    rows.sort(key=lambda row: row.id)  # gateways lock the same rows in the same order
    values = [[field.get_db_prep_save(getattr(row, field.attname), connection) for field in _FIELDS] for row in rows]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.executemany(_ADD, values)
