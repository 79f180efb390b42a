"""A bench whose clock goes on as an imagined machine works."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from inference.core.step import RowResult, StepPlan, StepResult
from tests.inference.core.driving import Bench


@dataclass(frozen=True)
class Machine:
    """What a step costs, in seconds: itself, its decode rows, their context, its prompt tokens, and pairs of those."""

    base: float
    row: float
    context: float
    token: float
    pair: float

    def seconds(self, rows: Iterable[tuple[int, int]]) -> float:
        """What a step of `rows` takes, each its number of tokens and the position of the first."""
        total = self.base
        for count, start in rows:
            if count == 1:
                total += self.row + self.context * start
            else:
                total += self.token * count + self.pair * (count * start + count * (count + 1) / 2)
        return total


class MachineBench(Bench):
    """A bench on which each step takes the time that `machine` needs for it."""

    def __init__(self, machine: Machine, **bounds: Any) -> None:
        super().__init__(**bounds)
        self.machine = machine

    def finish(self, plan: StepPlan) -> None:
        self.now += self.machine.seconds((len(row.ids), row.start) for row in plan.rows)
        super().finish(plan)


class Fabricated:
    """A model whose answers cost nothing and mean nothing."""

    def run(self, plan: StepPlan) -> StepResult:
        return StepResult(tuple(RowResult((1,) if row.samples else ()) for row in plan.rows))
