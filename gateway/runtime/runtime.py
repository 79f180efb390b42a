"""Everything that one gateway process keeps open while it serves; `gateway.bootstrap` opens it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from base.database.threads import DatabaseThreads
from billing.limits.types import RateStore
from billing.writer.operations import Answer, Operation
from gateway.durable.replays import Replays
from gateway.runtime.catalogue import CurrentCatalogue, Snapshot
from gateway.runtime.engines import Engines
from gateway.runtime.epoch import Epoch
from gateway.runtime.lengths import UsualLengths
from gateway.runtime.metrics import Metrics
from gateway.runtime.principals import Principals
from gateway.runtime.readiness import Look, State, readiness
from gateway.runtime.requests import Requests, Stage


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
        """The number of operations without an answer yet."""
        ...

    async def submit(self, operation: Operation, seconds: float | None = None) -> Answer: ...

    async def close(self) -> None: ...


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
    requests: Requests


class Runtime:
    """The parts that serve requests, and the requests."""

    def __init__(self, parts: Parts, snapshot: Snapshot) -> None:
        self.writer = parts.writer
        self.rates = parts.rates
        self.engines = parts.engines
        self.principals = parts.principals
        self.threads = parts.threads
        self.own_threads = parts.own_threads
        self.metrics = parts.metrics
        self.requests = parts.requests
        self.catalogue = CurrentCatalogue(
            snapshot, parts.epoch, parts.engines, parts.own_threads, self.requests.supervise
        )
        self.lengths = UsualLengths(self.threads)
        self.replays = Replays(self.threads, self.own_threads, self.requests.incarnation, self.requests.supervise)
        self._look = Look()
        self._closers: list[Callable[[], Awaitable[Any]]] = [self._look.close]
        self.metrics.gauges.follow(
            {
                "sluice_writer_oldest_seconds": lambda: self.writer.oldest_age,
                "sluice_writer_queued_operations": lambda: self.writer.waiting,
                "sluice_epoch_age_seconds": lambda: self.catalogue.epoch.age,
            }
        )

    async def close(self) -> None:
        """Drain, then end the loops and close everything that was opened for it."""
        await self.requests.drain()
        while self._closers:
            await self._closers.pop()()

    def on_close(self, closer: Callable[[], Awaitable[Any]]) -> None:
        """Have `close` await `closer()`, before those that were given earlier."""
        self._closers.append(closer)

    async def state(self) -> State:
        """Return this gateway as its checks look at it."""
        looked, has_ready = await self._look.findings(), self.engines.any_ready()
        return State(
            is_draining=self.requests.stage is not Stage.SERVING,
            has_lock=self.requests.has_lock,
            writer_age=self.writer.oldest_age,
            is_epoch_fresh=self.catalogue.epoch.is_fresh,
            has_ready=has_ready,
            unread=self.catalogue.examples.unread(self.catalogue.snapshot.catalogue, is_serving=has_ready),
            share=self.rates.trouble,
            looked=looked,
        )

    async def readiness(self) -> dict[str, str]:
        """Return each check that decides with what is wrong, "" where nothing is."""
        return readiness(await self.state())

    def notes(self, *, for_operators: bool) -> dict[str, str]:
        """Return what is worth knowing of a gateway that can work all the same; `for_operators` with reasons."""
        notes = {"limits": self.rates.trouble} if self.rates.trouble else {}
        if for_operators:
            found = {entry.deployment.name: entry.engine.info for entry in self.engines.entries()}
            slower = {name: info.details.get("slower") for name, info in found.items() if info is not None}
            notes |= {name: f"three to five times slower: {reason}" for name, reason in slower.items() if reason}
        return notes

    def deployments(self) -> dict[str, str]:
        """Return each deployment's state by name: "ready" when one of its replicas is, or why the first isn't, with
        details.
        """
        states: dict[str, str] = {}
        for entry in self.engines.entries():
            if not entry.obstacle or entry.deployment.name not in states:
                reasons = [entry.obstacle, entry.health.detail] if entry.obstacle else ["ready"]
                states[entry.deployment.name] = ": ".join(filter(None, reasons))
        return states
