"""The lines of open batches that this process may run: claimed fairly between tenants, few at a time, and noted.

A claim holds for as long as it is renewed. A process that dies leaves claims that lapse, and whoever takes the lines
then asks for the same answers: they run and are charged once. Several processes may work at the same time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import BinaryIO
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q

from base import clock, storage
from base.ids import uuid7
from base.leases import LEASE, lease_end
from gateway.batches import outcomes
from gateway.batches.files.models import StoredFile
from gateway.batches.kept import kept_reply
from gateway.batches.lines import read_line
from gateway.batches.models import Batch, BatchLine
from gateway.batches.outcomes import InputError, Outcome, Reply

RENEW_SECONDS = 8.0
_NO_RIGHTS = frozenset({401, 403})  # of the batch's key, by now: what a line has run is charged all the same
MOST_BYTES = 32 << 20
"""Of claimed lines in memory; a single one may be larger."""
_READY_AHEAD = 2  # lines that are claimed for each that may run

State = BatchLine.State


@dataclass(frozen=True, slots=True)
class Task:
    """A claimed line with its request, or why that can't be read; whether it `may_have_run` when another had it."""

    line: BatchLine
    batch: Batch
    body: bytes | InputError
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
        now, tasks = clock.now(), []
        self._bytes = sum(task.line.size for task in self._mine.values())
        with ExitStack() as opened:
            for batch, count in self._shares(now, room):
                lines = self._claimed(batch, count, now)
                source = _opened(batch, opened) if lines else None
                for line, may_have_run in lines:
                    task = Task(line, batch, _body_of(line, source), may_have_run)
                    self._mine[line.id] = task
                    tasks.append(task)
        return tasks

    def _shares(self, now: datetime, room: int) -> list[tuple[Batch, int]]:
        """Return how many lines to take of which batch: of each tenant its oldest with lines that are due, the next
        line always of the tenant with the fewest that are claimed.
        """
        lines = BatchLine.objects.filter(batch=OuterRef("id"))
        due, lapsed = Exists(lines.filter(_due(now))), Exists(lines.filter(_lapsed(now)))
        open_ones = Batch.objects.unscoped().filter(ended_at=None).filter(_runs(now) & due | Q(lapsed))
        tenants = set(open_ones.values_list("tenant_id", flat=True).distinct())
        if not tenants:
            return []
        busy = Counter(task.batch.tenant_id for task in self._mine.values())
        counts: Counter[UUID] = Counter()
        for _ in range(room):
            tenant = min(tenants, key=lambda one: (busy[one] + counts[one], one.int))
            counts[tenant] += 1
        oldest = {tenant: open_ones.filter(tenant=tenant).order_by("id").first() for tenant in counts}
        return [(batch, counts[tenant]) for tenant, batch in oldest.items() if batch is not None]

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
        chosen = lines.filter(free).exclude(id__in=list(self._mine)).order_by("number")
        before: dict[UUID, int] = {}
        for identifier, state, size in chosen.values_list("id", "state", "size")[:count]:
            if self._bytes and self._bytes + size > MOST_BYTES:
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
    if task.may_have_run and isinstance(reply, Reply) and reply.status in _NO_RIGHTS:
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


def _opened(batch: Batch, stack: ExitStack) -> BinaryIO | OSError:
    """Open the batch's input for as long as `stack` is, or return why it can't be."""
    try:
        file = StoredFile.objects.unscoped().filter(id=batch.input_file).first()
        if file is None:
            raise FileNotFoundError("the input file is gone")
        return stack.enter_context(storage.read(file))
    except OSError as error:
        return error


def _body_of(line: BatchLine, source: BinaryIO | OSError | None) -> bytes | InputError:
    try:
        if source is None or isinstance(source, OSError):
            raise source or FileNotFoundError
        return bytes(read_line(source, line.offset, line.size).body)
    except OSError as error:
        return InputError(str(error))
