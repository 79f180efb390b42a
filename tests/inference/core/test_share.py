"""Simulations: what competing tenants get of one engine, against the bound of weighted virtual counters."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from tests.inference.core.driving import Bench

BOUNDS = {
    "blocks": 41,
    "block_size": 4,
    "max_context": 40,
    "max_rows": 6,
    "max_step_tokens": 24,
    "prefill_chunk": 12,
    "prefix_cache": False,
}
LONGEST_PROMPT = 20
BATCH = 40 * 4  # tokens that the running batch can hold at most


class Tenant:
    """A tenant that always has requests waiting (while it is on), of its own kind."""

    def __init__(self, bench: Bench, name: str, weight: int, prompt: tuple[int, int], output: tuple[int, int]) -> None:
        self.bench = bench
        self.name = name
        self.weight = weight
        self.kind = prompt, output
        self.random = random.Random(name)
        self.on = True
        self.sent = 0

    def keep_waiting(self) -> None:
        while self.on and self.bench.scheduler.waiting.queue.waiting(self.name) < 3:
            prompt, output = self.kind
            self.bench.submit(
                f"{self.name}{self.sent}",
                [self.random.randrange(90) for _ in range(self.random.randint(*prompt))],
                self.random.randint(*output),
                tenant=self.name,
                weight=self.weight,
            )
            self.sent += 1

    @property
    def service(self) -> Fraction:
        """What it got for its weight, in priced tokens, counted from the outside."""
        total = 0
        for number in range(self.sent):
            story = self.bench.stories[f"{self.name}{number}"]
            total += (len(story.prompt) if story.started else 0) + 2 * len(story.tokens)
        return Fraction(total * 1000, self.weight)


def simulate(bench: Bench, tenants: list[Tenant], steps: int) -> Fraction:
    """Run with everybody backlogged; return the greatest difference of service for weight ever seen."""
    worst = Fraction(0)
    start = [tenant.service for tenant in tenants]
    for _ in range(steps):
        for tenant in tenants:
            tenant.keep_waiting()
        bench.step()
        gained = [tenant.service - before for tenant, before in zip(tenants, start, strict=True)]
        worst = max(worst, max(gained) - min(gained))
    return worst


def bound(tenants: list[Tenant]) -> Fraction:
    lightest = min(tenant.weight for tenant in tenants)
    return Fraction(2 * max(LONGEST_PROMPT, 2 * BATCH) * 1000, lightest)


SHORT = ((2, 6), (2, 6))
LONG = ((12, LONGEST_PROMPT), (10, 20))


@pytest.mark.parametrize(
    ("weights", "kinds"),
    [
        ((1000, 1000), (SHORT, LONG)),
        ((1000, 3000), (LONG, LONG)),
        ((500, 1000, 2000), (SHORT, LONG, SHORT)),
        ((1000, 1000, 1000, 1000), (SHORT, LONG, SHORT, LONG)),
    ],
)
def test_backlogged_tenants_get_service_by_weight_within_the_bound(weights, kinds):
    bench = Bench(**BOUNDS)
    tenants = [
        Tenant(bench, f"t{number}-", weight, *kind)
        for number, (weight, kind) in enumerate(zip(weights, kinds, strict=True))
    ]
    limit = bound(tenants)
    worst = simulate(bench, tenants, 1200)
    least = min(tenant.service for tenant in tenants)
    assert least > 2 * limit, "the run was too short to show anything"
    assert worst <= limit


def test_a_tenant_that_was_idle_neither_banks_credit_nor_waits():
    bench = Bench(**BOUNDS)
    busy, idle = Tenant(bench, "busy-", 1000, *LONG), Tenant(bench, "idle-", 1000, *LONG)
    idle.on = False
    simulate(bench, [busy, idle], 400)
    idle.on = True
    assert busy.service > 2 * bound([busy, idle])
    assert simulate(bench, [busy, idle], 400) <= bound([busy, idle])


def test_a_flood_of_one_tenant_does_not_hold_up_another():
    bench = Bench(**BOUNDS, max_waiting=200, max_waiting_per_tenant=100)
    for number in range(100):
        bench.submit(f"flood{number}", [number % 90] * 8, 8, tenant="flood")
    bench.step()
    bench.submit("one", [91] * 8, 4, tenant="polite")
    bench.run(until=lambda: bool(bench.stories["one"].finished))
    ended = sum(bool(story.finished) for name, story in bench.stories.items() if name != "one")
    assert ended < 20
