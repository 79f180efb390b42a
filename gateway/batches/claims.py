"""The lines of open batches that this process may run: claimed fairly between tenants, few at a time, and noted.

A claim holds for as long as it is renewed. A process that dies leaves claims that lapse, and whoever takes the lines
then asks for the same answers: they run and are charged once. Several processes may work at the same time.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import BinaryIO
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Count, Exists, F, OuterRef, Q, Subquery

from base import clock, storage
from base.ids import uuid7
from base.leases import LEASE, lease_end
from gateway.batches import outcomes
from gateway.batches.files import StoredFile
from gateway.batches.lines import ChangedError, read_line
from gateway.batches.models import Batch, BatchLine
from gateway.batches.outcomes import InputError, NotSentError, Outcome, Reply, kept_reply

RENEW_SECONDS = 8.0
_NO_RIGHTS = frozenset({401, 403})  # of the batch's key, by now: what a line has run is charged all the same
MOST_BYTES = 32 << 20
"""Of claimed lines in memory, beside one line of each tenant."""
_READY_AHEAD = 2  # lines that are claimed for each that may run

logger = logging.getLogger("sluice.batches")
State = BatchLine.State


@dataclass(frozen=True, slots=True)
class Task:
    """A claimed line with its request, or why there is none; whether it `may_have_run` when another had it."""

    line: BatchLine
    batch: Batch
    body: bytes | InputError | NotSentError
    may_have_run: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a task."""

    task: Task
    reply: Reply | Exception


class Claims:
    """The lines of one process, of which `slots` run at a time. Its methods are for one thread at a time; `is_over` is
    for any.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._claim = uuid7()
        self._mine: dict[UUID, Task] = {}
        self._over: frozenset[UUID] = frozenset()  # batches of which nothing new may run
        self._renewed_at = 0.0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._mine)

    def is_over(self, batch: UUID) -> bool:
        """Whether nothing of the batch may begin to run."""
        return batch in self._over

    def step(self, answers: Collection[Answer], *, takes: bool = True) -> list[Task]:
        """Note the answers, and return what is to run beside the rest; nothing more where it takes none."""
        if answers:
            self._note(answers)
        self._renew()
        self._look_for_ends()
        room = _READY_AHEAD * self._slots - len(self._mine)
        if takes and (room >= self._slots or (room and not self._mine)):
            return self._take(room)
        return []

    def _note(self, answers: Collection[Answer]) -> None:
        """Store what became of lines that are still ours, and count it, in one transaction.

        Where that fails their claims lapse, and they are asked for again.
        """
        for answer in answers:
            del self._mine[answer.task.line.id]
        now = clock.now()
        known = [(answer.task, _known(answer)) for answer in answers]
        ended: dict[UUID, list[Outcome]] = {}
        with transaction.atomic():
            for task, reply in known:
                outcome = outcomes.outcome_of(task.line, reply, now, may_have_run=task.may_have_run)
                mine = BatchLine.objects.filter(id=task.line.id, claim=self._claim, state=State.RUNNING)
                is_ours = mine.update(
                    state=outcome.state,
                    attempts=outcome.attempts,
                    due_at=outcome.due_at,
                    claim=None,
                    claimed_until=outcome.due_at,
                    answer=outcome.answer,
                )
                if is_ours and outcome.is_end:
                    ended.setdefault(task.batch.id, []).append(outcome)
            for batch, those in sorted(ended.items()):
                Batch.objects.unscoped().filter(id=batch).update(**outcomes.counted(those))

    def _renew(self) -> None:
        if self._mine and time.monotonic() - self._renewed_at >= RENEW_SECONDS:
            self._renewed_at = time.monotonic()
            # By their ids: those whose answer couldn't be noted have our claim, too, and are to be asked for again.
            mine = BatchLine.objects.filter(id__in=list(self._mine), claim=self._claim, state=State.RUNNING)
            mine.update(claimed_until=lease_end())

    def _look_for_ends(self) -> None:
        """Note which of the batches whose lines are claimed have been cancelled, or are over for another reason."""
        mine = {task.batch.id for task in self._mine.values()}
        if mine:
            going_on = Batch.objects.unscoped().filter(_runs(clock.now()), id__in=mine)
            self._over = frozenset(mine.difference(going_on.values_list("id", flat=True)))

    def _take(self, room: int) -> list[Task]:
        """Claim `room` lines at most."""
        now, tasks = clock.now(), list[Task]()
        self._bytes = sum(task.line.size for task in self._mine.values())
        for batch, count in self._shares(now, room):
            if lines := self._claimed(batch, count, now):
                tasks += _read(batch, lines)
        # Only now: what was claimed before something failed lapses, and is run by whoever takes it then.
        self._mine.update({task.line.id: task for task in tasks})
        return tasks

    def _shares(self, now: datetime, room: int) -> list[tuple[Batch, int]]:
        """Return how many lines to take of which batch: of each tenant that whose line has been due for longest, the
        next line always of the tenant with the fewest that are claimed.

        Of a tenant of which other processes have lines no more are taken than may run in all of them.
        """
        if not Batch.objects.unscoped().filter(ended_at=None).exists():  # as nearly always: looked at each second
            return []
        lines = BatchLine.objects.filter(batch=OuterRef("id"))
        due, lapsed = Exists(lines.filter(_due(now))), Exists(lines.filter(_lapsed(now)))
        open_ones = Batch.objects.unscoped().filter(ended_at=None).filter(_runs(now) & due | Q(lapsed))
        tenants = set(open_ones.values_list("tenant_id", flat=True).distinct())
        if not tenants:
            return []
        others = self._of_others(now)
        counts = Counter(task.batch.tenant_id for task in self._mine.values())
        before = counts.copy()

        def may_have_more(tenant: UUID) -> bool:
            return not others[tenant] or counts[tenant] + others[tenant] < self._slots

        for _ in range(room):
            open_to = [tenant for tenant in tenants if may_have_more(tenant)]
            if not open_to:
                break
            counts[min(open_to, key=lambda one: (counts[one], one.int))] += 1
        more = counts - before
        waits = lines.filter(_due(now) | _lapsed(now)).order_by("due_at").values("due_at")[:1]
        first = open_ones.annotate(waits=Subquery(waits)).order_by("waits", "id")
        chosen = {tenant: first.filter(tenant=tenant).first() for tenant in more}
        return [(batch, more[tenant]) for tenant, batch in chosen.items() if batch is not None]

    def _of_others(self, now: datetime) -> Counter[UUID]:
        """Return by tenant how many lines other processes have."""
        running = BatchLine.objects.filter(state=State.RUNNING, claimed_until__gt=now).exclude(claim=self._claim)
        found = running.exclude(claim=None).values_list("batch__tenant").annotate(count=Count("id"))
        return Counter(dict(found))

    def _claimed(self, batch: Batch, count: int, now: datetime) -> list[tuple[BatchLine, bool]]:
        """Claim at most `count` lines of the batch, the first ones first, and return them, and of each whether it may
        have run.
        """
        free = _lapsed(now)
        if Batch.objects.unscoped().filter(_runs(now), id=batch.id).exists():
            free |= _due(now)
        else:
            self._over |= {batch.id}
        lines = BatchLine.objects.filter(batch=batch)
        chosen = lines.filter(free).exclude(id__in=list(self._mine)).order_by("due_at", "number")
        before: dict[UUID, int] = {}
        has_some = any(task.batch.tenant_id == batch.tenant_id for task in self._mine.values())
        for identifier, state, size in chosen.values_list("id", "state", "size")[:count]:
            if self._bytes + size > MOST_BYTES and (before or has_some):  # but each tenant may have one
                break
            self._bytes += size
            before[identifier] = state
        ids = list(before)
        lines.filter(free, id__in=ids).update(
            state=State.RUNNING, claim=self._claim, claimed_until=now + LEASE, attempts=F("attempts") + 1
        )
        claimed = lines.filter(id__in=ids, claim=self._claim, state=State.RUNNING).order_by("number")
        return [(line, before[line.id] == State.RUNNING) for line in claimed]


def _known(answer: Answer) -> Reply | Exception:
    task, reply = answer.task, answer.reply
    has_no_way = isinstance(reply, InputError) or (isinstance(reply, Reply) and reply.status in _NO_RIGHTS)
    if task.may_have_run and has_no_way:
        return kept_reply(task.batch, task.line) or reply
    return reply


def _runs(now: datetime) -> Q:
    """Batches whose waiting lines may be sent."""
    has_room = Q(answer_bytes__lt=settings.SLUICE_MAX_OUTPUT_BYTES)
    return has_room & Q(status=Batch.Status.IN_PROGRESS, expired_at=None, expires_at__gt=now)


def _due(now: datetime) -> Q:
    return Q(state=State.WAITING, due_at__lte=now)


def _lapsed(now: datetime) -> Q:
    """Lines that were sent and whose answer nobody waits for: they are asked for, whatever became of their batch."""
    return Q(state=State.RUNNING, claimed_until__lte=now)


def _read(batch: Batch, lines: list[tuple[BatchLine, bool]]) -> list[Task]:
    """Return the lines with their requests. A storage that fails is tried again later; a file that is gone isn't."""
    bodies: Sequence[bytes | InputError | NotSentError]
    try:
        bodies = _bodies_of(batch, [line for line, _ in lines])
    except DatabaseError:
        raise
    except FileNotFoundError as error:
        bodies = [InputError(str(error))] * len(lines)
    except Exception as error:
        logger.exception("the input of a batch can't be read", extra={"batch": str(batch)})
        bodies = [NotSentError(str(error))] * len(lines)
    return [Task(line, batch, body, ran) for (line, ran), body in zip(lines, bodies, strict=True)]


def _bodies_of(batch: Batch, lines: Iterable[BatchLine]) -> list[bytes | InputError]:
    file = StoredFile.objects.unscoped().filter(id=batch.input_file).first()
    if file is None:
        raise FileNotFoundError("the input file is gone")
    with storage.read(file) as source:
        return [_body_of(line, source) for line in lines]


def _body_of(line: BatchLine, source: BinaryIO) -> bytes | InputError:
    try:
        return bytes(read_line(source, line.offset, line.size).body)
    except ChangedError as error:
        return InputError(str(error))
