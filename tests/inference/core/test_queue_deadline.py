"""A request that may wait only so long for the engine."""

from __future__ import annotations

import pytest

from inference.core.encoder_scheduler import EncodeScheduler, EncodeTask
from inference.types import FinishReason, Usage
from tests.inference.core.driving import Bench
from tests.inference.core.machine import Machine, MachineBench


def test_past_its_deadline_a_waiting_request_ends_free_of_charge():
    bench = Bench(max_rows=1)
    bench.submit("runs", 6, 30)
    bench.step()
    bench.submit("waits", 6, 4, tenant="b", queue_seconds=2.0)
    before = bench.scheduler.waiting.queue.counter("b")
    bench.now = 1.9
    bench.step()
    assert not bench.stories["waits"].finished
    bench.now = 2.0
    bench.step()
    end = bench.end("waits")
    assert (end.reason, end.usage, end.queued_ms) == (FinishReason.ERROR, Usage(), 2000)
    assert end.error is not None
    assert (end.error.code, end.error.retryable) == ("queue_timeout", True)
    assert bench.scheduler.waiting.queue.counter("b") == before
    assert "waits" not in bench.begun


def test_the_deadline_is_for_the_queue_alone_also_after_a_preemption():
    bench = Bench(blocks=9, max_context=32, watermark_percent=0)
    for name in ("one", "two"):
        bench.submit(name, 10, 14, queue_seconds=1.0)
    bench.step()
    bench.now = 5.0
    bench.run()
    assert bench.scheduler.stats().preemptions
    assert bench.end("one").reason is bench.end("two").reason is FinishReason.LENGTH


def test_what_has_a_slot_and_was_never_computed_has_only_waited():
    """As one that took a row and has its turn later."""
    machine = Machine(base=0.010, row=0.002, context=0.0, token=1.5e-3, pair=0.0)
    bench = MachineBench(machine, blocks=600, block_size=16, max_context=600, max_rows=8, max_step_tokens=512)
    bench.submit("decodes", [5] * 40, 400, tenant="c")
    bench.run(until=lambda: len(bench.stories["decodes"].tokens) > 20)
    submitted_at = bench.now
    both = [bench.submit(name, [7] * 300, tenant=name, queue_seconds=1.0) for name in "ab"]
    bench.step()
    (late,) = [seq for seq in both if not seq.begun]
    assert bench.scheduler._planner._admission.admit(late, may_preempt=False)
    assert late.slot >= 0
    assert bench.now < submitted_at + 1.0
    bench.now = submitted_at + 1.0
    bench.step()
    end = bench.end(late.request_id)
    assert end.error is not None
    assert end.error.code == "queue_timeout"
    assert (end.queued_ms, end.prefill_ms, end.decode_ms) == (pytest.approx(1000), 0, 0)
    assert end.usage == Usage()


@pytest.mark.parametrize("how", ["queue_timeout", "cancelled"])
def test_what_was_never_computed_costs_nothing_though_some_of_it_was_in_the_cache(how):
    machine = Machine(base=0.010, row=0.002, context=0.0, token=3e-3, pair=0.0)
    bench = MachineBench(machine, blocks=600, block_size=16, max_context=600, max_rows=8, max_step_tokens=512)
    for name in "ab":
        bench.submit(f"before-{name}", [7] * 160, 1, tenant=name)
    bench.run()
    bench.submit("decodes", [5] * 40, 400, tenant="c")
    bench.run(until=lambda: len(bench.stories["decodes"].tokens) > 20)
    submitted_at = bench.now
    both = [bench.submit(name, [7] * 500, tenant=name, queue_seconds=1.0) for name in "ab"]
    counters = {name: bench.scheduler.waiting.queue.counter(name) for name in "ab"}
    bench.step()
    (late,) = [seq for seq in both if not seq.begun]
    assert bench.scheduler._planner._admission.admit(late, may_preempt=False)
    assert late.cached_tokens == 160
    assert bench.scheduler.waiting.queue.counter(late.tenant) > counters[late.tenant]
    if how == "cancelled":
        bench.scheduler.cancel(late.request_id)
    else:
        bench.now = submitted_at + 1.0
    bench.step()
    assert bench.end(late.request_id).usage == Usage()
    assert bench.scheduler.waiting.queue.counter(late.tenant) == counters[late.tenant]


@pytest.mark.parametrize("how", ["began", "cancelled"])
def test_a_loop_is_woken_by_the_first_deadline_that_still_counts(how):
    bench = Bench(max_rows=1)
    bench.submit("first", 6, 30, queue_seconds=1.0)
    bench.submit("second", 6, 30, queue_seconds=3.0)
    assert bench.scheduler.next_deadline() == 1.0
    if how == "began":
        bench.step()
    else:
        bench.scheduler.cancel("first")
        bench.listen(bench.scheduler.take_outputs())
    assert bench.scheduler.next_deadline() == 3.0


def test_an_encoder_keeps_it_too():
    now = 0.0
    scheduler = EncodeScheduler(
        max_rows=1, max_step_tokens=8, max_waiting=8, max_waiting_per_tenant=8, clock=lambda: now
    )
    scheduler.submit(EncodeTask("runs", "a", ((1,), (2,), (3,))))
    scheduler.submit(EncodeTask("waits", "a", ((4,),), queue_seconds=1.0))
    scheduler.plan()
    now = 1.0
    assert scheduler.next_deadline() == 1.0
    assert scheduler.plan() is not None
    (output,) = scheduler.take_outputs()
    assert output.request_id == "waits"
    assert output.finished is not None
    assert output.finished.error is not None
    assert output.finished.error.code == "queue_timeout"
