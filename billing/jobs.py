"""Periodic work: sweeps over rows, in chunks. A run that is lost, repeated or overlaps another changes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from base import clock
from billing.seals import sealing
from billing.services import budgets, plan_moves, promises, reratings, rollups, sweeps
from billing.statements import months


@dataclass(frozen=True, slots=True)
class Job:
    """Work that is due every `every_s` seconds: `step` does a chunk of it and returns whether more is due now."""

    name: str
    step: Callable[[], bool]
    every_s: float
    _running: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def run(self, *, seconds: float = float("inf"), goes_on: Callable[[], bool] = lambda: True) -> bool:
        """Do chunks until nothing is due, `seconds` are over or `goes_on()` is false; raise what a chunk raises.

        Does nothing and returns False while another thread of this process runs it: that run does the same work.
        """
        if not self._running.acquire(blocking=False):
            return False
        try:
            until = time.monotonic() + seconds
            while self.step() and goes_on() and time.monotonic() < until:
                sweeps.rest()
        finally:
            self._running.release()
        return True


def sweep_job(name: str, sweep: sweeps.Sweep, *, every_s: float) -> Job:
    """Return the job that goes through the sweep's rounds, a round each `every_s` seconds."""
    return Job(name, lambda: sweep.turn() > 0 and sweep.is_under_way, every_s)


def jobs() -> tuple[Job, ...]:
    """Return the periodic work of credit, for one process: a sweep remembers where its round is."""
    return (
        sweep_job("billing.monthly_grants", sweeps.monthly_grants(), every_s=30),
        sweep_job("billing.recurring_grants", sweeps.recurring_grants(), every_s=30),
        sweep_job("billing.expiry", sweeps.expiry(), every_s=5),
        Job("billing.plan_moves", plan_moves.turn, every_s=1),
        Job("billing.reratings", reratings.turn, every_s=1),
        Job("billing.key_budgets", lambda: budgets.take_over() > 0, every_s=60),
        Job("billing.rollups", lambda: rollups.consume_usage() > 0, every_s=1),
        sweep_job("billing.promises", promises.credits_due(), every_s=5),
        Job("billing.key_totals", rollups.add_up_keys, every_s=300),
        sweep_job("billing.seals", sweeps.Sweep(lambda: sealing.due(clock.now()), months.turn), every_s=60),
    )
