"""What a flood costs another tenant on imagined machines, in seconds; `python -m …test_flood_seconds` prints it.

As `benchmarks/engine/fairness.py` measures on a real one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.inference.core.machine import Fabricated, Machine, MachineBench

MACHINES = {
    "135M parameters": Machine(base=0.010, row=0.0012, context=1e-7, token=3.5e-4, pair=2e-8),
    "135M parameters, kernels in C": Machine(base=0.0085, row=0.00045, context=1e-7, token=5e-4, pair=2e-8),
    "0.6B parameters": Machine(base=0.040, row=0.0020, context=1e-7, token=1.1e-3, pair=6e-8),  # the bursts overload it
    "with short steps": Machine(base=0.005, row=0.0004, context=1e-7, token=2e-4, pair=2e-8),
}
FAST = Machine(base=0.002, row=0.00008, context=1e-7, token=1e-4, pair=1e-8)
ROWS = 32
LIGHT_PROMPT = 16


@dataclass
class Run:
    """What came of it: the light tenant's times to first token, seconds in all, and tokens."""

    ttft: list[float] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0

    @property
    def p99(self) -> float:
        return sorted(self.ttft)[-1 - len(self.ttft) // 100]


def flood(
    machine: Machine, *, requests: int, tokens: int, burst: int = 0, is_fair: bool = True, pause: float = 1.0
) -> Run:
    """One tenant's requests come at once, another's each `pause` seconds; with `burst`, so many prompts of 1,000 each
    ten of those.

    The light tenant and the bursts come for as long as the flood takes. Without `is_fair` all are one tenant.
    """
    bench = MachineBench(
        machine,
        blocks=ROWS * (32 + tokens) // 16 + 256,
        block_size=16,
        max_context=2048,
        max_rows=ROWS,
        max_step_tokens=512,
        prefill_chunk=256,
        max_waiting=10_000,
        max_waiting_per_tenant=10_000,
    )
    bench.memory = Fabricated()  # type: ignore[assignment]
    check, bench.scheduler.check = bench.scheduler.check, lambda: None  # type: ignore[method-assign]
    arrivals: dict[str, float] = {}

    def submit(at: float, tenant: str, length: int, answer: int) -> None:
        name = f"{tenant}{len(arrivals)}"
        arrivals[name] = at
        prompt = [len(arrivals) % 90, len(arrivals) // 90, *(i % 89 for i in range(length - 2))]
        bench.submit(name, prompt, answer, tenant=tenant if is_fair else "all")

    for _ in range(requests):
        submit(0.0, "flood", 32, tokens)
    flooding = list(arrivals)
    next_light, next_burst = pause / 2, pause
    run = Run()
    waiting: set[str] = set()
    while bench.scheduler.unfinished:
        flooding = [name for name in flooding if not bench.stories[name].finished]
        while flooding and next_light <= bench.now:
            submit(next_light, "light", LIGHT_PROMPT, 16)
            waiting.add([*arrivals][-1])
            next_light += pause
        while flooding and burst and next_burst <= bench.now:
            for _ in range(burst):
                submit(next_burst, "bursts", 1000, 16)
            next_burst += 10 * pause
        assert bench.step() is not None
        for name in [name for name in waiting if bench.stories[name].tokens]:
            waiting.remove(name)
            run.ttft.append(bench.now - arrivals[name])
        if not bench.scheduler.steps % 50:
            check()
    run.seconds = bench.now
    run.tokens = sum(len(story.prompt) + len(story.tokens) for story in bench.stories.values())
    return run


def full_step(machine: Machine) -> float:
    """What a step of the full batch takes."""
    return machine.seconds([(1, 200)] * ROWS)


def allowed(machine: Machine) -> float:
    """Three steps of the full batch, and the light tenant's own prompt."""
    return 3 * full_step(machine) + machine.token * LIGHT_PROMPT


@pytest.mark.parametrize("burst", [0, 8])
@pytest.mark.parametrize("name", MACHINES)
def test_a_light_tenant_waits_for_three_full_steps_and_its_prompt_at_most(name: str, burst: int) -> None:
    run = flood(MACHINES[name], requests=60, tokens=120, burst=burst)
    assert len(run.ttft) >= 4
    assert run.p99 <= allowed(MACHINES[name])


@pytest.mark.parametrize("burst", [0, 8])
def test_on_a_machine_with_full_steps_of_5_ms_it_waits_for_50_ms_and_its_prompt_at_most(burst: int) -> None:
    """Steps take up to 25 ms there where prompts are read."""
    assert 0.0045 < full_step(FAST) < 0.0055
    run = flood(FAST, requests=200, tokens=120, burst=burst, pause=0.1)
    assert len(run.ttft) >= 40
    assert run.p99 <= 0.050 + FAST.token * LIGHT_PROMPT
    assert burst == 0 or run.p99 > 4 * full_step(FAST), "three full steps would do"


@pytest.mark.parametrize("burst", [0, 8])
def test_fairness_costs_at_most_a_twentieth_of_the_tokens_per_second(burst: int) -> None:
    machine = MACHINES["135M parameters"]
    fair, first_come = (
        flood(machine, requests=60, tokens=120, burst=burst, is_fair=is_fair) for is_fair in (True, False)
    )
    assert fair.tokens / fair.seconds >= 0.95 * first_come.tokens / first_come.seconds


if __name__ == "__main__":
    print("| machine | bursts | order | TTFT p50, s | p99, s | three full steps and the prompt, s | tokens/s |")
    print("|---|---|---|---|---|---|---|")
    for title, one in MACHINES.items():
        for count in (0, 8):
            for is_fair in (False, True):
                done = flood(one, requests=100, tokens=300, burst=count, is_fair=is_fair)
                middle = sorted(done.ttft)[len(done.ttft) // 2]
                print(
                    f"| {title} | {count} | {'fair' if is_fair else 'first come'} | {middle:.3f} | {done.p99:.3f} | "
                    f"{allowed(one):.3f} | {done.tokens / done.seconds:.0f} |"
                )
