"""The requests of one gateway process: those that wait, those that run, and how they end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from enum import IntEnum
from functools import partial
from typing import Any, Protocol
from uuid import UUID

import structlog

from base.ids import uuid7
from billing.writer.operations import Release, Settle
from gateway.concurrency import ConcurrencyLimiter, Pace, Turns, credit_key
from gateway.errors import faults
from gateway.errors.refusal import Refusal
from gateway.runtime.gateway_lock import GatewayLock
from gateway.runtime.metrics import Metrics
from gateway.runtime.principals import Principal
from gateway.runtime.refusals import Refusals
from inference.types import EngineFault

DRAIN_SECONDS = 0.5  # the server has let requests end before it closes the runtime; the supervisor kills at 10
DRAINED_SECONDS = 1.0

log = structlog.get_logger(__name__)

own_queue: ContextVar[Callable[[float], object] | None] = ContextVar("own_queue", default=None)
"""Told for how many seconds the request that is being admitted waited behind others of its tenant."""


def _waited(metrics: Metrics, seconds: float) -> None:
    metrics.queue_wait.observe(seconds)
    if (tell := own_queue.get()) is not None:
        tell(seconds)


class Running(Protocol):
    """A running generation, as leases and drain need it."""

    lease_until: float  # on the loop's clock

    @property
    def id(self) -> UUID: ...

    @property
    def principal(self) -> Principal: ...

    def cancel(self, fault: EngineFault | None) -> None: ...

    def checkpoint(self) -> Mapping[str, int]: ...

    async def renew_limits(self) -> None: ...


class InBackground(Protocol):
    """A response that this process makes in the background."""

    def cancel(self) -> None: ...

    async def ended(self) -> None: ...


class Stage(IntEnum):
    """The phase of a gateway between its start and its end."""

    SERVING = 0
    LEAVING = 1  # it is about to stop: those who hold connections open are told, and requests are still taken
    DRAINING = 2  # no request is taken any more


class Requests:
    """The requests of this process, which owns their holds as `incarnation`.

    They wait in `gate` for their tenant's number of requests, in `turns` for credit, and lines of batches in `pace` for
    everybody else's. Then they are `live`, or counted in `refusals`; in `closings` what closes them isn't applied yet.
    """

    def __init__(
        self,
        gate: ConcurrencyLimiter,
        refusals: Refusals,
        metrics: Metrics,
        incarnation: UUID | None = None,
        lock: GatewayLock | None = None,
    ) -> None:
        self.incarnation = incarnation or uuid7()
        self.refusals = refusals
        self.gate = gate
        self.turns = Turns()
        self.pace = Pace()
        self.live: dict[UUID, Running] = {}
        self.background: dict[UUID, InBackground] = {}
        self.closings: dict[UUID, Settle | Release] = {}
        self.on_leave: set[Callable[[], object]] = set()  # called once, when this gateway is about to stop
        self.stage = Stage.SERVING
        self._lock = lock
        self._tasks: set[asyncio.Task[Any]] = set()
        self.gate.on_waited = self.turns.on_waited = partial(_waited, metrics)
        metrics.gauges.follow(
            {
                "sluice_open_holds": lambda: len(self.live),
                "sluice_unsettled_requests": lambda: len(self.closings),
                "sluice_queued_requests": lambda: self.gate.waiting + self.turns.waiting,
            }
        )

    @property
    def has_lock(self) -> bool:
        """True while no other gateway can be working on the database."""
        return self._lock is None or self._lock.is_held

    @property
    def is_idle(self) -> bool:
        """True when none runs or waits to, and no work of one is left."""
        return not (self._tasks or len(self.gate))

    def entered(self, generation: Running) -> None:
        """Renew the lease of `generation`'s hold from now on."""
        self.live[generation.id] = generation

    def left(self, generation: Running) -> None:
        """Renew the lease of `generation`'s hold no longer: the hold is closed, or left to the sweep."""
        self.live.pop(generation.id, None)
        principal = generation.principal
        self.turns.wake(credit_key(principal.wallet))
        for terms in principal.budgets.terms:
            self.turns.wake(credit_key(principal.wallet, terms.number))

    def unsettled(self, operation: Settle | Release) -> None:
        """Keep what closes a hold and was not answered in time: the sweep asks for it again, the lease is kept."""
        self.closings[operation.request] = operation

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

    def leave(self) -> None:
        """Tell those who hold connections open that this gateway is about to stop; what runs goes on."""
        if self.stage is Stage.SERVING:
            self.stage = Stage.LEAVING
            for told in list(self.on_leave):
                told()

    async def drain(self, patience: float = DRAIN_SECONDS, last_patience: float = DRAINED_SECONDS) -> bool:
        """Let requests end for `patience` seconds, those that wait or come meanwhile too; then take no new one, refuse
        those that wait and stop those that run.

        False when some had not ended `last_patience` seconds later: their holds are left to the sweep.
        """
        await self._idle(patience)
        self.stage = Stage.DRAINING
        self.gate.close()
        self.turns.close()
        for generation in list(self.live.values()):
            generation.cancel(faults.DRAINING)
        return await self._idle(last_patience)

    async def _idle(self, patience: float) -> bool:
        try:
            async with asyncio.timeout(patience):
                while not self.is_idle:  # noqa: ASYNC110 - once in a process' life, and nobody tells
                    await asyncio.sleep(0.02)
        except TimeoutError:
            return False
        return True
