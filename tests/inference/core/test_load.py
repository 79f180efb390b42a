"""What a scheduler tells of its work."""

from __future__ import annotations

import pytest

from inference.core.load import MOST_TENANTS, Load
from inference.core.resident import Cause
from inference.types import BOUNDS
from tests.inference.core.driving import Bench


class Slow(Bench):
    """Each step takes 0.1 s and 0.01 s for each of its tokens."""

    def finish(self, plan):
        self.now += 0.1 + 0.01 * plan.tokens
        super().finish(plan)


def test_tokens_seconds_and_rows_are_counted_by_phase_and_tenant():
    bench = Slow(max_rows=4, max_step_tokens=16, prefill_chunk=16, prefill_seconds=0.0)
    bench.submit("one", 12, 3, tenant="a")
    bench.run()
    bench.submit("again", 12, 3, tenant="a")
    bench.submit("other", [9] * 4, 3, tenant="b")
    bench.run()
    work = bench.scheduler.stats().work
    assert (work.prompt_tokens, work.cached_tokens, work.output_tokens) == (12 + 4 + 4, 8, 9)
    assert (work.steps, work.rows) == (6, 9)
    assert work.seconds == pytest.approx(bench.now)
    assert 0.1 < work.prefill_seconds < work.seconds
    assert sum(work.tenants.values()) == pytest.approx(work.seconds, rel=0.2)  # told a tenth of a second late
    assert work.tenants["a"] > work.tenants["b"] > 0


def test_a_prompt_computed_again_is_not_counted_again():
    bench = Slow(prefix_cache=False, prefill_seconds=0.0)
    seq = bench.submit("r", 12, 3)
    bench.step()
    bench.step()
    bench.scheduler._residents.preempt(seq, Cause.BLOCKS)
    bench.run()
    work = bench.scheduler.stats().work
    assert (work.prompt_tokens, work.cached_tokens, work.output_tokens) == (12, 0, 3)
    assert work.preemptions == {"blocks": 1}


def test_steps_that_overlap_are_not_counted_twice():
    bench = Bench(max_rows=4, max_step_tokens=8, prefill_chunk=4)
    bench.submit("one", 8, 2)
    bench.submit("two", [7] * 8, 2, tenant="b")
    first = bench.plan()
    second = bench.plan()
    assert first is not None
    assert second is not None
    bench.now = 1.0
    bench.finish(first)
    bench.now = 1.5
    bench.finish(second)
    assert bench.scheduler.stats().work.seconds == 1.5


def test_the_waits_between_outputs_are_told_with_the_end():
    bench = Bench(max_context=128, blocks=64)
    bench.submit("r", 6, 101)
    for number in range(101):
        bench.now += 3.0 if number == 50 else 0.1
        bench.step()
    end = bench.end("r")
    assert end.gap_ms == pytest.approx(100, rel=1e-3)
    assert end.gap_p99_ms == pytest.approx(100, rel=1e-3)
    bench.submit("two", 6, 5)
    for number in range(5):
        bench.now += 3.0 if number == 2 else 0.1
        bench.step()
    assert bench.end("two").gap_p99_ms == pytest.approx(3000, rel=1e-3)


def test_waits_first_tokens_and_gaps_are_counted_in_buckets():
    bench = Bench(max_rows=1, max_context=128, blocks=64)
    bench.submit("one", 6, 3)
    bench.submit("two", 6, 2)
    bench.submit("gone", 6, 2)
    for _ in range(3):
        bench.now += 0.04
        bench.step()
    bench.scheduler.cancel("gone")  # in the queue
    bench.now += 0.4
    bench.run()
    work = bench.scheduler.stats().work
    assert counts(work.queued) == {0.05: 1, 0.15: 1, 0.7: 1}
    assert work.queued.seconds == pytest.approx(0.04 + 0.12 + 0.52)
    assert counts(work.first_tokens) == {0.05: 1, 0.7: 1}
    assert counts(work.gaps) == {0.05: 2, 0.001: 1}


def counts(histogram):
    """What a histogram counted, by the bound of the bucket."""
    return {bound: count for bound, count in zip((*BOUNDS, None), histogram.counts, strict=True) if count}


def test_of_many_tenants_those_with_most_are_told():
    load = Load()
    for number in range(10_000):
        load.add_step(1, {f"t{number}": 1}, 0.001 if number % 100 else 1.0, 0.0)
    told = load.report({}).tenants
    assert len(told) == MOST_TENANTS
    assert min(told.values()) >= 1.0
