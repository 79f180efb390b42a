"""What a flood of one tenant costs another, counted in steps; `python -m tests.inference.core.test_flood` prints it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.inference.core.driving import Bench
from tests.inference.core.machine import Fabricated
from tests.inference.sweeps import first

STEPS_PER_SECOND = 10  # a step of the full batch takes 100 ms
SERVER: dict[str, Any] = {
    "blocks": 1200,
    "block_size": 16,
    "max_context": 2048,
    "max_rows": 32,
    "max_step_tokens": 512,
    "prefill_chunk": 256,
    "max_waiting": 1000,
    "max_waiting_per_tenant": 1000,
}
ALLOWED = 3  # steps of the full batch until the first token, the prompt's own one included


@dataclass
class Run:
    """What came of it. `ttft` is in steps, the one that ran when the request came included."""

    bench: Bench
    ttft: list[int] = field(default_factory=list)
    steps: int = 0

    @property
    def p99(self) -> int:
        return sorted(self.ttft)[-1 - len(self.ttft) // 100]

    @property
    def tokens(self) -> int:
        return sum(len(story.tokens) for story in self.bench.stories.values())


def flood(
    *,
    burst: int = 0,
    seconds: int = 40,
    light: str = "light",
    answer: int = 8,
    bursts: str = "bursts",
    **changes: object,
) -> Run:
    """100 requests of 300 tokens come at once, and each second one of `answer` tokens of the tenant `light`.

    Ends when all is done. With `burst`, a third tenant sends so many prompts of 1,500 tokens every 10 s.
    """
    bench = Bench(**{**SERVER, **changes})
    bench.memory = Fabricated()  # type: ignore[assignment]
    check, bench.scheduler.check = bench.scheduler.check, lambda: None  # type: ignore[method-assign]
    run = Run(bench)
    for number in range(100):
        bench.submit(f"flood{number}", [number % 90, *range(29)], 300, tenant="flood")
    waiting: dict[str, int] = {}
    for number in range(100_000):
        comes = number < seconds * STEPS_PER_SECOND
        if comes and number % STEPS_PER_SECOND == 5:
            name = f"light{number}"
            bench.submit(name, [number % 90, number // 90, 1, 2, 3, 4, 5, 6], answer, tenant=light)
            waiting[name] = run.steps
        for more in range(burst if comes and number % (10 * STEPS_PER_SECOND) == 1 else 0):
            prompt = [(number + more) % 90, *(i % 97 for i in range(1499))]
            bench.submit(f"burst{number}-{more}", prompt, 20, tenant=bursts)
        if not number % 50:
            check()
        bench.now += 1 / STEPS_PER_SECOND
        if bench.step() is None:
            assert not comes, "the flood ended early"
            break
        run.steps += 1
        for name in [name for name in waiting if bench.stories[name].tokens]:
            run.ttft.append(1 + run.steps - waiting.pop(name))
    assert not waiting
    assert not bench.scheduler.unfinished
    return run


CASES: dict[str, dict[str, Any]] = {
    "flood": {},
    "bursts of long prompts": {"burst": 12},
    "answers that overlap": {"answer": 35},
    "answers that overlap, bursts": {"answer": 35, "burst": 12},
    "small pool": {"blocks": 300},
    "small pool, bursts": {"blocks": 300, "burst": 4},
    "no prefix cache": {"prefix_cache": False},
    "no prefix cache, bursts": {"prefix_cache": False, "burst": 12},
}


@pytest.mark.parametrize("case", CASES)
def test_a_light_tenant_hardly_waits_beside_a_flood(case: str) -> None:
    run = flood(**CASES[case])
    assert len(run.ttft) == 40
    assert run.p99 <= ALLOWED


@pytest.mark.slow
@pytest.mark.parametrize("case", first(CASES))
def test_fairness_costs_at_most_a_twentieth_of_the_throughput(case: str) -> None:
    """Or a tenth in a pool that doesn't hold what runs, where it decides who is computed again."""
    fair, first_come = flood(**CASES[case]), flood(**CASES[case], light="flood", bursts="flood")
    assert fair.tokens == first_come.tokens
    assert fair.steps <= first_come.steps / (0.9 if "blocks" in CASES[case] else 0.95)


if __name__ == "__main__":
    print("| case | TTFT p50, steps | p99 | tokens a step | first come: p50 | p99 | tokens a step | preempted |")
    print("|---|---|---|---|---|---|---|---|")
    for title, options in CASES.items():
        ours, fcfs = flood(**options), flood(**options, light="flood", bursts="flood")
        cells = [title]
        for one in (ours, fcfs):
            cells += [str(sorted(one.ttft)[len(one.ttft) // 2]), str(one.p99), f"{one.tokens / one.steps:.2f}"]
        print("|", " | ".join([*cells, str(ours.bench.scheduler.stats().preemptions)]), "|")
