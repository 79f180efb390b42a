"""Everything that one gateway process keeps open while it serves: opened and closed by the ASGI lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog
from django.utils import timezone

from billing.ids import uuid7
from billing.limits.types import RateStore
from gateway.errors import faults
from gateway.generation.ledger import Ledger
from gateway.generation.limits import Gate
from gateway.runtime.engines import Engines
from gateway.runtime.epoch import Epoch, EpochStaleError
from gateway.runtime.metrics import Metrics
from gateway.runtime.principals import Principals
from gateway.runtime.snapshot import Snapshot, load_snapshot
from gateway.runtime.threads import DatabaseThreads

if TYPE_CHECKING:
    from gateway.generation.generation import Generation

SNAPSHOT_SECONDS = 1.0
WRITER_BEHIND_SECONDS = 5.0
DRAIN_SECONDS = 0.5  # the server has let requests end for 8 s before it closes the runtime; the supervisor kills at 10
DRAINED_SECONDS = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a runtime works with; tests put doubles here."""

    writer: Ledger
    rates: RateStore
    engines: Engines
    epoch: Epoch
    principals: Principals
    threads: DatabaseThreads
    own_threads: DatabaseThreads
    metrics: Metrics


class Runtime:
    """The parts that serve requests, and the generations that run."""

    def __init__(self, parts: Parts, snapshot: Snapshot, incarnation: UUID | None = None) -> None:
        self.writer = parts.writer
        self.rates = parts.rates
        self.engines = parts.engines
        self.epoch = parts.epoch
        self.principals = parts.principals
        self.threads = parts.threads
        self.own_threads = parts.own_threads
        self.metrics = parts.metrics
        self.snapshot = snapshot
        self.incarnation = incarnation or uuid7()
        self.gate = Gate()
        self.is_draining = False
        self.live: dict[UUID, Generation] = {}
        self.metrics.follow_holds(lambda: len(self.live))
        self._tasks: set[asyncio.Task[Any]] = set()
        self._refreshed = asyncio.Event()
        self._closers: list[Any] = []

    @classmethod
    async def open(cls, home: Path | None = None) -> Runtime:
        """Return a runtime that serves from the settings' database; on an embedded home also take that home's lock.

        Raise HomeInUseError when another gateway has it.
        """
        from gateway.bootstrap import open_runtime

        return await open_runtime(home)

    async def close(self) -> None:
        """Drain, then end the loops and close everything that `open` opened."""
        await self.drain()
        while self._closers:
            await self._closers.pop()()

    def on_close(self, closer: Any) -> None:
        """Have `close` await `closer()`, before those that were given earlier."""
        self._closers.append(closer)

    # -- generations ----------------------------------------------------------------------------------------------

    def entered(self, generation: Generation) -> None:
        """Keep `generation`'s hold from now on."""
        self.live[generation.id] = generation
        self.engines.entered(generation.engine)

    def left(self, generation: Generation) -> None:
        """Keep `generation`'s hold no longer: it is closed, or the sweep's."""
        if self.live.pop(generation.id, None) is not None:
            self.gate.leave(generation.principal)
            self.engines.left(generation.engine)

    def supervise(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` to its end whatever becomes of its caller, and log what it raises."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task_failed", exc_info=error)

    # -- the snapshot ---------------------------------------------------------------------------------------------

    async def current_snapshot(self) -> Snapshot:
        """Return the snapshot of the current epoch, waiting a moment for it; raise a 503 Refusal without one."""
        try:
            async with asyncio.timeout(SNAPSHOT_SECONDS):
                while self.snapshot.epoch != await self.epoch.current() or self.is_snapshot_old:
                    await self._refreshed.wait()
        except (EpochStaleError, TimeoutError) as error:
            raise faults.catalogue_unavailable() from error
        return self.snapshot

    @property
    def is_snapshot_old(self) -> bool:
        """True when a published price has come into force since the snapshot was read."""
        until = self.snapshot.good_until
        return until is not None and timezone.now() >= until

    async def refresh(self, epoch: int) -> None:
        """Read the snapshot anew and have exactly its engines open; `epoch` was read before."""
        snapshot = await self.own_threads.run(lambda: load_snapshot(epoch))
        self.engines.follow(snapshot.catalogue.all_deployments())
        self.supervise(self.engines.look())
        self.snapshot = snapshot
        self._refreshed.set()
        self._refreshed = asyncio.Event()

    # -- readiness ------------------------------------------------------------------------------------------------

    async def readiness(self) -> dict[str, str]:
        """Return each check with what is wrong, "" where nothing is."""
        behind = self.writer.oldest_age > WRITER_BEHIND_SECONDS
        return {
            "server": "draining" if self.is_draining else "",
            "database": "the ledger writer is behind" if behind else "",
            "triggers": await self._missing_triggers(),
            "epoch": "" if self.epoch.is_fresh else "the catalogue epoch can't be read",
            "deployments": "" if self.engines.any_ready() else "no deployment is ready",
        }

    def deployments(self) -> dict[str, str]:
        """Return each deployment's state by name: "ready", or why it isn't."""
        return {
            entry.deployment.name: "ready" if entry.health.ready else entry.health.reason
            for entry in self.engines.entries()
        }

    async def _missing_triggers(self) -> str:
        from gateway.runtime.readiness import missing_triggers

        try:
            missing = await asyncio.wait_for(self.threads.run(missing_triggers), SNAPSHOT_SECONDS)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            return f"can't be read: {type(error).__name__}"
        return f"missing: {', '.join(missing)}" if missing else ""

    # -- the end --------------------------------------------------------------------------------------------------

    async def drain(self, patience: float = DRAIN_SECONDS, last_patience: float = DRAINED_SECONDS) -> bool:
        """Take no new request and wait for those that run; after `patience` seconds stop them and wait for settling.

        False when some had not ended `last_patience` seconds later: their holds are left to the sweep.
        """
        self.is_draining = True
        if not await self._idle(patience):
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
