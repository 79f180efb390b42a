"""Running out of memory makes steps smaller, and is blamed on a request that runs out of it alone.

It fails a request only where no step can be smaller.
"""

from __future__ import annotations

import pytest

from inference.core.base import BaseScheduler
from inference.core.bounds import StepBounds
from inference.core.encoder_scheduler import EncodeScheduler, EncodeTask
from inference.core.step import EncodeRow, Row, StepPlan, StepResult
from inference.types import FinishReason, SamplingParams
from tests.inference.core.driving import Bench, continuation


class SmallMemory(Bench):
    """Steps of more than `rows` rows or `tokens` tokens, or past position `longest`, run out of memory."""

    rows = 1000
    tokens = 1000
    longest = 1000
    failed = 0

    def finish(self, plan: StepPlan) -> None:
        ends = [row.start + len(row.ids) for row in plan.rows]
        if len(plan.rows) > self.rows or plan.tokens > self.tokens or max(ends) > self.longest:
            self.failed += 1
            self.listen(self.scheduler.abandon(plan, MemoryError("no room")))
            self.scheduler.check()
        else:
            super().finish(plan)


@pytest.mark.parametrize(("rows", "tokens"), [(1000, 5), (3, 1000), (1, 1), (2, 7)])
def test_steps_shrink_until_they_fit_and_every_answer_is_whole(rows: int, tokens: int) -> None:
    bench = SmallMemory(blocks=200, max_rows=8, max_step_tokens=64, prefill_chunk=32)
    bench.rows, bench.tokens = rows, tokens
    prompts = [[number] * 20 for number in range(8)]
    for number, prompt in enumerate(prompts):
        bench.submit(f"r{number}", prompt, 10, tenant=f"t{number % 3}")
    bench.run()
    assert (
        bench.failed <= 8 * 7
    )  # each prompt fails twice beside others, and alone its 20 tokens can be halved five times
    for number, prompt in enumerate(prompts):
        assert bench.stories[f"r{number}"].tokens == continuation(prompt, 10)
        assert bench.end(f"r{number}").reason is FinishReason.LENGTH


def test_steps_grow_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.core.bounds.STEPS_BEFORE_GROWTH", 10)
    bench = SmallMemory(blocks=200, max_context=600, max_rows=4)
    bench.rows = 2
    for number in range(4):
        bench.submit(f"r{number}", [number] * 4, 100, sampling=SamplingParams(ignore_eos=True))
    bench.run(until=lambda: bench.scheduler.bounds.rows == 2)
    bench.rows = 1000
    bench.run()
    assert (bench.scheduler.bounds.rows, bench.scheduler.bounds.tokens) == (4, 16)


def test_a_request_that_never_fits_ends_alone_with_an_error_that_says_so() -> None:
    bench = SmallMemory(blocks=200)
    bench.longest = 15
    bench.submit("long", [1] * 12, 10, tenant="a")
    bench.submit("short", [2] * 4, 10, tenant="b")
    bench.run()
    finished = bench.end("long")
    assert finished.error is not None
    assert (finished.reason, finished.error.code, finished.error.retryable) == (
        FinishReason.ERROR,
        "out_of_memory",
        True,
    )
    assert finished.usage.output == 4  # what it was given is counted
    assert bench.stories["short"].tokens == continuation([2] * 4, 10)


class Culprits(Bench):
    """Steps with one of `culprits` run out of memory, from `position` on."""

    culprits: tuple[str, ...] = ()
    position = 0
    failed = 0

    def finish(self, plan: StepPlan) -> None:
        if any(row.request_id in self.culprits and row.start + row.count > self.position for row in plan.rows):
            self.failed += 1
            self.listen(self.scheduler.abandon(plan, MemoryError("no room")))
            self.scheduler.check()
        else:
            super().finish(plan)


@pytest.mark.parametrize("position", [0, 100, 259])  # at once, in the middle of the prompt, while it decodes
@pytest.mark.parametrize("culprits", [("long",), ("long", "other")])
def test_a_request_that_never_fits_does_not_make_others_steps_smaller(culprits: tuple[str, ...], position: int) -> None:
    bench = Culprits(blocks=2000, max_context=800, max_rows=34, max_step_tokens=512, prefill_chunk=256)
    bench.culprits, bench.position = culprits, position
    names = [f"t{number}" for number in range(31)]
    for name in names:
        bench.submit(name, [names.index(name)] * 5, 90, tenant=name)
    bench.step()
    for name in culprits:
        bench.submit(name, [len(name)] * 250, 40, tenant=name)
    bench.run(until=lambda: all(bench.stories[name].finished for name in culprits))
    for name in culprits:
        end = bench.end(name)
        assert end.error is not None
        assert (end.error.code, end.error.retryable) == ("out_of_memory", True)
    assert bench.failed <= 20 * len(culprits)
    assert not bench.scheduler.stats().preemptions, "nobody lost a row"
    assert len(bench.plans) - bench.failed <= 30
    plan = bench.step()
    assert plan is not None
    assert len(plan.rows) == 31
    for _ in range(24):
        bench.step()
    assert (bench.scheduler.bounds.rows, bench.scheduler.bounds.tokens) == (34, 512)
    bench.run()
    for name in names:
        assert bench.stories[name].tokens == continuation([names.index(name)] * 5, 90)


def test_a_prompt_that_fits_only_in_small_chunks_is_read_in_those_and_leaves_others_their_rows() -> None:
    bench = SmallMemory(blocks=500, max_rows=8, max_context=400, max_step_tokens=128, prefill_chunk=64)
    for number in range(6):
        bench.submit(f"r{number}", [number] * 4, 60, tenant=f"t{number}")
    bench.step()
    bench.submit("long", [9] * 200, 20, tenant="long")
    while (plan := bench.plan()) is not None:
        if any(row.request_id == "long" and row.start > 60 and row.count > 16 for row in plan.rows):
            bench.failed += 1
            bench.listen(bench.scheduler.abandon(plan, MemoryError("no room")))
        else:
            bench.finish(plan)
        assert bench.scheduler.bounds.rows == 8
    assert bench.failed <= 5
    assert bench.stories["long"].tokens == continuation([9] * 200, 20)
    for number in range(6):
        assert bench.stories[f"r{number}"].tokens == continuation([number] * 4, 60)


def test_every_running_sequence_keeps_its_token_after_a_lone_prompt_ran_out_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fewer run then, in turns of their tenants; else those that were admitted first would take each step."""
    monkeypatch.setattr("inference.core.bounds.STEPS_BEFORE_GROWTH", 1000)
    bench = Bench(blocks=200, max_rows=8, max_step_tokens=64, prefill_chunk=32)
    for number in range(7):
        bench.submit(f"r{number}", [number] * 3, 40, tenant=f"t{number}")
    bench.step()
    while (tokens := bench.scheduler.bounds.tokens) > 3:
        assert bench.scheduler.bounds.shrink(StepPlan(0, rows=(prompt_row(tokens),)))
    for _ in range(60):
        bench.step()
        running = [seq.request_id for seq in bench.scheduler._residents.running if seq.due == 1]
        assert set(running) <= {row.request_id for row in bench.plans[-1].rows}
    bench.run()
    for number in range(7):
        assert bench.stories[f"r{number}"].tokens == continuation([number] * 3, 40)


def test_inputs_run_again_in_smaller_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.core.bounds.STEPS_BEFORE_GROWTH", 1000)
    scheduler = EncodeScheduler(
        max_rows=8, max_step_tokens=64, max_waiting=9, max_waiting_per_tenant=9, clock=lambda: 0.0
    )
    assert isinstance(scheduler, BaseScheduler)
    scheduler.submit(EncodeTask("r", "t", tuple((number,) for number in range(32))))
    vectors, failed = 0, 0
    while (plan := scheduler.plan()) is not None:
        if len(plan.encodes) > 3:
            failed += 1
            scheduler.abandon(plan, MemoryError())
            continue
        for output in scheduler.commit(plan, StepResult(vectors=tuple(b"x" for _ in plan.encodes))):
            vectors += len(output.vectors)
    assert (vectors, failed, scheduler.unfinished) == (32, 2, 0)


def test_an_input_that_never_fits_leaves_steps_as_large_as_they_were() -> None:
    scheduler = EncodeScheduler(
        max_rows=8, max_step_tokens=64, max_waiting=9, max_waiting_per_tenant=9, clock=lambda: 0.0
    )
    for name in ("good", "bad"):
        scheduler.submit(EncodeTask(name, name, tuple((number,) for number in range(4))))
    ends = {}
    while (plan := scheduler.plan()) is not None:
        if any(row.request_id == "bad" for row in plan.encodes):
            outputs = scheduler.abandon(plan, MemoryError())
        else:
            outputs = scheduler.commit(plan, StepResult(vectors=tuple(b"x" for _ in plan.encodes)))
        ends |= {output.request_id: output.finished for output in outputs if output.finished}
    assert {name: end.reason for name, end in ends.items()} == {"good": FinishReason.STOP, "bad": FinishReason.ERROR}
    assert (scheduler.bounds.rows, scheduler.bounds.tokens) == (8, 64)


def test_larger_steps_that_fail_again_and_again_are_tried_less_and_less_often() -> None:
    bounds, tried, waits = StepBounds(8, 8), 0, []
    for _ in range(2000):
        if bounds.rows > 4:
            bounds.shrink(StepPlan(0, rows=(prompt_row(1),) * bounds.rows))
            waits.append(tried)
            tried = 0
        bounds.note_success()
        tried += 1
    assert waits == [0, 8, 16, 32, 64, 128, 256, 256, 256, 256, 256, 256]
    for _ in range(1000):
        bounds.note_success()
    bounds.shrink(StepPlan(0, rows=(prompt_row(1),) * 8))
    for _ in range(8):
        bounds.note_success()
    assert bounds.rows == 8, "they had fitted for long"


def prompt_row(tokens: int) -> Row:
    return Row(0, "r", (1,) * tokens, 0, (1,), True, 0, SamplingParams(), 0)


@pytest.mark.parametrize("most", [(32, 512), (32, 8)])
def test_a_step_never_may_have_more_rows_than_tokens(most: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.core.bounds.STEPS_BEFORE_GROWTH", 1)
    bounds = StepBounds(*most)
    tokens = bounds.tokens
    while bounds.shrink(StepPlan(0, rows=(prompt_row(tokens),))):
        tokens = bounds.tokens
        assert 0 < bounds.rows <= bounds.tokens
    assert (bounds.rows, bounds.tokens) == (1, 1)
    for _ in range(10):
        bounds.note_success()
        assert bounds.rows <= bounds.tokens
    assert (bounds.rows, bounds.tokens) == (min(most), most[1])


def test_one_input_cannot_be_smaller() -> None:
    assert not StepBounds(8, 64).shrink(StepPlan(0, encodes=(EncodeRow("r", 0, (1, 2, 3)),)))
