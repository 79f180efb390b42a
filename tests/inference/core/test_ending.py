"""Allowance, stops, cancelling, failing: every way to the one last output."""

from __future__ import annotations

import pytest

from inference.core.resident import Cause
from inference.core.step import RowResult, StepResult
from inference.types import EngineFault, FinishReason, SamplingParams, Usage
from tests.inference.core.driving import VOCABULARY, Bench, continuation

PROMPT = list(range(6))
SAID = continuation(PROMPT, 10)


def settled(bench: Bench) -> bool:
    stats = bench.scheduler.stats()
    return (stats.running, stats.waiting, stats.kv_used, bench.scheduler.unfinished) == (0, 0, 0.0, 0)


def test_end_of_sequence_is_counted_but_not_text():
    bench = Bench(eos_ids=frozenset({SAID[3]}))
    bench.submit("r", PROMPT, 10)
    bench.run()
    end = bench.end("r")
    assert (end.reason, end.stop, end.usage.output) == (FinishReason.STOP, None, 4)
    assert bench.stories["r"].tokens == SAID[:3]
    assert settled(bench)


def test_end_of_sequence_can_be_ignored():
    bench = Bench(eos_ids=frozenset({SAID[3]}))
    bench.submit("r", PROMPT, 10, sampling=SamplingParams(ignore_eos=True))
    bench.run()
    assert bench.stories["r"].tokens == SAID


def test_a_stop_id_is_named():
    bench = Bench()
    bench.submit("r", PROMPT, 10, sampling=SamplingParams(stop_token_ids=(SAID[2],)))
    bench.run()
    end = bench.end("r")
    assert (end.reason, end.stop, end.usage.output) == (FinishReason.STOP, SAID[2], 3)
    assert bench.stories["r"].tokens == SAID[:2]


def test_a_stop_string_ends_with_its_token_counted():
    bench = Bench()
    bench.submit("r", PROMPT, 10)
    bench.run(until=lambda: len(bench.stories["r"].tokens) == 3)
    bench.scheduler.cancel("r", FinishReason.STOP, stop="END")
    bench.listen(bench.scheduler.take_outputs())
    end = bench.end("r")
    assert (end.reason, end.stop, end.usage) == (FinishReason.STOP, "END", Usage(input=6, output=3))
    assert settled(bench)


def test_a_final_allowance_ends_at_once():
    bench = Bench()
    bench.submit("r", PROMPT, 10, allowance=3, is_final=True)
    bench.run()
    end = bench.end("r")
    assert (end.reason, end.usage.output) == (FinishReason.ALLOWANCE, 3)
    assert bench.stories["r"].tokens == SAID[:3]


def test_reaching_max_output_is_length_even_at_the_allowance():
    bench = Bench()
    bench.submit("r", PROMPT, 3, allowance=3, is_final=False)
    bench.run()
    assert bench.end("r").reason is FinishReason.LENGTH


def test_a_paused_row_keeps_its_blocks_goes_on_when_extended_and_never_overruns():
    bench = Bench()
    bench.submit("r", PROMPT, 10, allowance=2)
    bench.run()
    assert bench.scheduler.stats().paused == 1
    assert bench.scheduler.stats().kv_used > 0
    assert bench.scheduler.next_deadline() == 2.0
    assert bench.stories["r"].tokens == SAID[:2]
    bench.scheduler.extend("r", 5, is_final=False)
    bench.scheduler.extend("r", 5, is_final=False)
    bench.scheduler.extend("r", 1, is_final=False)
    assert bench.scheduler.next_deadline() is None
    bench.run()
    assert bench.stories["r"].tokens == SAID[:5]
    bench.scheduler.extend("r", 10, is_final=True)
    bench.run()
    assert bench.stories["r"].tokens == SAID
    assert bench.end("r").reason is FinishReason.LENGTH
    assert bench.scheduler.stats().preemptions == 0


def test_a_pause_lasts_pause_seconds_and_no_longer():
    bench = Bench(pause_seconds=2.0)
    bench.submit("r", PROMPT, 10, allowance=2)
    bench.run()
    bench.now = 1.999
    assert bench.step() is None
    assert not bench.stories["r"].finished
    bench.now = 2.0
    assert bench.step() is None
    end = bench.end("r")
    assert (end.reason, end.usage.output) == (FinishReason.ALLOWANCE, 2)
    assert settled(bench)


def test_a_pause_ends_too_when_its_blocks_were_taken():
    bench = Bench(blocks=9, max_context=32)
    bench.submit("paused", 16, 8, allowance=1)
    bench.run()
    bench.submit("new", [1] * 20, 4, tenant="b")
    bench.run()
    assert bench.scheduler.unfinished == 1
    bench.now = 2.0
    bench.run()
    assert bench.end("paused").reason is FinishReason.ALLOWANCE
    assert bench.end("paused").usage == Usage(input=16, output=1)
    assert settled(bench)


def test_a_final_extension_without_more_tokens_ends_a_paused_row():
    bench = Bench()
    bench.submit("r", PROMPT, 10, allowance=2)
    bench.run()
    bench.scheduler.extend("r", 2, is_final=True)
    bench.listen(bench.scheduler.take_outputs())
    assert bench.end("r").reason is FinishReason.ALLOWANCE
    assert settled(bench)


def test_cancelling_what_waits_costs_nothing():
    bench = Bench(max_rows=1)
    bench.submit("running", PROMPT, 10)
    bench.submit("waiting", PROMPT, 10)
    bench.step()
    bench.scheduler.cancel("waiting")
    bench.scheduler.cancel("waiting")
    bench.scheduler.cancel("unknown")
    bench.listen(bench.scheduler.take_outputs())
    end = bench.end("waiting")
    assert (end.reason, end.usage) == (FinishReason.CANCELLED, Usage())
    assert bench.stories["waiting"].started == []


def test_cancelling_in_mid_prefill_counts_what_ran_and_gives_the_rest_back():
    bench = Bench()
    bench.submit("r", 30, 4)
    bench.step()
    queue = bench.scheduler.waiting.queue
    assert queue.counter("a") == 30_000_000
    bench.scheduler.cancel("r")
    bench.listen(bench.scheduler.take_outputs())
    assert bench.end("r").usage == Usage(input=8)
    assert queue.counter("a") == 8_000_000
    assert settled(bench)


def test_cancelling_keeps_full_blocks_for_the_next():
    bench = Bench()
    bench.submit("r", 30, 4)
    bench.step()
    bench.scheduler.cancel("r")
    bench.submit("again", 30, 4)
    bench.run()
    assert bench.end("again").usage.cache_read == 8


def test_cancelling_in_flight_drops_the_token_and_keeps_the_blocks_until_the_step_is_over():
    bench = Bench()
    bench.submit("r", PROMPT, 10)
    bench.step()
    plan = bench.plan()
    assert plan is not None
    bench.scheduler.cancel("r")
    bench.scheduler.cancel("r", FinishReason.ERROR)
    bench.listen(bench.scheduler.take_outputs())
    end = bench.end("r")
    assert (end.reason, end.usage) == (FinishReason.CANCELLED, Usage(input=6, output=1))
    assert bench.scheduler.unfinished == 0
    bench.scheduler.check()
    assert bench.scheduler.stats().kv_used > 0
    bench.finish(plan)
    assert bench.stories["r"].tokens == SAID[:1]
    assert settled(bench)


def test_cancelling_with_prompt_tokens_in_flight_waits_for_their_number():
    bench = Bench()
    bench.submit("r", PROMPT, 10)
    plan = bench.plan()
    assert plan is not None
    bench.scheduler.cancel("r")
    bench.scheduler.cancel("r", FinishReason.ERROR)
    assert bench.scheduler.take_outputs() == []
    bench.finish(plan)
    assert (bench.end("r").reason, bench.end("r").usage) == (FinishReason.CANCELLED, Usage(input=6))
    assert settled(bench)


def test_what_is_cancelled_in_flight_is_not_planned_again():
    bench = Bench(prefill_chunk=4)
    bench.submit("r", [1] * 10, 3)
    plan = bench.plan()
    assert plan
    bench.scheduler.cancel("r")
    assert bench.plan() is None
    bench.finish(plan)
    assert bench.end("r").usage == Usage(input=4)


def test_everything_can_be_cancelled_at_once():
    bench = Bench(max_rows=1)
    for number in range(3):
        bench.submit(f"r{number}", PROMPT, 10)
    bench.step()
    fault = EngineFault("gone", "the engine stops")
    bench.scheduler.cancel_all(FinishReason.ERROR, fault)
    bench.listen(bench.scheduler.take_outputs())
    assert [bench.end(f"r{number}").error for number in range(3)] == [fault] * 3
    assert settled(bench)


def test_a_second_step_can_be_planned_while_one_is_in_flight():
    bench = Bench(prefill_chunk=4)
    bench.submit("long", [1] * 10, 3)
    bench.submit("short", [2] * 3, 3)
    first = bench.plan()
    second = bench.plan()
    assert first
    assert second
    assert [(row.request_id, row.start, row.follows) for row in second.rows] == [("short", 3, True), ("long", 4, False)]
    results = [bench.memory.run(first), bench.memory.run(second)]
    with pytest.raises(ValueError):
        bench.scheduler.commit(second, results[1])
    bench.listen(bench.scheduler.commit(first, results[0]))
    bench.scheduler.check()
    bench.listen(bench.scheduler.commit(second, results[1]))
    bench.run()
    assert bench.stories["long"].tokens == continuation([1] * 10, 3)
    assert bench.stories["short"].tokens == continuation([2] * 3, 3)


def test_nobody_is_preempted_for_a_step_while_another_is_in_flight():
    bench = Bench(blocks=4, max_context=12, watermark_percent=0, prefill_chunk=2)
    bench.submit("a", [1] * 4, 8, tenant="a", allowance=1)
    bench.run()
    bench.submit("b", [2] * 8, 4, tenant="b")
    first = bench.plan()
    bench.scheduler.extend("a", 8, is_final=True)  # it has to grow, and only b could make room
    assert first
    assert bench.plan() is None, "the step in flight has to be committed first"
    assert bench.scheduler.stats().preemptions == 0
    bench.finish(first)
    bench.run()
    assert bench.scheduler.stats().preemptions > 0
    assert bench.stories["a"].tokens == continuation([1] * 4, 8)
    assert bench.stories["b"].tokens == continuation([2] * 8, 4)


def test_a_row_that_fails_alone_ends_alone():
    bench = Bench()
    bench.submit("good", PROMPT, 4)
    bench.submit("bad", [9] * 6, 4)
    bench.memory.bad = {"bad"}
    bench.run()
    end = bench.end("bad")
    assert (end.reason, end.error) == (FinishReason.ERROR, EngineFault("bad_row", "not finite"))
    assert end.usage == Usage()
    assert bench.stories["good"].tokens == SAID[:4]
    assert settled(bench)


def test_a_row_planned_after_a_failed_one_counts_for_nothing():
    bench = Bench(prefill_chunk=4)
    bench.submit("r", [1] * 10, 3)
    first, second = bench.plan(), bench.plan()
    assert first
    assert second
    bench.memory.bad = {"r"}
    bench.listen(bench.scheduler.commit(first, bench.memory.run(first)))
    bench.scheduler.check()
    bench.memory.bad = set()
    bench.listen(bench.scheduler.commit(second, bench.memory.run(second)))
    assert bench.end("r").usage == Usage()
    assert bench.scheduler.stats().kv_cached == 0
    assert settled(bench)


def test_computing_again_after_a_preemption_never_changes_what_was_counted():
    bench = Bench(prefix_cache=False, prefill_chunk=4)
    seq = bench.submit("r", 12, 3)
    bench.run(until=lambda: len(bench.stories["r"].tokens) == 1)
    bench.scheduler._residents.preempt(seq, Cause.BLOCKS)
    bench.step()
    assert seq.computed == 4
    bench.scheduler.cancel("r")
    bench.listen(bench.scheduler.take_outputs())
    assert bench.end("r").usage == Usage(input=12, output=1)


def test_cached_tokens_are_those_of_the_first_admission():
    bench = Bench(blocks=9, max_context=32, prefill_chunk=4)
    bench.submit("first", 12, 1)
    bench.run()
    seq = bench.submit("again", 12, 3)
    plan = bench.plan()
    assert plan
    bench.listen(bench.scheduler.abandon(plan, RuntimeError()))
    bench.scheduler._residents.preempt(seq, Cause.BLOCKS)
    assert bench.pool.acquire((), 8, "other") is not None  # evicts the prefix
    bench.pool.release(range(1, 9))
    bench.step()
    assert (seq.computed, bench.stories["again"].started) == (4, [8])
    assert seq.usage == Usage(cache_read=8)
    bench.run()
    assert bench.end("again").usage == Usage(input=4, cache_read=8, output=3)


def test_a_token_outside_the_vocabulary_fails_its_row():
    bench = Bench()
    bench.submit("r", PROMPT, 4)
    plan = bench.plan()
    assert plan is not None
    bench.listen(bench.scheduler.commit(plan, StepResult((RowResult((VOCABULARY,)),))))
    end = bench.end("r")
    assert end.error is not None
    assert end.error.code == "bad_token"
    assert end.usage.output == 0


@pytest.mark.parametrize("rows", [(), (RowResult((1,)), RowResult((2,))), (RowResult(),), (RowResult((1, 2)),)])
def test_a_result_that_does_not_answer_the_plan_changes_nothing(rows):
    bench = Bench()
    bench.submit("r", PROMPT, 4)
    plan = bench.plan()
    assert plan is not None
    with pytest.raises(ValueError):
        bench.scheduler.commit(plan, StepResult(rows))
    bench.scheduler.check()
    assert bench.scheduler.in_flight == 1
    bench.listen(bench.scheduler.abandon(plan, ValueError("no answer")))
    bench.run()
    assert bench.stories["r"].tokens == SAID[:4]


def test_a_failed_step_publishes_nothing_and_its_rows_run_alone():
    bench = Bench()
    bench.submit("good", [1] * 6, 4)
    bench.submit("bad", [2] * 6, 4)
    bench.submit("fine", [3] * 3, 4)
    bench.memory.poison = {"bad"}
    plan = bench.step()
    assert plan is not None
    assert len(plan.rows) == 3
    assert bench.scheduler.stats().kv_cached == 0
    alone = [bench.step() for _ in range(3)]
    assert [[row.request_id for row in plan.rows] for plan in alone if plan] == [["good"], ["bad"], ["fine"]]
    assert [plan.begins for plan in alone if plan] == [(), (), ()]
    bench.run()
    end = bench.end("bad")
    assert (end.reason, end.usage) == (FinishReason.ERROR, Usage())
    assert end.error is not None
    assert end.error.code == "step_failed"
    assert bench.stories["good"].tokens == continuation([1] * 6, 4)
    assert bench.stories["fine"].tokens == continuation([3] * 3, 4)
    assert bench.scheduler.waiting.queue.counter("a") == (9 + 2 * 8) * 1_000_000
    assert settled(bench)


def test_a_request_alone_is_tried_twice():
    bench = Bench()
    bench.submit("r", PROMPT, 4)
    bench.memory.poison = {"r"}
    bench.step()
    assert not bench.stories["r"].finished
    bench.memory.poison = set()
    bench.run()
    assert bench.stories["r"].tokens == SAID[:4]


def test_newcomers_do_not_join_the_step_of_a_suspect():
    bench = Bench()
    bench.submit("suspect", PROMPT, 4)
    bench.memory.poison = {"suspect"}
    bench.step()
    bench.submit("new", [1] * 6, 4)
    plan = bench.step()
    assert plan is not None
    assert [row.request_id for row in plan.rows] == ["suspect"]
    bench.run()
    assert bench.stories["new"].tokens == continuation([1] * 6, 4)


@pytest.mark.parametrize("served", [0, 1000])
def test_a_suspect_that_lost_its_blocks_is_tried_alone_and_holds_nobody_up(served):
    bench = Bench()
    bench.submit("suspect", PROMPT, 4, tenant="a")
    bench.submit("other", [1] * 6, 10, tenant="b")
    bench.memory.poison = {"suspect"}
    bench.step()
    bench.scheduler._residents.preempt(bench.scheduler._live["suspect"], Cause.BLOCKS)
    bench.scheduler.check()
    bench.submit("new", [2] * 6, 4, tenant="c")
    bench.scheduler.waiting.queue.charge("a", output=served)  # whether its turn comes before the newcomer's
    seen = []
    while (plan := bench.step()) is not None:
        seen.append({row.request_id for row in plan.rows})
    assert {"suspect"} in seen
    assert all(rows == {"suspect"} for rows in seen if "suspect" in rows)
    assert bench.end("suspect").reason is FinishReason.ERROR
    assert bench.stories["other"].tokens == continuation([1] * 6, 10)
    assert bench.stories["new"].tokens == continuation([2] * 6, 4)


def test_a_suspect_that_has_to_grow_is_not_its_own_victim():
    bench = Bench(blocks=5, max_context=16, watermark_percent=0)
    bench.submit("suspect", [1] * 4, 8, tenant="a")
    bench.submit("other", [2] * 11, 4, tenant="b")
    bench.run(until=lambda: len(bench.stories["suspect"].tokens) == 1)
    bench.scheduler.waiting.queue.charge("a", output=1000)
    suspect = bench.scheduler._live["suspect"]
    bench.scheduler._planner.suspects.accuse(suspect)
    plan = bench.step()
    assert plan
    assert [row.request_id for row in plan.rows] == ["suspect"]
    bench.run()
    assert bench.stories["suspect"].tokens == continuation([1] * 4, 8)
    assert bench.stories["other"].tokens == continuation([2] * 11, 4)


def test_abandoning_two_steps_in_flight_goes_newest_first_and_blames_the_first():
    bench = Bench(prefill_chunk=4)
    bench.submit("r", [1] * 10, 3)
    first, second = bench.plan(), bench.plan()
    assert first
    assert second
    with pytest.raises(ValueError):
        bench.scheduler.abandon(first, RuntimeError())
    for plan in (second, first):
        bench.listen(bench.scheduler.abandon(plan, RuntimeError()))
        bench.scheduler.check()
    assert not bench.stories["r"].finished
    bench.run()
    assert bench.stories["r"].tokens == continuation([1] * 10, 3)


def test_a_cancel_during_a_step_that_fails_ends_as_cancelled():
    bench = Bench()
    bench.submit("r", PROMPT, 4)
    plan = bench.plan()
    assert plan is not None
    bench.scheduler.cancel("r")
    bench.listen(bench.scheduler.abandon(plan, RuntimeError()))
    assert (bench.end("r").reason, bench.end("r").usage) == (FinishReason.CANCELLED, Usage())
    assert settled(bench)
