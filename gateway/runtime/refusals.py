"""Counts refused requests in memory, keeps some of them whole, and writes both to the database once a second, so no
request waits for it.

Of each reason of a tenant the first `FIRST` are kept whole and then one every `EVERY` seconds, of all reasons together
the first `FIRST_OF_ALL` and then one every `EVERY_OF_ALL` (at each gateway): a flood of one reason neither fills the
database nor hides the others. Every request is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import NamedTuple
from uuid import UUID, uuid5

from django.db import connection, transaction
from django.utils import timezone

from base.database.threads import DatabaseThreads
from gateway.errors.refusal import Refusal
from gateway.runtime.metrics import Metrics
from gateway.runtime.models import RefusalCount, RefusedRequest

MOST_COUNTS = 2_000  # between two writes; each is some hundred bytes
MOST_WHOLE = 2_000  # likewise; each is at most some thousand bytes
MOST_OWNERS = 10_000
FIRST, EVERY = 100, 180.0
FIRST_OF_ALL, EVERY_OF_ALL = 400, 45.0

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


class Sender(NamedTuple):
    """The sender of a refused request, as far as that is known: a key's holder, or a user of the chat."""

    tenant: UUID
    project: UUID | None = None
    api_key: UUID | None = None
    user: UUID | None = None


class _Pace:
    """Lets of each owner the first `burst` pass and then one every `seconds`."""

    def __init__(self, burst: int, seconds: float) -> None:
        self._slack = (burst - 1) * seconds
        self._seconds = seconds
        self._due: dict[Hashable, float] = {}  # when a whole burst may pass again
        self._limit = MOST_OWNERS

    def has_room(self, owner: Hashable, now: float) -> bool:
        """Whether one more may pass."""
        return self._due.get(owner, now) - now <= self._slack

    def take(self, owner: Hashable, now: float) -> None:
        """Note that one passed."""
        self._due[owner] = max(self._due.get(owner, now), now) + self._seconds
        if len(self._due) > self._limit:
            self._due = {one: due for one, due in self._due.items() if due > now}
            self._limit = max(MOST_OWNERS, 2 * len(self._due))  # who looks again at once finds little that is over


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
        self._whole: dict[UUID, RefusedRequest] = {}
        self._of_reason = _Pace(FIRST, EVERY)
        self._of_all = _Pace(FIRST_OF_ALL, EVERY_OF_ALL)

    def note(
        self, refusal: Refusal, request: UUID, sender: Sender, *, endpoint: str = "", asked: str = "", model: str = ""
    ) -> None:
        """Count a refused request, and keep it if there is room; `asked` is the model as the client wrote it, `model`
        the same where it exists.
        """
        now = self._clock()
        minute = now.replace(second=0, microsecond=0)
        code = _storable(refusal.code, 60)
        group = Group(minute, sender.tenant, sender.api_key, refusal.status, code, model)
        self._add(group, _Count(1, request, now))
        reason, second = (sender.tenant, code), now.timestamp()
        if len(self._whole) >= MOST_WHOLE or not (
            self._of_reason.has_room(reason, second) and self._of_all.has_room(sender.tenant, second)
        ):
            return
        self._of_reason.take(reason, second)
        self._of_all.take(sender.tenant, second)
        self._whole[request] = RefusedRequest(
            id=request,
            at=now,
            tenant_id=sender.tenant,
            project=sender.project,
            api_key=sender.api_key,
            user=sender.user,
            endpoint=_storable(endpoint, 120),
            model=_storable(asked, 120),
            status=refusal.status,
            code=code,
            param=_storable(refusal.param or "", 200),
            message=_storable(refusal.message, 500),
            input_tokens=refusal.input_tokens,
        )

    async def write(self) -> None:
        """Add the counts and requests to the database in one transaction; those of a failed write go with the next."""
        if not self._counts:
            return
        counts, self._counts = self._counts, {}
        whole, self._whole = self._whole, {}
        try:
            await self._threads.run(lambda: _write(counts, list(whole.values())))
        except Exception:  # not when cancelled: the thread goes on, and adding its counts again would double them
            later, self._counts = self._counts, counts
            for group, count in later.items():
                self._add(group, count)
            self._whole = dict(islice((whole | self._whole).items(), MOST_WHOLE))
            raise

    def _add(self, group: Group, count: _Count) -> None:
        known = self._counts.get(group)
        if known is not None:
            known.add(count)
        elif len(self._counts) < self._most:
            self._counts[group] = count
        else:
            self._metrics.refusals_dropped.inc(count.count)


def _storable(text: object, most: int) -> str:
    """Return the text as PostgreSQL takes it, cut to `most` characters: an engine or a client may have made it up."""
    whole = str(text).replace("\0", "\ufffd").encode(errors="replace").decode()
    return whole if len(whole) <= most else f"{whole[: most - 1]}…"


def _write(counts: dict[Group, _Count], whole: list[RefusedRequest]) -> None:
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
        RefusedRequest.objects.unscoped().bulk_create(whole, ignore_conflicts=True)
