"""What many tenants wait for beside each other, in seconds of an imagined machine (`crowd.py`)."""

from __future__ import annotations

import pytest

from inference.core.resident import Cause
from tests.inference.core.crowd import CPU, behind, equal_tenants, overrun, small_beside
from tests.inference.core.driving import Bench, continuation


@pytest.mark.parametrize("prompt", [300, 1000])
@pytest.mark.parametrize("tenants", [8, 32])
def test_equal_tenants_wait_no_longer_than_in_order_of_arrival(tenants: int, prompt: int) -> None:
    ours, by_arrival = (equal_tenants(CPU, tenants, prompt=prompt, is_fair=is_fair) for is_fair in (True, False))
    assert ours.mean <= 1.05 * by_arrival.mean
    assert ours.last <= 1.05 * by_arrival.last


@pytest.mark.parametrize(("prompt", "answer"), [(1000, 64), (1000, 300), (64, 300)])
def test_a_small_request_waits_less_than_a_second_beside_more_tenants_than_rows(prompt: int, answer: int) -> None:
    found = small_beside(CPU, 40, prompt=prompt, answer=answer, small=8)
    assert found.last < 1.0


def test_where_more_come_than_can_be_served_as_many_answers_end_as_in_order_of_arrival() -> None:
    """Each newcomer took the row of an answer that had just begun, so that hardly any was ever done."""
    ours, by_arrival = (overrun(CPU, is_fair=is_fair) for is_fair in (True, False))
    assert ours >= 0.9 * by_arrival > 100


def test_a_prompt_behind_a_long_one_is_read_at_half_speed_at_least() -> None:
    alone = behind(CPU, 4, 1000)
    assert behind(CPU, 8000, 1000) <= 2.2 * alone + 0.5


FULL = {"blocks": 200, "max_rows": 4, "max_step_tokens": 64, "max_context": 128}


def full(**changes: object) -> Bench:
    """Return a bench whose four rows decode, each for a tenant of its own, of which `t2` was served most."""
    bench = Bench(**{**FULL, **changes})
    for number in range(4):
        bench.submit(f"t{number}", [number] * 6, 40, tenant=f"t{number}")
    for _ in range(10):
        bench.step()
    bench.scheduler.waiting.queue.charge("t2", output=10)
    return bench


def rows(bench: Bench) -> set[str]:
    return set(bench.scheduler._residents.shares.rows)


def test_a_newcomers_short_request_takes_the_last_row_of_the_tenant_served_most() -> None:
    bench = full()
    bench.submit("one", [91] * 6, 4, tenant="new")
    bench.step()
    assert bench.stories["one"].tokens
    assert rows(bench) == {"t0", "t1", "t3", "new"}
    bench.run()
    for number in range(4):
        assert bench.stories[f"t{number}"].tokens == continuation([number] * 6, 40), "it goes on where it was"
    assert bench.scheduler.stats().preemptions == 1


def test_nobody_gives_the_last_row_to_one_that_was_served_more() -> None:
    bench = full()
    bench.submit("one", [91] * 6, 4, tenant="new")
    bench.scheduler.waiting.queue.charge("new", prompt=100)
    bench.step()
    assert rows(bench) == {"t0", "t1", "t2", "t3"}


def test_one_that_others_passed_too_often_takes_a_last_row_though_it_is_long() -> None:
    bench = full(max_bypass=1)
    bench.submit("long", [91] * 20, 4, tenant="long")
    bench.step()
    assert "long" not in rows(bench), "a prompt of more than a chunk"
    for number in range(2):
        bench.scheduler.waiting.queue.charge("t1", output=40)
        bench.submit(f"short{number}", [92] * 3, 30, tenant=f"short{number}")
        bench.step()
    assert rows(bench) >= {"short0", "long"}
    assert "short1" not in rows(bench)


def test_a_long_prompt_of_which_nothing_is_computed_gives_its_row_first() -> None:
    bench = full()
    bench.scheduler.cancel("t0")
    long = bench.submit("long", [91] * 30, 4, tenant="long")
    assert bench.scheduler._planner._admission.admit(long, may_preempt=False)
    bench.submit("one", [92] * 3, 4, tenant="new")
    bench.step()
    assert rows(bench) == {"t1", "t2", "t3", "new"}
    assert bench.scheduler._residents.preemptions[Cause.FAIRNESS] == 1
    bench.run()
    assert bench.stories["long"].tokens == continuation([91] * 30, 4)
