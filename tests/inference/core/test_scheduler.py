"""Planning: budgets, order, chunks, sharing, preemption, admission."""

from __future__ import annotations

import pytest

from inference.core.fairness import NEWEST
from inference.core.step import StepPlan
from inference.errors import DrainingError, InvalidRequestError, OverloadedError
from inference.types import FinishReason, SamplingParams, Usage
from tests.inference.core.driving import VOCABULARY, Bench, continuation


def shape(plan: StepPlan | None) -> list[tuple[str, int, bool]]:
    assert plan is not None
    return [(row.request_id, len(row.ids), row.samples) for row in plan.rows]


def test_one_request_from_submission_to_its_end():
    bench = Bench()
    bench.submit("r", 6, 3)
    assert shape(bench.step()) == [("r", 6, True)]
    bench.now = 2.0
    bench.run()
    end = bench.end("r")
    assert end.reason is FinishReason.LENGTH
    assert end.usage == Usage(input=6, output=3)
    assert bench.stories["r"].tokens == continuation(range(6), 3)
    assert (end.queued_ms, end.prefill_ms, end.decode_ms) == (0.0, 0.0, 2000.0)
    assert bench.step() is None
    assert bench.scheduler.unfinished == 0
    assert bench.scheduler.stats().running == 0


def test_rows_say_what_to_compute_where():
    bench = Bench()
    bench.submit("r", 10, 4, sampling=SamplingParams(temperature=0.5))
    first, second, third = (bench.step() for _ in range(3))
    assert first
    assert second
    assert third
    assert [row.start for plan in (first, second, third) for row in plan.rows] == [0, 8, 10]
    assert [len(row.ids) for plan in (first, second, third) for row in plan.rows] == [8, 2, 1]
    assert [row.samples for plan in (first, second, third) for row in plan.rows] == [False, True, True]
    assert [row.output_index for plan in (second, third) for row in plan.rows] == [0, 1]
    assert third.rows[0].ids == (continuation(range(10), 1)[0],)
    assert len(first.rows[0].blocks) == 3
    assert first.rows[0].sampling.temperature == 0.5
    assert (first.begins, second.begins) == (("r",), ())


def test_decoding_goes_before_prefill_and_newcomers_within_the_budget():
    bench = Bench(max_step_tokens=10, blocks=40)
    bench.submit("long", 30, 4)
    bench.step()
    bench.submit("short", 2, 4)
    assert shape(bench.step()) == [("long", 8, False), ("short", 2, True)]
    bench.submit("third", [5] * 9, 4)
    assert shape(bench.step()) == [("short", 1, True), ("long", 8, False), ("third", 1, False)]


def test_rows_are_bounded_and_slots_are_stable_and_unique():
    bench = Bench(max_rows=2)
    for number in range(3):
        bench.submit(f"r{number}", 2, 3 + number)
    slots: dict[str, set[int]] = {}
    while (plan := bench.step()) is not None:
        assert len(plan.rows) <= 2
        assert len({row.slot for row in plan.rows}) == len(plan.rows)
        for row in plan.rows:
            slots.setdefault(row.request_id, set()).add(row.slot)
    assert all(len(used) == 1 for used in slots.values())
    assert max(max(used) for used in slots.values()) == 1


def test_a_step_has_a_token_for_every_row():
    bench = Bench(max_rows=8, max_step_tokens=3, prefill_chunk=3)
    for number in range(6):
        bench.submit(f"r{number}", 3, 4)
    bench.run()
    assert all(bench.end(f"r{number}").reason is FinishReason.LENGTH for number in range(6))


def test_a_repeated_prompt_is_read_from_the_cache_but_for_its_last_token():
    bench = Bench()
    bench.submit("first", 8, 2)
    bench.run()
    bench.submit("second", 8, 2)
    plan = bench.step()
    assert shape(plan) == [("second", 4, True)]
    bench.run()
    assert bench.stories["second"].started == [4]
    assert bench.end("second").usage == Usage(input=4, cache_read=4, output=2)
    assert bench.stories["second"].tokens == bench.stories["first"].tokens


def test_a_conversation_goes_on_from_what_it_generated():
    bench = Bench()
    bench.submit("first", 6, 4)
    bench.run()
    history = [*range(6), *bench.stories["first"].tokens, 1, 2]
    bench.submit("second", history, 2)
    bench.run()
    # The last generated token was sampled, never computed: nine of ten have KV, two blocks are full.
    assert bench.end("second").usage == Usage(input=4, cache_read=8, output=2)
    assert bench.stories["second"].tokens == continuation(history, 2)


def test_tenants_never_hit_each_others_prefixes_and_one_tenant_does():
    bench = Bench()
    bench.submit("mine", 12, 2, tenant="a")
    bench.run()
    bench.submit("theirs", 12, 2, tenant="b")
    bench.submit("again", 12, 2, tenant="a")
    bench.run()
    assert bench.end("theirs").usage.cache_read == 0
    assert bench.end("again").usage.cache_read == 8


def test_prefixes_are_shared_within_a_domain_not_a_tenant():
    bench = Bench()
    bench.submit("one", 12, 2, tenant="a", domain="pool")
    bench.run()
    bench.submit("two", 12, 2, tenant="b", domain="pool")
    bench.submit("three", 12, 2, tenant="a", domain="a/salt")
    bench.run()
    assert bench.end("two").usage.cache_read == 8
    assert bench.end("three").usage.cache_read == 0


def test_without_the_prefix_cache_nothing_is_kept():
    bench = Bench(prefix_cache=False)
    for name in ("first", "second"):
        bench.submit(name, 8, 2)
        bench.run()
    assert bench.end("second").usage == Usage(input=8, output=2)
    assert bench.scheduler.stats().kv_cached == 0


def test_keys_hashed_when_the_prompt_was_prepared_serve_as_well():
    bench = Bench()
    bench.submit("first", 12, 2)
    bench.run()
    seq = bench.submit("second", 12, 2)
    seq.keys = bench.scheduler._residents._keys.keys("a", range(12))
    bench.run()
    assert bench.end("second").usage.cache_read == 8


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_tiny_pool_preempts_and_changes_no_token(prefix_cache):
    bench = Bench(blocks=9, max_context=32, prefix_cache=prefix_cache)
    prompts = {f"r{number}": [number, *range(6)] for number in range(4)}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, 16, tenant=name)
    bench.run()
    assert bench.scheduler.stats().preemptions > 0
    for name, prompt in prompts.items():
        assert bench.stories[name].tokens == continuation(prompt, 16)
        assert bench.end(name).usage == Usage(input=7, output=16)
        assert bench.stories[name].started == [0]


def test_the_victim_is_of_the_tenant_served_most_then_the_cheapest():
    bench = Bench(blocks=10, watermark_percent=0)
    bench.submit("modest", 8, 20, tenant="a")
    bench.submit("dear", [1] * 8, 20, tenant="b")
    bench.submit("cheap", [2] * 4, 20, tenant="b")
    bench.step()
    bench.scheduler.waiting.queue.charge("b", output=100)
    bench.run(until=lambda: bench.scheduler.stats().preemptions > 0)
    waiting = list(bench.scheduler.waiting.queue.heads())
    assert [seq.request_id for seq in waiting] == ["cheap"]


def test_a_paused_sequence_is_the_first_victim_and_comes_back():
    bench = Bench(blocks=9, max_context=32, watermark_percent=0)
    bench.submit("paused", 8, 8, tenant="a", allowance=1)
    bench.submit("other", [1] * 8, 22, tenant="b")
    bench.scheduler.waiting.queue.charge("b", output=1000)
    bench.run(until=lambda: bench.scheduler.stats().preemptions > 0)
    paused = bench.scheduler._live["paused"]
    assert not paused.blocks
    bench.scheduler.extend("paused", 8, is_final=True)
    bench.run()
    assert bench.stories["paused"].tokens == continuation(range(8), 8)
    assert bench.end("other").reason is FinishReason.LENGTH


def test_a_newcomer_turns_paused_sequences_out_when_that_makes_room():
    bench = Bench(blocks=9, max_context=32)
    bench.submit("paused", 16, 8, allowance=1)
    bench.run()
    bench.submit("new", [1] * 20, 4, tenant="b")
    assert shape(bench.step()) == [("new", 8, False)]
    assert not bench.scheduler._live["paused"].blocks


@pytest.mark.parametrize("prompt", [16, 20])
def test_a_paused_sequence_stays_where_it_is_when_its_blocks_would_not_be_enough(prompt):
    bench = Bench(blocks=11, watermark_percent=10)
    bench.submit("paused", 8, 8, allowance=1)
    bench.submit("running", [1] * 20, 12, tenant="b")
    bench.run(until=lambda: len(bench.stories["running"].tokens) == 2)
    assert bench.pool.free == 2
    # Four blocks could come free: enough for 16 tokens, but not with the watermark beside them.
    bench.submit("new", [2] * prompt, 4, tenant="c")
    bench.step()
    assert bench.scheduler._live["paused"].blocks
    assert "new" not in bench.begun


def test_a_newcomer_turns_a_paused_sequence_out_of_the_last_slot():
    bench = Bench(max_rows=1)
    bench.submit("paused", 4, 8, allowance=1)
    bench.run()
    bench.submit("new", 4, 2, tenant="b")
    bench.run(until=lambda: bool(bench.stories["new"].finished))
    bench.scheduler.extend("paused", 8, is_final=False)
    bench.run()
    assert bench.stories["paused"].tokens == continuation(range(4), 8)


def test_a_preempted_paused_sequence_resumes_before_its_tenants_others():
    bench = Bench(max_rows=1)
    bench.submit("paused", 4, 8, allowance=1)
    bench.run()
    bench.submit("new", [1] * 4, 3)
    bench.submit("next", [2] * 4, 3)
    bench.step()
    bench.scheduler.extend("paused", 8, is_final=False)
    bench.run(until=lambda: bool(bench.stories["paused"].finished))
    assert bench.begun == ["paused", "new"]


def test_nobody_is_admitted_in_a_step_that_preempts():
    bench = Bench(blocks=6, max_context=20, watermark_percent=0)
    bench.submit("grows", [1] * 8, 8, tenant="a")
    bench.submit("victim", [2] * 12, 4, tenant="b")
    bench.step()
    bench.scheduler.waiting.queue.charge("b", output=1000)
    bench.submit("small", [3] * 2, 2, tenant="c")
    while not bench.scheduler.stats().preemptions:
        plan = bench.step()
        assert plan
    assert [row.request_id for row in plan.rows] == ["grows"]


def test_admission_takes_the_blocks_of_the_whole_prompt():
    bench = Bench(blocks=17, watermark_percent=0, prefill_chunk=4)
    bench.submit("a", 36, 4, tenant="a")
    bench.submit("b", [1] * 36, 4, tenant="b")
    bench.step()
    assert bench.scheduler.stats().running == 1
    bench.run()
    assert bench.scheduler.stats().preemptions == 0


def test_the_watermark_stays_free_while_others_run_only():
    bench = Bench(blocks=11, watermark_percent=30, max_context=40)
    bench.submit("alone", 36, 4)
    bench.step()
    assert bench.scheduler.stats().running == 1
    bench.run()
    bench.submit("one", [1] * 16, 4, tenant="x")
    bench.submit("two", [2] * 16, 4, tenant="y")
    bench.step()
    assert bench.scheduler.stats().running == 1


def test_a_request_that_does_not_fit_is_bypassed_a_bounded_number_of_times():
    bench = Bench(blocks=13, max_bypass=2, watermark_percent=0, max_context=48)
    bench.submit("running", 4, 30, tenant="r")
    bench.step()
    bench.submit("big", [1] * 44, 2, tenant="big")
    for number in range(6):
        bench.submit(f"small{number}", [number + 2] * 4, 2, tenant=f"s{number}")
    started: list[str] = []
    while "big" not in (plan := bench.step()).begins:
        started += plan.begins
    assert started == ["small0", "small1"]
    bench.run()
    assert all(bench.end(name).reason is FinishReason.LENGTH for name in bench.stories)


@pytest.mark.parametrize(
    ("prompt", "max_output", "more", "code"),
    [
        ([], 4, {}, "invalid_request"),
        ([1], 0, {}, "invalid_request"),
        ([1], 4, {"allowance": 0}, "invalid_request"),
        ([1] * 60, 5, {}, "context_length_exceeded"),
        ([VOCABULARY], 4, {}, "invalid_request"),
        ([-1], 4, {}, "invalid_request"),
        ([1], 4, {"sampling": SamplingParams(stop_token_ids=(VOCABULARY,))}, "invalid_request"),
        ([1], 4, {"weight": 0}, "invalid_request"),
    ],
)
def test_what_can_never_run_is_refused(prompt, max_output, more, code):
    bench = Bench()
    with pytest.raises(InvalidRequestError) as refusal:
        bench.submit("r", prompt, max_output, **more)
    assert refusal.value.code == code
    assert bench.scheduler.unfinished == 0
    assert bench.step() is None


def test_a_pool_smaller_than_the_context_bounds_requests():
    bench = Bench(blocks=5)
    assert bench.config.context == 16
    bench.submit("fits", 12, 4)
    with pytest.raises(InvalidRequestError):
        bench.submit("never", 12, 5)
    bench.run()
    assert bench.end("fits").usage.output == 4


def test_an_id_is_taken_once():
    bench = Bench()
    bench.submit("r")
    with pytest.raises(InvalidRequestError):
        bench.submit("r")


def test_waiting_is_bounded_for_a_tenant_and_for_all():
    bench = Bench(max_waiting=3, max_waiting_per_tenant=2)
    bench.submit("a1", tenant="a")
    bench.submit("a2", tenant="a")
    with pytest.raises(OverloadedError) as refusal:
        bench.submit("a3", tenant="a")
    assert refusal.value.code == "tenant_queue_full"
    bench.submit("b1", tenant="b")
    with pytest.raises(OverloadedError):
        bench.submit("b2", tenant="b")
    bench.run()
    bench.submit("a3", tenant="a")


def test_draining_takes_nothing_new_and_finishes_the_rest():
    bench = Bench()
    bench.submit("r")
    bench.scheduler.drain()
    with pytest.raises(DrainingError):
        bench.submit("late")
    bench.run()
    assert bench.end("r").reason is FinishReason.LENGTH


def test_stats_count_rows_blocks_and_steps():
    bench = Bench(max_rows=1)
    bench.submit("one", 8, 4, allowance=1)
    bench.submit("two", 8, 4)
    bench.step()
    stats = bench.scheduler.stats()
    assert (stats.running, stats.paused, stats.waiting, stats.steps) == (1, 1, 1, 1)
    assert stats.kv_used == 2 / 16


def test_nothing_runs_and_the_head_does_not_fit_ends_that_request(monkeypatch):
    bench = Bench()
    bench.submit("r")
    bench.submit("next")
    place = bench.scheduler._planner._admission.admit
    monkeypatch.setattr(
        bench.scheduler._planner._admission,
        "admit",
        lambda seq, *, may_preempt: seq.request_id != "r" and place(seq, may_preempt=may_preempt),
    )
    bench.run()
    assert bench.end("next").reason is FinishReason.LENGTH
    end = bench.end("r")
    assert end.reason is FinishReason.ERROR
    assert end.error is not None
    assert end.error.code == "unschedulable"


def test_forgotten_tenants_do_not_pile_up():
    bench = Bench()
    for number in range(500):
        bench.submit(f"r{number}", 3, 1, tenant=f"t{number}")
        bench.run()
    assert bench.scheduler.waiting.queue.tenants() < 200


def test_a_request_that_does_not_fit_is_not_tried_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(blocks=65, block_size=4, max_context=256, max_rows=8, max_waiting=300, watermark_percent=0)
    bench.submit("runs", [1] * 8, 150, tenant="runs")
    bench.step()
    for number in range(250):
        bench.submit(f"waits{number}", [number % 90] * 250, 4, tenant=f"t{number}")
    tried: list[object] = []
    place = bench.scheduler._planner._admission.admit
    monkeypatch.setattr(
        bench.scheduler._planner._admission, "admit", lambda seq, **options: tried.append(seq) or place(seq, **options)
    )
    for _ in range(100):
        bench.step()
    assert len(bench.stories["runs"].tokens) > 90
    assert len(tried) == bench.config.max_bypass + 1 + NEWEST
    bench.submit("fits", [91] * 4, 2, tenant="small")
    bench.run(until=lambda: bool(bench.stories["fits"].finished), limit=5)
    tried.clear()
    bench.run(until=lambda: bool(bench.stories["runs"].finished))
    bench.step()
    assert tried, "room came free, and nobody was called"


def test_a_head_that_fits_nowhere_makes_way_for_one_that_fits() -> None:
    bench = Bench(blocks=9, max_context=32, max_bypass=0)
    bench.submit("first", 20, 4, tenant="a")
    bench.submit("second", 8, 4, tenant="b")
    bench.pool.acquire((), 4, "somebody's")  # as if blocks were lost
    bench.scheduler.plan()
    assert bench.scheduler.stats().running == 1
    (output,) = bench.scheduler.take_outputs()
    assert output.request_id == "first"
    assert output.finished is not None
    assert output.finished.error is not None
    assert output.finished.error.code == "unschedulable"


def test_a_waiting_request_is_looked_at_again_when_its_prefix_was_published():
    """Its prefix was unknown when it came; once a neighbour has computed it, it needs few blocks of its own."""
    bench = Bench(blocks=17, watermark_percent=0, max_context=64)
    bench.submit("first", 45, 8)
    bench.step()
    bench.submit("same", 45, 3)
    bench.run(until=lambda: bool(bench.stories["same"].finished))
    assert not bench.stories["first"].finished
    bench.run()
    assert bench.stories["first"].tokens == continuation(range(45), 8)
    assert bench.stories["same"].tokens == continuation(range(45), 3)


def test_what_a_neighbour_publishes_of_its_own_lets_nobody_be_looked_at_again(monkeypatch):
    bench = Bench(blocks=17, watermark_percent=0, max_context=64)
    bench.submit("first", 21, 40)
    bench.submit("large", [5] * 60, 4)
    while bench.scheduler._live["first"].output < 3:
        bench.step()
    looked, admission = [], bench.scheduler._planner._admission
    candidates = admission._candidates
    monkeypatch.setattr(admission, "_candidates", lambda: looked.append(1) or candidates())
    published = bench.scheduler._live["first"].published
    while bench.scheduler._live["first"].output < 35:
        bench.step()
    assert bench.scheduler._live["first"].published > published + 5
    assert not looked
    bench.run()
    assert bench.stories["large"].tokens == continuation([5] * 60, 4)
