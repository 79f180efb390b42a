"""One scheduler's steps on a runner: planned, launched, committed; one of them ahead where the runner overlaps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from inference.core.base import BaseScheduler
from inference.core.output import Output
from inference.core.step import StepPlan
from inference.errors import DeviceLostError
from inference.execution.backend import Pending, Runner

log = logging.getLogger(__name__)

Launched = tuple[StepPlan, Pending]


class Stepper:
    """Drives `scheduler` on `runner`. `steps` counts the steps that were launched; `name` is for the log.

    Where the runner overlaps, step N + 1 is planned and launched before the tokens of step N are known, so that the
    device needn't wait for us: then N is committed, whose outputs are one call late.
    """

    def __init__(self, scheduler: BaseScheduler[Any], runner: Runner, name: str) -> None:
        self.scheduler = scheduler
        self.steps = 0
        self._runner = runner
        self._name = name
        self._flight: Launched | None = None

    def advance(self, begin: Callable[[tuple[str, ...]], None]) -> list[Output]:
        """Launch the next step and commit the one in flight, or where nothing overlaps this one; return its outputs.

        `begin` is called with the ids of requests whose first forward pass comes next, before it runs. A step that
        raises is abandoned, with the one that was launched on what it would leave; but DeviceLostError is raised.
        """
        older, newer = self._flight, self._launch(begin)
        self._flight = None
        outputs = self._settle(older, newer) if older is not None else self.scheduler.take_outputs()
        if older is not None and newer is None:
            newer = self._launch(begin)  # perhaps the older one had to be committed first
        if newer is None or not self.scheduler.in_flight:
            return outputs
        if self._runner.overlaps and self.scheduler.unfinished:
            self._flight = newer
            return outputs
        return outputs + self._settle(newer)

    @property
    def settled(self) -> int:
        """How many of the steps that were launched are over."""
        return self.steps if self._flight is None else self.steps - 1

    def _launch(self, begin: Callable[[tuple[str, ...]], None]) -> Launched | None:
        plan = self.scheduler.plan()
        if plan is None:
            return None
        if plan.begins:
            begin(plan.begins)
        self.steps += 1
        return plan, self._runner.launch(plan)

    def _settle(self, step: Launched, newer: Launched | None = None) -> list[Output]:
        plan, pending = step
        try:
            return self.scheduler.commit(plan, pending.wait())
        except DeviceLostError:
            raise  # no step can run any more
        except Exception as error:
            rows = len(plan.rows) + len(plan.encodes)
            log.exception("step of %s failed with %d rows", self._name, rows)
            outputs: list[Output] = []
            if newer is not None:
                with suppress(Exception):  # whatever became of it: it mustn't run any longer
                    newer[1].wait()
                outputs = self.scheduler.abandon(newer[0], error)
            return outputs + self.scheduler.abandon(plan, error)
