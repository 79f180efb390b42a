"""Sends the lines of all open batches, fairly between tenants and few at a time, and notes what became of them.

A line is claimed before it is sent, for as long as its claim is renewed. A process that dies leaves claims that lapse,
and whoever takes the lines then asks the gateways for the same answers: they run and are charged once (`http.kept`).
Several of these may work at the same time.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import BinaryIO, Protocol
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q

from base import clock, storage
from base.ids import uuid7
from gateway.batches import outcomes
from gateway.batches.files.models import StoredFile
from gateway.batches.kept import kept_reply
from gateway.batches.lines import read_line
from gateway.batches.models import Batch, BatchLine
from gateway.batches.outcomes import InputError, Outcome
from gateway.batches.sending import NotSentError, Reply, Request, Sender, UnknownError
from gateway.runtime.principal import Line

CLAIM = timedelta(seconds=30)
RENEW_SECONDS = 8.0
GATHER_SECONDS = 0.05
IDLE_SECONDS = 0.25
_NO_RIGHTS = frozenset({401, 403})  # of the batch's key, by now: what a line has run is charged all the same
_READY_AHEAD = 2  # lines that are claimed for each that may be on its way

logger = logging.getLogger("sluice.jobs")


class Sending(Protocol):
    """What sends lines, one at a time."""

    def send(self, request: Request) -> Reply: ...

    def close(self) -> None: ...


State = BatchLine.State


@dataclass(frozen=True, slots=True)
class _Task:
    """A claimed line and what is to be sent for it; whether it `may_have_run` when somebody else had it."""

    line: BatchLine
    batch: Batch
    request: Request | None
    may_have_run: bool = False


@dataclass(frozen=True, slots=True)
class _Answer:
    task: _Task
    reply: Reply | Exception


class Driver:
    """At most `slots` lines are on their way at a time, each in a thread of its own; by default as the settings say.

    `step` is for one thread at a time.
    """

    def __init__(self, sender: Callable[[], Sending] = Sender, slots: int | None = None) -> None:
        self._sender = sender
        self._slots = slots
        self._claim = uuid7()
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._mine: dict[UUID, _Task] = {}
        self._over: frozenset[UUID] = frozenset()  # batches of which nothing new may run
        self._renewed_at = 0.0

    @property
    def slots(self) -> int:
        """How many lines are on their way at most."""
        return self._slots or settings.SLUICE_BATCH_CONCURRENCY

    def step(self) -> bool:
        """Note what was answered and send more; return whether lines are on their way."""
        answers = self._gathered()
        if answers:
            self._note(answers)
        self._renew()
        self._look_for_ends()
        room = _READY_AHEAD * self.slots - len(self._mine)
        if room >= self.slots or (room and not self._mine):
            self._take(room)
        return bool(self._mine)

    def close(self) -> None:
        """End the threads; lines that are on their way are asked for by whoever takes them next."""
        for _ in self._threads:
            self._tasks.put(None)
        self._threads.clear()

    # -- answers ------------------------------------------------------------------------------------------------------

    def _gathered(self) -> list[_Answer]:
        """Return the answers that have come, waiting for the first a little, and for some more even less."""
        found: list[_Answer] = []
        until = time.monotonic() + IDLE_SECONDS
        while len(found) < len(self._mine) and (rest := until - time.monotonic()) > 0:
            try:
                found.append(self._answers.get(timeout=rest))
            except queue.Empty:
                break
            if len(found) == 1:
                until = time.monotonic() + GATHER_SECONDS
        return found

    def _note(self, answers: Collection[_Answer]) -> None:
        """Store what became of lines that are still ours, and count it, in one transaction.

        Where that fails their claims lapse, and they are asked for again.
        """
        for answer in answers:
            del self._mine[answer.task.line.id]
        now = clock.now()
        known = [(answer.task, self._known(answer)) for answer in answers]
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

    def _known(self, answer: _Answer) -> Reply | Exception:
        task, reply = answer.task, answer.reply
        if task.may_have_run and isinstance(reply, Reply) and reply.status in _NO_RIGHTS:
            return kept_reply(task.batch, task.line) or reply
        return reply

    # -- claims -------------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        if self._mine and time.monotonic() - self._renewed_at >= RENEW_SECONDS:
            self._renewed_at = time.monotonic()
            # By their ids: those whose answer couldn't be noted have our claim, too, and are to be asked for again.
            mine = BatchLine.objects.filter(id__in=list(self._mine), claim=self._claim, state=State.RUNNING)
            mine.update(claimed_until=clock.now() + CLAIM)

    def _look_for_ends(self) -> None:
        """Note which of the batches whose lines are claimed have been cancelled, or are over for another reason."""
        mine = {task.batch.id for task in self._mine.values()}
        if mine:
            going_on = Batch.objects.unscoped().filter(_runs(clock.now()), id__in=mine)
            self._over = frozenset(mine.difference(going_on.values_list("id", flat=True)))

    def _take(self, room: int) -> None:
        """Claim `room` lines at most and put them on their way."""
        now = clock.now()
        shares = self._shares(now, room)
        with ExitStack() as opened:
            for batch, count in shares:
                lines = self._claimed(batch, count, now)
                if lines:
                    source = _opened(batch, opened)
                    for line, may_have_run in lines:
                        self._begin(batch, line, source, may_have_run=may_have_run)

    def _shares(self, now: datetime, room: int) -> list[tuple[Batch, int]]:
        """Return how many lines to take of which batch: of each tenant its oldest with lines that are due, the next
        line always of the tenant with the fewest on their way.
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
        before = dict(chosen.values_list("id", "state")[:count])
        ids = list(before)
        lines.filter(free, id__in=ids).update(
            state=State.RUNNING, claim=self._claim, claimed_until=now + CLAIM, attempts=F("attempts") + 1
        )
        claimed = lines.filter(id__in=ids, claim=self._claim, state=State.RUNNING).order_by("number")
        return [(line, before[line.id] == State.RUNNING) for line in claimed]

    def _begin(self, batch: Batch, line: BatchLine, source: BinaryIO | OSError, *, may_have_run: bool) -> None:
        try:
            if isinstance(source, OSError):
                raise source
            body = bytes(read_line(source, line.offset, line.size).body)
        except OSError as error:
            task = _Task(line, batch, None)
            self._mine[line.id] = task
            self._answers.put(_Answer(task, InputError(str(error))))
            return
        request = Request(Line(line.id, batch.id), batch.api_key, batch.endpoint, body)
        task = self._mine[line.id] = _Task(line, batch, request, may_have_run)
        self._tasks.put(task)
        while len(self._threads) < min(self.slots, len(self._mine)):
            thread = threading.Thread(target=self._work, name="batch-line", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        """Send line after line. A daemon: the process ends without waiting for answers, which it gets another time."""
        with closing(self._sender()) as sender:
            while (task := self._tasks.get()) is not None:
                assert task.request is not None, "what can't be read isn't sent"
                request = task.request
                if task.batch.id in self._over:
                    if not task.may_have_run:
                        self._answers.put(_Answer(task, NotSentError("the batch is over")))
                        continue
                    request = replace(request, line=replace(request.line, is_over=True))
                reply: Reply | Exception
                try:
                    reply = sender.send(request)
                except (NotSentError, UnknownError) as error:
                    reply = error
                except Exception as error:
                    logger.exception("a line of a batch could not be sent")
                    reply = UnknownError(str(error))
                self._answers.put(_Answer(task, reply))


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
