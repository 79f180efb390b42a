"""What a burst of small prompts waits for on imagined machines, in seconds; `python -m …test_burst_seconds` prints it.

As `benchmarks/engine/over_http.py` measures the whole server: sixteen streams at once on a small model.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pytest

from inference.core.config import SchedulerConfig
from inference.core.prefill import SHORT
from inference.core.step import StepPlan
from tests.inference.core.machine import Fabricated, Machine, MachineBench

MACHINES = {
    "fast": Machine(base=0.0015, row=1.2e-4, context=1e-8, token=7e-5, pair=1e-9),
    "half as fast at prompts": Machine(base=0.0015, row=1.2e-4, context=1e-8, token=1.4e-4, pair=1e-9),
}
COLD_STEPS, COLD = 2, 14  # a process's first steps with prompts, and how many times as long they take
STREAMS, PROMPT, NEW = 16, 75, 64
SETTING = SchedulerConfig(blocks=2, block_size=16, max_context=16, vocab_size=9).prefill_seconds
SLOW = Machine(base=0.040, row=0.0025, context=1e-7, token=2.4e-3, pair=6e-8)  # bf16 of 0.6B parameters on two cores


class ColdBench(MachineBench):
    """A bench whose first steps with prompts take longer, as those of a process that has just begun do."""

    cold_steps = COLD_STEPS

    def finish(self, plan: StepPlan) -> None:
        if self.cold_steps and any(row.count > 1 for row in plan.rows):
            self.cold_steps -= 1
            self.now += (COLD - 1) * self.machine.seconds((len(row.ids), row.start) for row in plan.rows)
        super().finish(plan)


@dataclass(frozen=True)
class Burst:
    """What came of it: each stream's time to first token, the longest step that held decoding rows, and the steps until
    all had their first token.
    """

    ttft: list[float]
    longest: float
    steps: int

    @property
    def p50(self) -> float:
        return self.ttft[len(self.ttft) // 2]


def burst(
    machine: Machine,
    *,
    gap: float,
    prefill_seconds: float = SETTING,
    max_step_tokens: int = 512,
    bench_of: type[MachineBench] = MachineBench,
) -> Burst:
    """Sixteen streams, one each `gap` seconds, on a machine whose costs an earlier burst has told."""
    bench = bench_of(
        machine,
        blocks=400,
        block_size=16,
        max_context=2048,
        max_rows=32,
        max_step_tokens=max_step_tokens,
        prefill_chunk=256,
        prefill_seconds=prefill_seconds,
        max_waiting=100,
        max_waiting_per_tenant=100,
        prefix_cache=False,
    )
    bench.memory = Fabricated()  # type: ignore[assignment]
    for turn in ("earlier", "now"):
        begin = bench.now
        arrivals = deque((begin + i * gap, f"{turn}{i}") for i in range(STREAMS))
        waiting = {name: at for at, name in arrivals}
        ttft: list[float] = []
        longest, steps = 0.0, 0
        while arrivals or bench.scheduler.unfinished:
            if not bench.scheduler.unfinished:
                bench.now = max(bench.now, arrivals[0][0])
            while arrivals and arrivals[0][0] <= bench.now:
                bench.submit(arrivals.popleft()[1], [7] * PROMPT, NEW)
            before, steps = bench.now, steps + bool(waiting)
            plan = bench.step()
            assert plan is not None
            if any(row.count == 1 for row in plan.rows):
                longest = max(longest, bench.now - before)
            begun = [name for name in waiting if name in bench.stories and bench.stories[name].tokens]
            ttft.extend(bench.now - waiting.pop(name) for name in begun)
        found = Burst(sorted(ttft), longest, steps)
    return found


@pytest.mark.parametrize("gap", [0.0, 0.003, 0.006])
@pytest.mark.parametrize("name", MACHINES)
def test_a_bounded_step_costs_a_burst_little_and_keeps_decoding_rows_going(name: str, gap: float) -> None:
    """Beside one step for all prompts that wait, however long: what a step's bound can cost at all."""
    bounded = burst(MACHINES[name], gap=gap)
    unbounded = burst(MACHINES[name], gap=gap, prefill_seconds=0.0, max_step_tokens=4096)
    assert bounded.ttft[-1] <= 1.12 * unbounded.ttft[-1]
    assert bounded.p50 <= 1.02 * unbounded.p50
    assert bounded.longest <= 1.15 * SHORT  # what a step takes is predicted, not known


@pytest.mark.parametrize("gap", [0.0, 0.003, 0.006])
@pytest.mark.parametrize("name", MACHINES)
def test_a_cold_first_step_makes_the_next_burst_little_longer(name: str, gap: float) -> None:
    warm, cold = burst(MACHINES[name], gap=gap), burst(MACHINES[name], gap=gap, bench_of=ColdBench)
    assert cold.steps <= 1.25 * warm.steps
    assert cold.ttft[-1] <= 1.06 * warm.ttft[-1]


def test_where_full_steps_are_long_prompts_take_up_to_half_of_one() -> None:
    """With 50 ms for prompts in any case, 32 rows of decoding and weights read again for every twenty tokens were
    slower than steps of prompts alone.
    """
    full = SLOW.seconds([(1, PROMPT)] * 32)
    found, shorter = burst(SLOW, gap=0.05), burst(SLOW, gap=0.05, prefill_seconds=0.05)
    assert found.longest <= 1.15 * 1.5 * full
    assert found.steps <= 0.75 * shorter.steps
    assert found.p50 <= 0.9 * shorter.p50


if __name__ == "__main__":
    print("| machine | a stream each | steps | TTFT p50, ms | longest, ms | longest step beside decoding rows, ms |")
    print("|---|---|---|---|---|---|")
    for title, one in MACHINES.items():
        for each in (0.0, 0.003, 0.006):
            for label, kind in (("", {}), ("all in a step: ", {"prefill_seconds": 0.0, "max_step_tokens": 4096})):
                done = burst(one, gap=each, **kind)  # type: ignore[arg-type]
                print(
                    f"| {label}{title} | {1000 * each:.0f} ms | {done.steps} | {1000 * done.p50:.1f} | "
                    f"{1000 * done.ttft[-1]:.1f} | {1000 * done.longest:.1f} |"
                )
