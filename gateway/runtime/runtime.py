"""Everything that one gateway process keeps open while it serves; `gateway.bootstrap` opens it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

import structlog
from django.conf import settings

from base.database.threads import DatabaseThreads
from base.ids import uuid7
from billing.limits.types import RateStore
from billing.writer.operations import Answer, Operation, Release, Settle
from gateway.concurrency.limiter import ConcurrencyLimiter
from gateway.concurrency.pace import Pace
from gateway.concurrency.turns import Turns, credit_key
from gateway.durable.replays import Replays
from gateway.errors import faults
from gateway.errors.refusal import Refusal
from gateway.runtime import readiness
from gateway.runtime.conversations import MOST_CONVERSATIONS, Key
from gateway.runtime.engines import Engines
from gateway.runtime.epoch import Epoch, EpochStaleError
from gateway.runtime.examples import Examples
from gateway.runtime.gateway_lock import GatewayLock
from gateway.runtime.metrics import Metrics
from gateway.runtime.principal import Principal
from gateway.runtime.principals import Principals
from gateway.runtime.refusals import Refusals
from gateway.runtime.snapshot import Snapshot, load_snapshot
from gateway.runtime.tenant_cache import TenantCache
from inference.types import EngineFault
from routing.types import Kept

SNAPSHOT_SECONDS = 1.0
DRAIN_SECONDS = 0.5  # the server has let requests end before it closes the runtime; the supervisor kills at 10
DRAINED_SECONDS = 1.0

log = structlog.get_logger(__name__)


class Ledger(Protocol):
    """The writer as the data plane sees it.

    Applies operations in groups and answers each one; raises WriterError (WriterBusyError when it is full).
    """

    @property
    def oldest_age(self) -> float:
        """Seconds for which the oldest unanswered operation has waited."""
        ...

    @property
    def waiting(self) -> int:
        """How many operations have no answer yet."""
        ...

    async def submit(self, operation: Operation, seconds: float | None = None) -> Answer: ...

    async def close(self) -> None: ...


class Running(Protocol):
    """A running generation, as leases and drain need it."""

    id: UUID
    principal: Principal
    lease_until: float  # on the loop's clock

    def cancel(self, fault: EngineFault | None) -> None: ...

    def checkpoint(self) -> Mapping[str, int]: ...

    async def renew_limits(self) -> None: ...


class InBackground(Protocol):
    """A response that this process makes in the background."""

    def cancel(self) -> None: ...

    async def ended(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a runtime; tests pass doubles."""

    writer: Ledger
    rates: RateStore
    engines: Engines
    epoch: Epoch
    principals: Principals
    threads: DatabaseThreads
    own_threads: DatabaseThreads
    metrics: Metrics
    refusals: Refusals
    gate: ConcurrencyLimiter = field(default_factory=ConcurrencyLimiter)


class Runtime:
    """The parts that serve requests, and the generations that run."""

    def __init__(
        self, parts: Parts, snapshot: Snapshot, incarnation: UUID | None = None, lock: GatewayLock | None = None
    ) -> None:
        self.writer = parts.writer
        self.rates = parts.rates
        self.engines = parts.engines
        self.epoch = parts.epoch
        self.principals = parts.principals
        self.threads = parts.threads
        self.own_threads = parts.own_threads
        self.metrics = parts.metrics
        self.refusals = parts.refusals
        self.snapshot = snapshot
        self.incarnation = incarnation or uuid7()
        self.gate = parts.gate
        self.examples = Examples(
            parts.engines, seconds=settings.SLUICE_EXAMPLES_SECONDS, model=settings.SLUICE_EXAMPLES_MODEL
        )
        self.conversations: TenantCache[Key, Kept] = TenantCache(MOST_CONVERSATIONS)
        self.turns = Turns()
        self.pace = Pace()
        self.replays = Replays(self.threads, self.own_threads, self.incarnation, self.supervise)
        self.lock = lock
        self.is_draining = False
        self.is_leaving = False
        self.on_leave: set[Callable[[], object]] = set()  # called once, when this gateway is about to stop
        self.live: dict[UUID, Running] = {}
        self.background: dict[UUID, InBackground] = {}
        self.gate.on_waited = self.turns.on_waited = self.metrics.queue_wait.observe
        self.metrics.gauges.follow(
            {
                "sluice_open_holds": lambda: len(self.live),
                "sluice_unsettled_requests": lambda: len(self.closings),
                "sluice_queued_requests": lambda: self.gate.waiting + self.turns.waiting,
                "sluice_writer_oldest_seconds": lambda: self.writer.oldest_age,
                "sluice_writer_queued_operations": lambda: self.writer.waiting,
                "sluice_epoch_age_seconds": lambda: self.epoch.age,
            }
        )
        self.closings: dict[UUID, Settle | Release] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._refreshed = asyncio.Event()
        self._look = readiness.Look()
        self._closers: list[Callable[[], Awaitable[Any]]] = [self._look.close]

    @property
    def has_lock(self) -> bool:
        """True while no other gateway can be working on the database."""
        return self.lock is None or self.lock.is_held

    async def close(self) -> None:
        """Drain, then end the loops and close everything that was opened for it."""
        await self.drain()
        while self._closers:
            await self._closers.pop()()

    def on_close(self, closer: Callable[[], Awaitable[Any]]) -> None:
        """Have `close` await `closer()`, before those that were given earlier."""
        self._closers.append(closer)

    # -- generations ----------------------------------------------------------------------------------------------

    def entered(self, generation: Running) -> None:
        """Renew the lease of `generation`'s hold from now on."""
        self.live[generation.id] = generation

    def left(self, generation: Running) -> None:
        """Renew the lease of `generation`'s hold no longer: the hold is closed, or left to the sweep."""
        self.live.pop(generation.id, None)
        principal = generation.principal
        self.turns.wake(credit_key(principal.wallet))
        if principal.budget is not None:
            self.turns.wake(credit_key(principal.wallet, principal.budget))

    def unsettled(self, operation: Settle | Release) -> None:
        """Keep what closes a hold and was not answered in time: the sweep asks for it again, the lease is kept."""
        self.closings[operation.request] = operation

    def leave(self) -> None:
        """Tell those who hold connections open that this gateway is about to stop; what runs goes on."""
        if not self.is_leaving:
            self.is_leaving = True
            for told in list(self.on_leave):
                told()

    def supervise(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` to its end whatever becomes of its caller; what it raises is logged unless a client is told."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Refusal):
            log.error("task_failed", exc_info=error)

    # -- the snapshot ---------------------------------------------------------------------------------------------

    async def current_snapshot(self) -> Snapshot:
        """Return the snapshot of the current epoch, waiting a moment for it; raise a 503 Refusal without one."""
        try:
            if not await self._is_snapshot_current():
                async with asyncio.timeout(SNAPSHOT_SECONDS):
                    while not await self._is_snapshot_current():
                        await self._refreshed.wait()
        except (EpochStaleError, TimeoutError) as error:
            raise faults.catalogue_unavailable() from error
        return self.snapshot

    async def _is_snapshot_current(self) -> bool:
        return self.snapshot.epoch == await self.epoch.current() and not self.is_snapshot_old

    @property
    def is_snapshot_old(self) -> bool:
        """True when a published price has come into force, by the database's clock, since the snapshot was read."""
        until, now = self.snapshot.good_until, self.epoch.now
        return until is not None and now is not None and now >= until

    async def refresh(self, epoch: int) -> None:
        """Read the snapshot anew and have exactly its engines open; `epoch` was read before."""
        snapshot = await self.own_threads.run(lambda: load_snapshot(epoch))
        self.engines.follow(snapshot.catalogue.all_deployments(), snapshot.unfit())
        self.supervise(self.engines.look())
        self.snapshot = snapshot
        self._refreshed.set()
        self._refreshed = asyncio.Event()

    async def follow_epoch(self) -> None:
        """Refresh the snapshot whenever the epoch moved on or a new price came into force, until cancelled."""
        while True:
            epoch = await self.epoch.next()
            if epoch == self.snapshot.epoch and not self.is_snapshot_old:
                continue
            try:
                await self.refresh(epoch)
            except Exception:
                log.exception("refresh_failed")  # the next reading tries again; until then admission refuses

    # -- readiness ------------------------------------------------------------------------------------------------

    async def readiness(self) -> dict[str, str]:
        """Return each check with what is wrong, "" where nothing is."""
        return await readiness.readiness(
            writer_age=self.writer.oldest_age,
            epoch=self.epoch,
            engines=self.engines,
            look=self._look,
            is_draining=self.is_draining or self.is_leaving,
            has_lock=self.has_lock,
            unread=lambda is_serving: self.examples.unread(self.snapshot.catalogue, is_serving=is_serving),
        )

    def notes(self) -> dict[str, str]:
        """Return what is worth knowing of a gateway that can work all the same."""
        return {"limits": self.rates.trouble} if self.rates.trouble else {}

    def deployments(self) -> dict[str, str]:
        """Return each deployment's state by name: "ready" when one of its replicas is, or why the first isn't."""
        states: dict[str, str] = {}
        for entry in self.engines.entries():
            if not entry.obstacle or entry.deployment.name not in states:
                states[entry.deployment.name] = entry.obstacle or "ready"
        return states

    # -- the end --------------------------------------------------------------------------------------------------

    async def drain(self, patience: float = DRAIN_SECONDS, last_patience: float = DRAINED_SECONDS) -> bool:
        """Let requests end for `patience` seconds, those that wait or come meanwhile too; then take no new one, refuse
        those that wait and stop those that run.

        False when some had not ended `last_patience` seconds later: their holds are left to the sweep.
        """
        await self._idle(patience)
        self.is_draining = True
        self.gate.close()
        self.turns.close()
        for generation in list(self.live.values()):
            generation.cancel(faults.DRAINING)
        return await self._idle(last_patience)

    async def _idle(self, patience: float) -> bool:
        try:
            async with asyncio.timeout(patience):
                while self._tasks or len(self.gate):  # noqa: ASYNC110 - once in a process' life, and nobody tells
                    await asyncio.sleep(0.02)
        except TimeoutError:
            return False
        return True
