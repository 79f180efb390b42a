"""How the prompt tokens of a step are divided between tenants."""

from __future__ import annotations

import pytest

from tests.inference.core.driving import Bench
from tests.inference.core.machine import Machine, MachineBench


def bench(**changes: object) -> Bench:
    return Bench(
        **{
            "blocks": 400,
            "block_size": 4,
            "max_context": 400,
            "max_rows": 8,
            "max_step_tokens": 80,
            "prefill_chunk": 80,
            "prefix_cache": False,
            **changes,
        }
    )


def parts(one: Bench) -> dict[str, int]:
    """How many prompt tokens of each request the next step computes."""
    plan = one.step()
    assert plan is not None
    return {row.request_id: row.count for row in plan.rows if row.count > 1}


def test_equal_prompts_are_read_one_after_the_other():
    one = bench()
    for tenant in "abc":
        one.submit(tenant, [7] * 100, tenant=tenant)
    assert [parts(one) for _ in range(4)] == [{"a": 80}, {"a": 20, "b": 60}, {"b": 40, "c": 39}, {"c": 61}]


def test_a_tenants_further_prompts_wait_for_the_turns_of_others():
    one = bench(max_step_tokens=160)
    for name, tenant in (("long0", "long"), ("long1", "long"), ("other", "other")):
        one.submit(name, [7] * 300, tenant=tenant)
    assert parts(one) == {"long0": 80, "other": 80}


def test_short_prompts_of_newcomers_go_first_in_three_quarters_of_a_step():
    """Whatever their turns: the first long prompt is charged whole, so they might come after it."""
    one = bench()
    one.submit("long", [7] * 300, tenant="long")
    one.step()
    for number in range(4):
        one.submit(f"short{number}", [7] * 20, tenant=f"short{number}")
        one.scheduler.waiting.queue.charge(f"short{number}", prompt=1000)
    assert parts(one) == {"short0": 20, "short1": 20, "short2": 20, "long": 20}
    assert parts(one) == {"short3": 20, "long": 57}, "beside three rows that decode"


@pytest.mark.parametrize(("prompt", "expected"), [(110, {"light": 20, "heavy": 60}), (111, {"light": 80})])
def test_a_prompt_of_half_of_what_the_first_has_left_shares_the_step_by_weight(prompt: int, expected: dict[str, int]):
    one = bench()
    one.submit("light", [7] * 300, tenant="a")
    one.step()
    one.submit("heavy", [7] * prompt, tenant="b", weight=3000)
    assert parts(one) == expected


def test_what_a_tenant_leaves_is_lent():
    one = bench()
    one.submit("long", [7] * 300, tenant="a")
    for tenant in "bc":
        one.submit(tenant, [7] * 10, tenant=tenant)
    assert parts(one) == {"long": 60, "b": 10, "c": 10}
    assert parts(one) == {"long": 78}


def test_of_one_tenant_the_first_prompt_goes_first():
    one = bench(max_step_tokens=100)
    one.submit("first", [7] * 150)
    one.submit("second", [7] * 150)
    assert [parts(one) for _ in range(4)] == [
        {"first": 80, "second": 20},
        {"first": 70, "second": 30},
        {"second": 80},
        {"second": 20},
    ]


def test_a_lower_band_gets_what_is_left():
    one = bench()
    one.submit("low", [7] * 300, tenant="a")
    one.step()
    one.submit("high", [7] * 70, tenant="b", band=1)
    assert parts(one) == {"high": 70, "low": 10}


def test_one_that_leads_by_more_than_a_batch_waits_for_the_others():
    one = bench(blocks=101)
    one.submit("late", [7] * 200, tenant="a")
    one.scheduler.waiting.queue.charge("a", output=401)
    one.submit("early", [7] * 80, tenant="b")
    one.scheduler.waiting.queue.charge("b", output=-401)
    assert parts(one) == {"early": 80}


def test_beside_a_full_batch_prompts_take_half_of_its_step():
    machine = Machine(base=0.010, row=0.002, context=0.0, token=1e-3, pair=0.0)
    one = MachineBench(
        machine,
        blocks=600,
        block_size=4,
        max_context=600,
        max_rows=8,
        max_step_tokens=512,
        prefill_chunk=512,
        prefix_cache=False,
    )
    for number in range(7):
        one.submit(f"decoding{number}", [7] * 200, 200)
    one.run(until=lambda: all(len(story.tokens) > 5 for story in one.stories.values()))
    one.submit("long", [7] * 500)
    one.step()
    full = machine.seconds([(1, 0)] * 8)
    assert full / 2 * 1000 * 0.9 < parts(one)["long"] <= full / 2 * 1000 * 1.1


def test_beside_few_rows_prompts_take_no_more_of_a_step_than_a_newcomer_may_wait_for():
    """What a full batch's step takes is known from before: of the one row it would be taken for eight times as long."""
    machine = Machine(base=0.020, row=0.001, context=0.0, token=1e-3, pair=0.0)
    one = MachineBench(
        machine,
        blocks=600,
        block_size=4,
        max_context=600,
        max_rows=8,
        max_step_tokens=512,
        prefill_chunk=512,
        prefix_cache=False,
    )
    for number in range(8):
        one.submit(f"decoding{number}", [7] * 100, 200 if number else 300)
    one.run(until=lambda: sum(not story.finished for story in one.stories.values()) == 1)
    one.run(until=lambda: len(one.stories["decoding0"].tokens) > 280)
    one.submit("long", [7] * 500)
    before = one.now
    one.step()
    full = machine.seconds([(1, 0)] * 8)
    assert 1.5 * full * 0.9 < one.now - before < 1.5 * full * 1.1


def test_where_steps_are_short_prompts_fill_them_up_to_half_of_the_setting():
    """Sixteen prompts that come one behind the other, as over HTTP, to a model that has had others before."""
    machine = Machine(base=0.001, row=1e-4, context=0.0, token=5e-5, pair=0.0)
    one = MachineBench(
        machine,
        blocks=600,
        block_size=16,
        max_context=600,
        max_rows=32,
        max_step_tokens=512,
        prefill_chunk=256,
        prefix_cache=False,
    )
    for number in range(4):
        one.submit(f"before{number}", [7] * 100, 20)
        one.step()
    one.run()
    names = [f"prompt{number}" for number in range(16)]
    for name in names[:2]:
        one.submit(name, [7] * 100, 64)
    one.step()
    for name in names[2:]:
        one.submit(name, [7] * 100, 64)
    steps, begun_at = one.scheduler.steps, one.now
    one.run(until=lambda: all(one.stories[name].tokens for name in names))
    assert one.scheduler.steps - steps <= 5, "1,400 tokens at 50 µs are 70 ms, a step 25 ms at most"
    lengths = [machine.seconds((len(row.ids), row.start) for row in plan.rows) for plan in one.plans[steps:]]
    assert max(lengths) <= 0.025 * 1.1, "and a newcomer waits for two steps, which is the setting"
    assert one.now - begun_at < 0.1


def test_on_a_machine_too_slow_for_two_blocks_a_step_tenants_take_turns():
    machine = Machine(base=0.010, row=0.002, context=0.0, token=5e-3, pair=0.0)
    one = MachineBench(
        machine,
        blocks=600,
        block_size=16,
        max_context=600,
        max_rows=8,
        max_step_tokens=512,
        prefill_chunk=512,
        prefix_cache=False,
    )
    one.submit("decoding", [5] * 40, 400, tenant="c")
    one.run(until=lambda: len(one.stories["decoding"].tokens) > 20)
    one.submit("long", [7] * 500, tenant="a")
    one.step()
    one.submit("short", [9] * 32, tenant="b")
    one.scheduler.waiting.queue.charge("b", prompt=100)
    for _ in range(5):
        one.step()
    assert one.stories["short"].tokens
    assert sum(row.count for plan in one.plans[-4:] for row in plan.rows if row.request_id == "long") > 16
