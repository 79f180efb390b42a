"""Which tenants get rows, blocks and a step's prompt tokens, and from whom they are taken back."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from inference.core.resident import Cause
from tests.inference.core.driving import Bench, continuation

WIDE: dict[str, Any] = {"blocks": 200, "max_rows": 8, "max_step_tokens": 64, "max_context": 128, "max_waiting": 300}


def rows_of(bench: Bench) -> dict[str, int]:
    return dict(bench.scheduler._residents.shares.rows)


def flood(bench: Bench, tenant: str, count: int, *, prompt: int = 6, output: int = 60, weight: int = 1000) -> None:
    """Submit `count` requests, each with a prompt of its own."""
    for number in range(count):
        bench.submit(f"{tenant}{number}", [number] * prompt, output, tenant=tenant, weight=weight)


def taken_back(bench: Bench) -> int:
    return bench.scheduler._residents.preemptions[Cause.FAIRNESS]


def test_rows_are_lent_while_nobody_waits():
    bench = Bench(**WIDE)
    flood(bench, "a", 10)
    bench.step()
    assert rows_of(bench) == {"a": 8}
    assert not taken_back(bench)


def test_a_tenant_without_a_row_gets_one_in_the_next_step_and_answers_stay_what_they_are():
    bench = Bench(**WIDE)
    flood(bench, "a", 10, output=20)
    bench.step()
    bench.step()
    bench.submit("one", [91] * 6, 4, tenant="b")
    plan = bench.step()
    assert plan is not None
    assert "one" in {row.request_id for row in plan.rows}
    assert bench.stories["one"].tokens
    assert rows_of(bench) == {"a": 7, "b": 1}
    bench.run()
    for number in range(10):
        assert bench.stories[f"a{number}"].tokens == continuation([number] * 6, 20)


def test_half_a_share_is_taken_back_at_once_and_the_rest_bit_by_bit():
    bench = Bench(**WIDE, reclaim_seconds=1.0)
    flood(bench, "a", 8)
    bench.step()
    flood(bench, "b", 8)
    seen = []
    for _ in range(7):
        bench.step()
        seen.append(rows_of(bench)["b"])
        bench.now += 0.5
    assert seen == [1, 2, 2, 3, 3, 4, 4]
    bench.now += 5.0
    bench.step()
    assert rows_of(bench) == {"a": 4, "b": 4}, "more was taken than what was lent"


def test_shares_go_by_weight():
    bench = Bench(**WIDE, reclaim_seconds=0.0)
    flood(bench, "a", 8)
    bench.step()
    flood(bench, "b", 8, weight=3000)
    for _ in range(10):
        bench.step()
    assert rows_of(bench) == {"a": 2, "b": 6}


def test_blocks_are_taken_back_too():
    bench = Bench(blocks=41, max_rows=8, max_context=128, max_step_tokens=64, watermark_percent=0)
    for number in range(4):
        bench.submit(f"a{number}", [number] * 38, 2, tenant="a")
    bench.step()
    bench.step()
    assert bench.pool.free == 0
    bench.submit("b0", [9] * 30, 10, tenant="b")
    bench.step()
    assert rows_of(bench)["b"] == 1
    assert taken_back(bench) == 1


def test_the_last_row_of_a_tenant_is_never_taken():
    bench = Bench(blocks=41, max_rows=8, max_context=160, max_step_tokens=160, watermark_percent=0)
    bench.submit("a0", [1] * 140, 10, tenant="a")
    bench.step()
    bench.submit("b0", [2] * 60, 10, tenant="b")
    bench.step()
    assert rows_of(bench) == {"a": 1}


def test_the_tenant_served_most_gives_and_of_its_sequences_the_one_with_least_computed():
    bench = Bench(**WIDE)
    flood(bench, "a", 4)
    flood(bench, "b", 3)
    bench.step()
    bench.submit("b9", [77] * 3, 60, tenant="b")
    bench.step()
    bench.scheduler.waiting.queue.charge("b", output=500)
    bench.submit("one", [91] * 6, 4, tenant="c")
    bench.step()
    assert rows_of(bench) == {"a": 4, "b": 3, "c": 1}
    assert bench.scheduler._live["b9"].preempted_at == bench.now
    assert bench.scheduler._live["b9"] in bench.scheduler.waiting.queue


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_tenant_that_was_served_less_keeps_its_rows_while_it_waits_for_more(waiting):
    bench = Bench(**WIDE)
    flood(bench, "a", 8 + waiting)
    bench.submit("b0", [5] * 6, 4, tenant="b")
    bench.scheduler.waiting.queue.charge("b", output=1000)
    bench.step()
    bench.step()
    assert rows_of(bench) == ({"a": 8} if waiting else {"a": 7, "b": 1})
    bench.run(until=lambda: bool(bench.stories["b0"].finished), limit=200)


def test_nothing_is_preempted_when_it_would_not_be_enough():
    bench = Bench(blocks=41, max_rows=8, max_context=160, max_step_tokens=160, watermark_percent=0)
    for number in range(3):
        bench.submit(f"a{number}", [number] * 20, 30, tenant="a")
    bench.step()
    bench.submit("b0", [9] * 150, 4, tenant="b")
    bench.step()
    assert rows_of(bench) == {"a": 3}
    assert not taken_back(bench)


def test_with_a_step_in_flight_it_is_committed_before_room_is_taken_back():
    bench = Bench(**WIDE)
    flood(bench, "a", 8)
    plan = bench.plan()
    assert plan is not None
    bench.submit("one", [91] * 6, 4, tenant="b")
    assert bench.plan() is None
    assert not taken_back(bench)
    bench.finish(plan)
    following = bench.plan()
    assert following is not None
    assert "one" in {row.request_id for row in following.rows}


def test_prompt_tokens_of_a_step_go_by_counter_and_not_by_age():
    bench = Bench(**{**WIDE, "max_step_tokens": 16, "prefill_chunk": 16, "max_context": 200}, prefix_cache=False)
    for number in range(3):
        bench.submit(f"long{number}", [number] * 90, 4, tenant="a")
    bench.step()
    bench.submit("short", [91] * 8, 4, tenant="b")
    plan = bench.step()
    assert plan is not None
    assert [row.request_id for row in plan.rows] == ["short", "long0"]


def test_priority_counts_within_a_tenant_only():
    bench = Bench(**{**WIDE, "max_rows": 1, "max_step_tokens": 16})
    bench.submit("runs", 6, 4, tenant="a")
    bench.step()
    bench.submit("later", [1] * 6, 1, tenant="a")
    bench.submit("sooner", [2] * 6, 1, tenant="a", priority=5)
    bench.submit("other", [3] * 6, 1, tenant="b")
    bench.run()
    assert bench.begun == ["runs", "other", "sooner", "later"]


def test_a_flood_of_tenants_that_do_not_fit_costs_a_step_a_fixed_number_of_looks(monkeypatch):
    """What a step looks at when something has changed, by how many tenants wait."""
    looks: Counter[int] = Counter()
    for tenants in (25, 250):
        bench = Bench(**{**WIDE, "blocks": 65, "max_context": 256}, watermark_percent=0)
        bench.submit("runs", [1] * 8, 200, tenant="runs")
        bench.step()
        for number in range(tenants):
            bench.submit(f"waits{number}", [number % 90] * 250, 4, tenant=f"t{number}")
        bench.step()
        match = bench.pool.match
        shares = type(next(iter(bench.scheduler.waiting.queue._shares.values())))
        turn = shares.turn

        def counted(share, tenants=tenants, turn=turn):
            looks[tenants] += 1
            return turn.fget(share)

        def matched(keys, tenants=tenants, match=match):
            looks[tenants] += 1
            return match(keys)

        bench.scheduler.check = lambda: None
        with monkeypatch.context() as patch:
            patch.setattr(shares, "turn", property(counted))
            patch.setattr(bench.pool, "match", matched)
            for number in range(40):  # each step something ends, so that everybody is looked at anew
                bench.submit(f"short{number}", [number] * 3, 1, tenant="runs")
                bench.scheduler.cancel(f"short{number}")
                bench.scheduler._residents.freed += 1
                bench.step()
    assert looks[250] <= 1.2 * looks[25]
    assert looks[250] < 40 * 200


def of_lower_bands(bench: Bench, count: int = 4) -> None:
    for number in range(count):
        bench.submit(f"low{number}", [number] * 6, 100, tenant=f"low{number}")
    bench.step()


@pytest.mark.parametrize("blocks", [200, 17])  # rows are short, or blocks
def test_a_higher_band_that_has_waited_takes_the_last_row_of_a_lower_one(blocks: int) -> None:
    bench = Bench(**{**WIDE, "max_rows": 4 if blocks == 200 else 8, "blocks": blocks, "reclaim_seconds": 1.0})
    if blocks == 200:
        of_lower_bands(bench)
    else:
        bench.submit("low0", [0] * 30, 20, tenant="low0")
        bench.submit("low1", [1] * 20, 20, tenant="low1")
        bench.step()
    bench.submit("high", [91] * 20, 4, tenant="high", band=1)
    for _ in range(5):
        bench.step()
    assert not bench.stories["high"].started, "it waits for a while, as any that comes when all have one row"
    bench.now += 1.0
    plan = bench.step()
    assert plan is not None
    assert "high" in {row.request_id for row in plan.rows}
    assert taken_back(bench) == 1
    bench.run()
    assert bench.stories["high"].tokens == continuation([91] * 20, 4)
    for name, story in bench.stories.items():
        if name != "high":
            count = 100 if blocks == 200 else 20
            assert story.tokens == continuation(story.prompt, count), "what lost its row goes on where it was"


def test_a_higher_band_takes_no_more_than_its_share() -> None:
    bench = Bench(**{**WIDE, "max_rows": 4, "reclaim_seconds": 1.0})
    of_lower_bands(bench)
    for number in range(4):
        bench.submit(f"high{number}", [90 + number] * 6, 60, tenant="high", band=1, weight=4000)
    most = 0
    for _ in range(20):
        bench.now += 1.0
        bench.step()
        most = max(most, rows_of(bench).get("high", 0))
    assert most == 2, "half of all weights"
    assert taken_back(bench) == 2


def test_the_last_row_is_safe_from_lower_bands() -> None:
    bench = Bench(**{**WIDE, "max_rows": 2, "reclaim_seconds": 1.0})
    bench.submit("high", [1] * 6, 40, tenant="high", band=1)
    bench.submit("even", [2] * 6, 40, tenant="even", band=1)
    bench.step()
    bench.submit("low", [3] * 6, 4, tenant="low")
    for _ in range(20):
        bench.now += 1.0
        bench.step()
    assert not taken_back(bench)
    assert rows_of(bench) == {"high": 1, "even": 1}


def test_what_a_waiting_request_shares_with_a_victim_is_no_gain():
    """One in a lower band was preempted and came back nine times, for blocks that both have anyway."""
    bench = Bench(blocks=25, max_rows=8, max_context=96, max_step_tokens=128, prefill_chunk=128, watermark_percent=15)
    bench.submit("other", [9] * 13, 30, tenant="o", band=1)
    bench.submit("low", [7] * 24 + [1, 2, 3], 19, tenant="t:b", domain="t", band=-5, weight=10)
    for _ in range(3):
        bench.step()
        bench.now += 0.05
    bench.submit("high", [7] * 24 + [50 + number for number in range(38)], 4, tenant="t", domain="t", band=0)
    while "high" not in bench.begun:
        assert bench.step() is not None
        bench.now += 0.05
    assert taken_back(bench) == 0
