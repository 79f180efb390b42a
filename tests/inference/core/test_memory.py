"""Running out of memory makes steps smaller; it fails a request only where no step can be smaller."""

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
    assert bench.failed <= 7  # 64 tokens and 8 rows can't be halved more often before they fit
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


def test_every_running_sequence_keeps_its_token_after_a_lone_prompt_ran_out_of_memory() -> None:
    """Fewer run then, in turns of their tenants; else those that were admitted first would take each step."""
    bench = Bench(blocks=200, max_rows=8, max_step_tokens=64, prefill_chunk=32)
    for number in range(7):
        bench.submit(f"r{number}", [number] * 3, 40, tenant=f"t{number}")
    bench.step()
    bench.submit("long", [9] * 30, 8, tenant="long")
    plan = bench.plan()
    assert plan is not None
    bench.listen(bench.scheduler.abandon(plan, RuntimeError("one of them")))
    while bench.scheduler.bounds.tokens > 3:
        plan = bench.plan()
        assert plan is not None
        if len(plan.rows) == 1 and plan.tokens > 1:  # a suspect runs alone
            bench.listen(bench.scheduler.abandon(plan, MemoryError("no room")))
            bench.scheduler.check()
        else:
            bench.finish(plan)
    for _ in range(8):  # each suspect alone
        bench.step()
    for _ in range(60):
        bench.step()
        running = [seq.request_id for seq in bench.scheduler._residents.running]
        assert set(running) <= {row.request_id for row in bench.plans[-1].rows}
    bench.run()
    for number in range(7):
        assert bench.stories[f"r{number}"].tokens == continuation([number] * 3, 40)


def test_inputs_run_again_in_smaller_steps() -> None:
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
