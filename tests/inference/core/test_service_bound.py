"""A bound, near that of weighted virtual counters, between tenants that always wait; and nobody starves."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.types import FinishReason
from tests.inference.core.driving import Bench
from tests.inference.core.machine import Machine, MachineBench

BLOCK, CONTEXT = 4, 40
LONGEST_PROMPT, LONGEST_OUTPUT = 20, 20
STEPS = 200


class Client:
    """A tenant with requests of random sizes, of which some are cancelled, or pause and are extended or not."""

    def __init__(self, bench: Bench, name: str, weight: int, rng: random.Random) -> None:
        self.bench, self.name, self.weight, self.rng = bench, name, weight, rng
        self.prompts = sorted(rng.randint(1, LONGEST_PROMPT) for _ in range(2))
        self.outputs = sorted(rng.randint(1, LONGEST_OUTPUT) for _ in range(2))
        self.names: list[str] = []
        self.ended_service = 0

    def submit(self) -> None:
        name = f"{self.name}-{len(self.names)}"
        prompt = [self.rng.randrange(90) for _ in range(self.rng.randint(*self.prompts))]
        allowance = self.rng.choice([1000, 1000, 3])
        self.bench.submit(
            name, prompt, self.rng.randint(*self.outputs), tenant=self.name, weight=self.weight, allowance=allowance
        )
        self.names.append(name)

    def keep_waiting(self) -> None:
        while (
            self.bench.scheduler.waiting.queue.waiting(self.name) < 9
        ):  # more than a step admits, so that it never ends to wait
            self.submit()

    def disturb(self) -> None:
        """Cancel one of its requests, or extend the oldest that runs, now and then.

        Oldest first, since one that pauses for ever keeps its tenant's blocks and rows, and so takes its share of them.
        """
        if self.names and self.rng.random() < 0.1:
            self.bench.scheduler.cancel(self.rng.choice(self.names[-8:]), FinishReason.CANCELLED)
        if self.names and self.rng.random() < 0.3:
            stories = self.bench.stories
            running = [name for name in self.names if stories[name].started and not stories[name].finished]
            if running:
                self.bench.scheduler.extend(running[0], 1000, self.rng.random() < 0.5)

    @property
    def service(self) -> Fraction:
        """What it got for its weight in priced tokens, told from outputs alone: of a prompt in work, the whole."""
        total = 0
        for name in self.names:
            story = self.bench.stories[name]
            prompt = story.finished[0].usage.prompt if story.finished else len(story.prompt) if story.started else 0
            total += prompt + 2 * len(story.tokens)
        return Fraction(total * 1000, self.weight)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    weights=st.sampled_from([(1000, 1000), (1000, 3000), (500, 1000)]),
    blocks=st.sampled_from([13, 21, 41]),
    rows=st.integers(2, 8),
    seconds=st.tuples(st.sampled_from([0.0, 0.25, 2.0]), st.sampled_from([0.0, 0.01])),
)
def test_two_tenants_that_always_wait_differ_by_the_bound_at_most(seed, weights, blocks, rows, seconds):
    """Beside them a third comes and goes, requests are cancelled, paused and extended, and the pool is small.

    Where prompt tokens take time, the bound is on tokens and on seconds of a step.
    """
    rng = random.Random(seed)
    reclaim_seconds, token_seconds = seconds
    bench = MachineBench(
        Machine(base=0.1, row=0.002, context=0.0, token=token_seconds, pair=0.0),
        blocks=blocks,
        block_size=BLOCK,
        max_context=CONTEXT,
        max_rows=rows,
        max_step_tokens=24,
        prefill_chunk=12,
        prefix_cache=False,
        reclaim_seconds=reclaim_seconds,
        max_waiting=1000,
        max_waiting_per_tenant=1000,
    )
    a, b = (Client(bench, name, weight, rng) for name, weight in zip("ab", weights, strict=True))
    guest = Client(bench, "guest", 1000, rng)
    batch = (blocks - 1) * BLOCK
    # Half as much again as the bound of the counters: one who pauses keeps its blocks, and what runs isn't taken back
    # at once, so that in a pool which hardly holds one request a difference of 1.17 of it was seen (in 700 lives).
    bound = Fraction(3 * max(LONGEST_PROMPT, 2 * batch) * 1000, min(weights))
    for _ in range(STEPS):
        for client in (a, b):
            client.keep_waiting()
            client.disturb()
        if rng.random() < 0.05:
            for _ in range(rng.randint(1, 4)):
                guest.submit()
        guest.disturb()
        bench.step()
        assert abs(a.service - b.service) <= bound
    # Nobody starves: without newcomers everything that was submitted comes to its end.
    for _ in range(3):
        bench.run()
        bench.now += 10.0
    assert bench.scheduler.unfinished == 0
    assert all(len(story.finished) == 1 for story in bench.stories.values())


@pytest.mark.parametrize("size", [3, 18])
def test_nobody_starves_while_others_keep_coming(size):
    """One request of a tenant ends, however many others come all the time, and whether it is short or long."""
    bench = Bench(blocks=13, block_size=BLOCK, max_context=CONTEXT, max_rows=3, prefix_cache=False, max_waiting=1000)
    rng = random.Random(size)
    others = [Client(bench, f"t{number}", 1000, rng) for number in range(6)]
    for client in others:
        client.keep_waiting()
    bench.step()
    bench.submit("one", [1] * size, size, tenant="one")
    for _ in range(400):
        for client in others:
            client.keep_waiting()
        bench.now += 0.1
        bench.step()
        if bench.stories["one"].finished:
            return
    raise AssertionError("it never ended")
