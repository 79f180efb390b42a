"""Random operations on a scheduler with a tiny pool: every invariant after every step, every end exactly once."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference.core.rows import Drafting
from inference.core.step import StepPlan, StepResult
from inference.errors import InvalidRequestError, OverloadedError
from inference.types import FinishReason
from tests.inference.core.driving import Bench, continuation

pytestmark = pytest.mark.slow

TENANTS = st.sampled_from("abcde")


def propose(seq, most):
    """Right, partly right and wrong drafts, more or fewer than are wanted."""
    known = len(seq.tokens)
    drafts = continuation(seq.tokens, known % 5)
    return tuple(drafts[: known % 3] + [0] * (known % 2))


RAN_TO_ITS_END = {FinishReason.STOP, FinishReason.LENGTH, FinishReason.ALLOWANCE}


class SchedulerMachine(RuleBasedStateMachine):
    """Submits, extends, cancels, lets time pass, and runs up to two steps at a time of which some fail.

    Some of them for want of memory, so that the next ones are smaller for a few steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.growth = patch("inference.core.bounds.STEPS_BEFORE_GROWTH", 6)
        self.growth.start()
        self.flying: list[tuple[StepPlan, StepResult | RuntimeError | MemoryError]] = []
        self.names: list[str] = []

    @initialize(
        blocks=st.integers(6, 14),
        rows=st.integers(1, 4),
        tokens=st.integers(2, 12),
        chunk=st.integers(1, 9),
        watermark=st.sampled_from([0, 5, 30]),
        prefix_cache=st.booleans(),
        max_bypass=st.integers(0, 2),
        reclaim_seconds=st.sampled_from([0.0, 0.5]),
        eos=st.booleans(),
        drafting=st.sampled_from([None, 1, 2, 4]),
    )
    def open(self, *, blocks, rows, tokens, chunk, watermark, prefix_cache, max_bypass, reclaim_seconds, eos, drafting):
        self.bench = Bench(
            blocks=blocks,
            block_size=3,
            max_context=30,
            max_rows=rows,
            max_step_tokens=tokens,
            prefill_chunk=chunk,
            watermark_percent=watermark,
            prefix_cache=prefix_cache,
            max_bypass=max_bypass,
            reclaim_seconds=reclaim_seconds,
            max_waiting=12,
            max_waiting_per_tenant=6,
            eos_ids=frozenset({7, 8, 9} if eos else ()),
            drafting=None if drafting is None else Drafting(propose, drafting),
        )

    @rule(
        tenant=TENANTS,
        shared=st.integers(0, 12),
        own=st.lists(st.integers(0, 2), min_size=1, max_size=6),
        max_output=st.integers(1, 12),
        allowance=st.integers(1, 12),
        is_final=st.booleans(),
        weight=st.sampled_from([500, 1000, 3000]),
        band=st.sampled_from([0, 0, 0, 1]),
        priority=st.integers(-1, 1),
        queue_seconds=st.sampled_from([0.0, 0.0, 0.0, 1.0]),
    )
    def submit(self, *, tenant, shared, own, max_output, allowance, is_final, weight, band, priority, queue_seconds):
        name = f"r{len(self.names)}"
        try:
            self.bench.submit(
                name,
                [*range(shared), *own],
                max_output,
                tenant=tenant,
                allowance=allowance,
                is_final=is_final,
                weight=weight,
                band=band,
                priority=priority,
                queue_seconds=queue_seconds,
            )
        except (InvalidRequestError, OverloadedError):
            return
        self.names.append(name)

    @precondition(lambda self: self.names)
    @rule(data=st.data(), allowance=st.integers(1, 14), is_final=st.booleans())
    def extend(self, data, allowance, is_final):
        self.bench.scheduler.extend(data.draw(st.sampled_from(self.names[-6:])), allowance, is_final)

    @precondition(lambda self: self.names)
    @rule(data=st.data(), reason=st.sampled_from([FinishReason.CANCELLED, FinishReason.STOP]))
    def cancel(self, data, reason):
        self.bench.scheduler.cancel(data.draw(st.sampled_from(self.names[-6:])), reason)

    @rule(seconds=st.sampled_from([0.5, 2.0]))
    def wait(self, seconds):
        self.bench.now += seconds

    @precondition(lambda self: self.names)
    @rule(data=st.data(), kind=st.sampled_from(["poison", "bad"]))
    def spoil(self, data, kind):
        getattr(self.bench.memory, kind).add(data.draw(st.sampled_from(self.names[-3:])))

    @rule()
    def heal(self):
        self.bench.memory.poison.clear()
        self.bench.memory.bad.clear()

    @precondition(lambda self: len(self.flying) < 2)
    @rule()
    def plan(self):
        plan = self.bench.plan()
        if plan is None:
            return
        try:
            self.flying.append((plan, self.bench.memory.run(plan)))
        except RuntimeError as error:
            self.flying.append((plan, error))

    @precondition(lambda self: self.flying)
    @rule()
    def exhaust(self):
        self.flying[0] = self.flying[0][0], MemoryError("no room")

    @precondition(lambda self: self.flying)
    @rule()
    def finish(self):
        plan, result = self.flying[0]
        if isinstance(result, RuntimeError | MemoryError):
            # What was launched after it ran on its garbage.
            for newest, _ in reversed(self.flying):
                self.bench.listen(self.bench.scheduler.abandon(newest, result))
                self.bench.scheduler.check()
            self.flying.clear()
        else:
            del self.flying[0]
            self.bench.listen(self.bench.scheduler.commit(plan, result))

    @rule(count=st.integers(1, 6))
    def run(self, count):
        for _ in range(count):
            while self.flying:
                self.finish()
            self.plan()

    @invariant()
    def holds(self):
        if hasattr(self, "bench"):
            self.bench.scheduler.check()
            self.bench.listen(self.bench.scheduler.take_outputs())

    def teardown(self):
        self.growth.stop()
        if not hasattr(self, "bench"):
            return
        bench = self.bench
        while self.flying:
            self.finish()
        for _ in range(2):  # what pauses is given up when its time is over
            bench.run()
            bench.now += 2.0
        bench.run()
        assert bench.scheduler.unfinished == 0
        assert bench.pool.free == bench.pool.usable
        assert len(set(bench.begun)) == len(bench.begun), "a request began twice"
        for name in self.names:
            self.verify(name)

    def verify(self, name):
        story = self.bench.stories[name]
        end = self.bench.end(name)
        # Whatever happened to it, what it said is what it would have said undisturbed.
        assert story.tokens == continuation(story.prompt, len(story.tokens))
        assert 0 <= end.usage.output - len(story.tokens) <= (end.reason is FinishReason.STOP)
        assert end.usage.prompt <= len(story.prompt)
        assert bool(story.started) == bool(end.usage.prompt)
        if story.started:
            assert end.usage.cache_read == story.started[0] < len(story.prompt)
        if story.tokens:
            assert end.usage.prompt == len(story.prompt)
        if end.reason in {FinishReason.LENGTH, FinishReason.ALLOWANCE}:
            assert end.usage.output == len(story.tokens) > 0
        if end.usage.output:
            assert name in self.bench.begun
        if end.error is not None and end.error.code == "queue_timeout":
            assert end.error.retryable
            assert name not in self.bench.begun
            assert not end.usage.prompt


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
