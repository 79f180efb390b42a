"""Who may wait where there is no room for all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.core.fairness import Prices
from inference.core.waiting import WaitingQueue
from inference.errors import OverloadedError
from inference.types import FinishReason, SamplingParams, Usage
from tests.inference.core.driving import Bench


@dataclass(eq=False)
class Item:
    tenant: str
    weight: int = 1000
    band: int = 0
    priority: int = 0
    may_yield: bool = True


class Queue:
    """A queue for so many, whose displaced items leave it at once."""

    def __init__(self, most: int, most_per_tenant: int) -> None:
        self.waiting: WaitingQueue[Item] = WaitingQueue(most, most_per_tenant, Prices())
        self.items: list[Item] = []

    def enter(self, item: Item) -> Item | None:
        gone = self.waiting.enter(item)
        self.items.append(item)
        if gone is not None:
            self.items.remove(gone)
            self.waiting.queue.remove(gone)
            self.waiting.leave(gone)
        self.waiting.queue.check()
        return gone

    @property
    def lengths(self) -> dict[str, int]:
        return dict(Counter(item.tenant for item in self.items))


def full(most: int, tenants: str) -> Queue:
    """A queue that these tenants have filled, in turns."""
    queue = Queue(most, most)
    for number in range(most):
        queue.enter(Item(tenants[number % len(tenants)]))
    return queue


def test_tenants_that_fill_the_queue_make_room_for_others_until_all_have_as_many() -> None:
    queue = full(12, "ab")
    for _ in range(4):
        assert queue.enter(Item("c")) is not None
    assert queue.lengths == {"a": 4, "b": 4, "c": 4}
    with pytest.raises(OverloadedError) as refusal:
        queue.enter(Item("c"))
    assert refusal.value.code == "engine_overloaded"
    with pytest.raises(OverloadedError):
        queue.enter(Item("a"))


def test_the_last_of_the_lowest_priority_goes_first() -> None:
    queue = Queue(3, 3)
    first, urgent, last = Item("a"), Item("a", priority=1), Item("a")
    for item in (first, urgent, last):
        queue.enter(item)
    assert queue.enter(Item("b")) is last
    with pytest.raises(OverloadedError):
        queue.enter(Item("a"))
    assert queue.enter(Item("c")) is first
    with pytest.raises(OverloadedError):  # nobody loses the only one
        queue.enter(Item("d"))


def test_what_has_run_stays() -> None:
    queue = Queue(2, 2)
    queue.enter(Item("a", may_yield=False))
    queue.enter(Item("a", may_yield=False))
    with pytest.raises(OverloadedError):
        queue.enter(Item("b"))


def test_a_heavier_tenant_may_have_more_waiting() -> None:
    queue = full(8, "a")
    for _ in range(6):
        queue.enter(Item("b", weight=3000))
    assert queue.lengths == {"a": 2, "b": 6}
    with pytest.raises(OverloadedError):
        queue.enter(Item("b", weight=3000))


def test_a_higher_band_is_not_displaced_by_a_lower_one() -> None:
    queue = Queue(4, 4)
    for _ in range(4):
        queue.enter(Item("a", band=1))
    with pytest.raises(OverloadedError):
        queue.enter(Item("b"))
    assert queue.enter(Item("c", band=2)) is not None


def test_a_higher_band_is_not_kept_out_by_many_of_a_lower_one() -> None:
    """It is served before all of those in any case."""
    queue = full(4, "abc")
    last = queue.items[-1]  # the second of a
    assert queue.enter(Item("d", band=1)) is last
    for _ in range(3):
        assert queue.enter(Item("d", band=1)) is not None
    assert queue.lengths == {"d": 4}
    with pytest.raises(OverloadedError):
        queue.enter(Item("d", band=1))
    with pytest.raises(OverloadedError):
        queue.enter(Item("a"))
    assert queue.enter(Item("e", band=1)) is not None  # of the same band the longest queue is shortened


@given(st.lists(st.sampled_from("aaaaabbbccd"), max_size=80), st.integers(4, 12))
def test_none_is_refused_that_has_less_than_an_equal_part(arrivals: list[str], most: int) -> None:
    queue = Queue(most, most)
    for tenant in arrivals:
        before = queue.lengths
        try:
            queue.enter(Item(tenant))
        except OverloadedError:
            assert sum(before.values()) == most
            assert before.get(tenant, 0) + 1 >= min(max(before.values()), most // 4)
        assert len(queue.items) <= most
        assert set(before) <= set(queue.lengths)  # a tenant that waits goes on waiting


def test_a_request_that_gave_its_place_ends_unrun_and_may_be_tried_again() -> None:
    bench = Bench(max_rows=1, max_waiting=2, max_waiting_per_tenant=2)
    bench.submit("a1", 6, 2, tenant="a")
    bench.step()
    bench.submit("a2", tenant="a")
    bench.submit("a3", tenant="a")
    bench.submit("b1", tenant="b")
    bench.run()
    end = bench.end("a3")
    assert end.error is not None
    assert (end.error.code, end.error.retryable) == ("engine_overloaded", True)
    assert end.usage == Usage()
    assert [bench.end(name).reason for name in ("a1", "a2", "b1")] == [FinishReason.LENGTH] * 3


def test_one_that_was_preempted_keeps_its_place() -> None:
    bench = Bench(blocks=7, block_size=4, max_rows=2, max_waiting=2, max_waiting_per_tenant=2, watermark_percent=0)
    for name in ("a1", "a2"):
        bench.submit(name, 8, 8, tenant="a", sampling=SamplingParams(seed=1))
    while not bench.scheduler.stats().preemptions:
        assert bench.step() is not None
    bench.submit("a3", tenant="a")
    bench.submit("b1", tenant="b")
    bench.run()
    assert bench.end("a3").error is not None
    assert all(bench.end(name).error is None for name in ("a1", "a2", "b1"))
