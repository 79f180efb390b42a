"""A step is planned before the tokens of the one in flight are known; drafts are computed before they are right."""

from __future__ import annotations

import pytest

from inference.core.rows import Drafting
from inference.core.step import StepPlan, StepResult
from inference.types import FinishReason, SamplingParams, Usage
from tests.inference.core.driving import Bench, continuation

PROMPT = range(6)
SAID = continuation(PROMPT, 12)


class Overlapped(Bench):
    """Each step is launched before the last one is committed, and runs on what that one left."""

    def drive(self, limit: int = 500) -> list[StepPlan]:
        """Run until nothing is to be done; return the plans that were launched beside another one."""
        older: tuple[StepPlan, StepResult | RuntimeError] | None = None
        beside: list[StepPlan] = []
        for _ in range(limit):
            plan = self.plan()
            newer = (plan, self.outcome(plan)) if plan is not None else None
            if older is not None and plan is not None:
                beside.append(plan)
            if older is not None:
                newer = None if self.settle(older, newer) else newer
            elif newer is None:
                return beside
            older = newer
        raise AssertionError("the scheduler doesn't come to an end")

    def outcome(self, plan: StepPlan) -> StepResult | RuntimeError:
        try:
            return self.memory.run(plan)
        except RuntimeError as error:
            return error

    def settle(self, step, newer) -> bool:
        """Commit or abandon `step`; return whether the newer one went with it."""
        plan, result = step
        if isinstance(result, StepResult):
            self.listen(self.scheduler.commit(plan, result))
            self.scheduler.check()
            return False
        for each in [newer, step] if newer is not None else [step]:
            self.listen(self.scheduler.abandon(each[0], result))
            self.scheduler.check()
        return newer is not None


def settled(bench: Bench) -> bool:
    return bench.pool.free == bench.pool.usable and bench.scheduler.unfinished == 0


def test_decode_rows_are_in_both_steps_in_flight():
    bench = Overlapped()
    for number in range(3):
        bench.submit(f"r{number}", [number, *PROMPT], 8)
    beside = bench.drive()
    following = [row for plan in beside for row in plan.rows if row.follows]
    assert len(following) == 3 * 7
    assert all((row.ids, row.count, row.samples) == ((), 1, True) for row in following)
    assert [row.output_index for row in following if row.request_id == "r0"] == list(range(1, 8))
    for number in range(3):
        assert bench.stories[f"r{number}"].tokens == continuation([number, *PROMPT], 8)
    assert len(bench.plans) == 9, "no step more than without overlap: the end by length is known beforehand"
    assert settled(bench)


def test_an_end_learned_late_discards_the_token_in_flight():
    bench = Overlapped(eos_ids=frozenset({SAID[3]}))
    seq = bench.submit("r", PROMPT, 12)
    bench.drive()
    assert bench.stories["r"].tokens == SAID[:3]
    assert bench.end("r").usage == Usage(input=6, output=4)
    assert sum(row.samples for plan in bench.plans for row in plan.rows) == 5
    assert settled(bench)
    assert (seq.computed, len(seq.keys)) == (9, 2), "its K/V beyond the last published block are forgotten"
    assert bench.pool.cached == 2


def test_the_end_is_told_at_once_and_the_blocks_are_kept_until_the_step_is_over():
    bench = Overlapped(eos_ids=frozenset({SAID[0]}))
    bench.submit("r", PROMPT, 12)
    first, second = bench.plan(), bench.plan()
    assert first
    assert second
    bench.finish(first)
    assert bench.end("r").reason is FinishReason.STOP
    assert bench.pool.free != bench.pool.usable
    bench.submit("next", [5, 5], 2)
    third = bench.plan()
    assert third
    assert third.rows[0].slot != second.rows[0].slot
    assert not set(third.rows[0].blocks) & set(second.rows[0].blocks)
    bench.finish(second)
    bench.finish(third)
    bench.run()
    assert bench.stories["next"].tokens == continuation([5, 5], 2)
    assert settled(bench)


@pytest.mark.parametrize("newest_only", [True, False])
def test_abandoned_steps_leave_no_trace(newest_only):
    bench = Overlapped()
    bench.submit("r", PROMPT, 8)
    bench.step()
    first, second = bench.plan(), bench.plan()
    assert first
    assert second
    result = bench.memory.run(first)
    bench.memory.cells.update(dict.fromkeys(bench.memory.cells, 3) if not newest_only else {})
    bench.listen(bench.scheduler.abandon(second, RuntimeError()))
    bench.scheduler.check()
    seq = bench.scheduler._live["r"]
    assert (seq.failures, seq.expected, seq.in_flight) == (0, 1, 1), "it ran on what the older one left"
    if newest_only:
        bench.listen(bench.scheduler.commit(first, result))
    else:
        bench.listen(bench.scheduler.abandon(first, RuntimeError()))
        assert (seq.failures, seq.expected, seq.scheduled) == (1, 0, seq.computed)
        bench.memory.run(bench.plans[0])  # what it had computed is still there
    bench.scheduler.check()
    bench.drive()
    assert bench.stories["r"].tokens == SAID[:8]
    assert settled(bench)


def test_a_pause_is_foreseen_and_the_answer_goes_on():
    bench = Overlapped()
    bench.submit("r", PROMPT, 8, allowance=3)
    bench.drive()
    assert bench.stories["r"].tokens == SAID[:3]
    assert len(bench.plans) == 3
    bench.scheduler.extend("r", 8, is_final=True)
    bench.drive()
    assert bench.stories["r"].tokens == SAID[:8]


def test_a_stop_token_and_a_failed_row_discard_what_is_in_flight():
    bench = Overlapped()
    bench.submit("stops", PROMPT, 12, sampling=SamplingParams(stop_token_ids=(SAID[2],)))
    bench.submit("fails", [1, *PROMPT], 12)
    first = bench.plan()
    assert first
    bench.finish(first)
    bench.memory.bad = {"fails"}
    bench.drive()
    assert bench.stories["stops"].tokens == SAID[:2]
    assert bench.end("fails").usage == Usage(input=7, output=1)
    assert settled(bench)


def test_a_tiny_pool_preempts_between_steps_and_changes_no_token():
    bench = Overlapped(blocks=9, max_context=32)
    prompts = {f"r{number}": [number, *range(6)] for number in range(4)}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, 16, tenant=name)
    bench.drive()
    assert bench.scheduler.stats().preemptions > 0
    for name, prompt in prompts.items():
        assert bench.stories[name].tokens == continuation(prompt, 16)
        assert bench.end(name).usage == Usage(input=7, output=16)


def right(seq, count: int) -> tuple[int, ...]:
    return tuple(continuation(seq.tokens, count))


def test_right_drafts_are_accepted_with_the_token_behind_them():
    bench = Bench(drafting=Drafting(right, 4), max_step_tokens=32)
    bench.submit("r", PROMPT, 12)
    bench.run()
    assert bench.stories["r"].tokens == SAID
    assert bench.end("r").usage == Usage(input=6, output=12)
    assert [(len(row.ids), row.drafts) for plan in bench.plans for row in plan.rows] == [(6, 0), (11, 10)]
    assert settled(bench)


def test_wrong_drafts_cost_nothing_but_their_place():
    bench = Bench(drafting=Drafting(lambda seq, count: (*right(seq, 2), 0, 0)[:count], 4))
    seq = bench.submit("r", PROMPT, 10)
    bench.step()
    plan = bench.step()
    assert plan
    assert plan.rows[0].drafts == 4
    assert bench.stories["r"].tokens == SAID[:4]
    assert (seq.computed, seq.scheduled, seq.known) == (9, 9, 10)
    bench.run()
    assert bench.stories["r"].tokens == SAID[:10]
    bench.submit("again", [*PROMPT, *SAID[:10]], 2)
    bench.run()
    assert bench.end("again").usage.cache_read == 12, "what was published is what was accepted"
    assert bench.stories["again"].tokens == SAID[10:12]


def test_an_end_among_accepted_drafts_ends_there():
    bench = Bench(drafting=Drafting(right, 4), eos_ids=frozenset({SAID[4]}))
    bench.submit("r", PROMPT, 12)
    bench.run()
    assert bench.stories["r"].tokens == SAID[:4]
    assert bench.end("r").usage == Usage(input=6, output=5)
    assert settled(bench)


def test_drafts_go_no_further_than_is_allowed():
    bench = Bench(drafting=Drafting(lambda seq, count: right(seq, count + 3), 4), max_step_tokens=6)
    bench.submit("r", PROMPT, 12, allowance=4)
    bench.run()
    assert bench.stories["r"].tokens == SAID[:4]
    bench.scheduler.extend("r", 12, is_final=True)
    bench.run()
    assert bench.stories["r"].tokens == SAID
    assert all(plan.tokens <= 6 for plan in bench.plans)


def test_drafts_wait_for_the_step_in_flight_and_many_rows_need_none():
    bench = Bench(drafting=Drafting(right, 1))
    bench.submit("one", PROMPT, 4)
    first = bench.plan()
    assert first
    assert bench.plan() is None
    bench.finish(first)
    bench.submit("two", [1, *PROMPT], 4)
    bench.run()
    assert not any(row.drafts for plan in bench.plans if len(plan.rows) > 1 for row in plan.rows)


def test_adapters_share_no_prefix():
    bench = Bench()
    for name, adapter in (("plain", ""), ("law", "law"), ("again", "law"), ("la", "la")):
        bench.submit(name, 12, 2, adapter=adapter)
        bench.run()
    assert [bench.end(name).usage.cache_read for name in ("plain", "law", "again", "la")] == [0, 0, 8, 0]
    assert [plan.rows[0].adapter for plan in bench.plans if plan.begins] == ["", "law", "law", "la"]
