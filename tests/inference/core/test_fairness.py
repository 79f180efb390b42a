from __future__ import annotations

from dataclasses import dataclass

from inference.core.fairness import FairQueue, Prices


@dataclass(eq=False)
class Item:
    tenant: str
    weight: int = 1000
    band: int = 0
    priority: int = 0


def pop(queue: FairQueue[Item]) -> Item:
    item = queue.peek()
    assert item is not None
    assert queue.remove(item)
    return item


def test_within_a_tenant_first_in_first_out():
    queue: FairQueue[Item] = FairQueue()
    items = [Item("a") for _ in range(5)]
    for item in items:
        queue.push(item)
    assert [pop(queue) for _ in items] == items
    assert queue.peek() is None
    assert not queue.remove(items[0])


def test_the_front_goes_before_the_back():
    queue: FairQueue[Item] = FairQueue()
    first, second, third = (Item("a") for _ in range(3))
    queue.push(first)
    queue.push(second, front=True)
    queue.push(third, front=True)
    assert [pop(queue) for _ in range(3)] == [third, second, first]


def test_the_lowest_counter_goes_first_and_ties_go_to_the_oldest():
    queue: FairQueue[Item] = FairQueue()
    for tenant in "bac":
        queue.push(Item(tenant))
    assert [item.tenant for item in queue.heads()] == ["b", "a", "c"]
    queue.charge("b", prompt=10)
    queue.charge("a", prompt=20)
    assert [item.tenant for item in queue.heads()] == ["c", "b", "a"]
    assert queue.peek() is queue.heads(1)[0]


def test_charges_are_priced_and_divided_by_the_weight_exactly():
    queue: FairQueue[Item] = FairQueue(Prices(prompt=1000, cached=100, output=2000))
    queue.push(Item("light", weight=1000))
    queue.push(Item("heavy", weight=3000))
    for tenant in ("light", "heavy"):
        queue.charge(tenant, prompt=6, cached=30, output=3)
    assert queue.counter("light") == 15_000_000
    assert queue.counter("heavy") == 5_000_000
    queue.charge("heavy", prompt=-6)
    assert queue.counter("heavy") == 3_000_000


def test_a_tenant_that_comes_back_is_lifted_to_the_lowest_that_waits():
    queue: FairQueue[Item] = FairQueue()
    for tenant in ("busy", "busier"):
        queue.push(Item(tenant))
    queue.charge("busy", prompt=100)
    queue.charge("busier", prompt=300)
    queue.push(Item("idle"))
    assert queue.counter("idle") == queue.counter("busy")


def test_with_nobody_waiting_the_floor_is_that_of_the_queue_that_emptied_last():
    queue: FairQueue[Item] = FairQueue()
    queue.push(Item("a"))
    pop(queue)
    queue.charge("a", output=500)
    queue.push(Item("b"))
    assert queue.counter("b") == queue.counter("a")


def test_lifting_never_lowers():
    queue: FairQueue[Item] = FairQueue()
    queue.push(Item("a"))
    pop(queue)
    queue.charge("a", output=500)
    before = queue.counter("a")
    queue.push(Item("b"))
    queue.charge("b", prompt=-400)
    queue.push(Item("a"))
    assert queue.counter("a") == before


def test_a_push_to_the_front_does_not_lift():
    queue: FairQueue[Item] = FairQueue()
    queue.push(Item("a"))
    back = pop(queue)
    queue.push(Item("b"))
    queue.charge("b", prompt=50)
    queue.push(back, front=True)
    assert queue.counter("a") == 0


def test_forgetting_keeps_active_tenants_and_those_above_the_floor():
    queue: FairQueue[Item] = FairQueue()
    for tenant in ("low", "active", "high", "waits"):
        queue.push(Item(tenant))
    queue.charge("waits", prompt=10)
    queue.charge("high", prompt=20)
    for item in list(queue.heads()):
        if item.tenant != "waits":
            queue.remove(item)
    queue.push(gone := Item("emptied"))
    queue.remove(gone)
    queue.prune({"active"})
    assert set(queue._shares) == {"active", "high", "waits", "emptied"}


def test_prices_follow_the_ratios_of_a_rate_card():
    assert Prices.of({"input": 200, "cache_read": 50, "output": 800}) == Prices(cached=250, output=4000)
    assert Prices.of({"input": 200, "output": 200}) == Prices(output=1000)
    assert Prices.of({"input": 200, "cache_read": 0, "output": 0}) == Prices(cached=1, output=1)
    assert Prices.of({}) == Prices.of({"input": 0, "output": 10}) == Prices()


def test_a_higher_band_comes_before_all_of_a_lower_one():
    queue: FairQueue[Item] = FairQueue()
    low, high = [Item("low") for _ in range(2)], [Item("high", band=1) for _ in range(2)]
    for item in (*low, *high):
        queue.push(item)
    queue.charge("high", output=1_000_000)
    assert [item.tenant for item in queue.heads()] == ["high", "low"]
    assert [pop(queue) for _ in range(4)] == [*high, *low]


def test_a_newcomer_is_raised_to_those_of_its_own_band():
    """What a lower band lacks is no head start for it over its peers."""
    queue: FairQueue[Item] = FairQueue()
    queue.push(Item("low"))
    queue.push(Item("peer", band=1))
    queue.charge("peer", output=500)
    queue.push(Item("new", band=1))
    assert queue.counter("new") == queue.counter("peer") > queue.counter("low")


def test_passing_through_counts_as_waiting_and_going_at_once():
    passed, pushed = FairQueue(), FairQueue()
    for number in range(40):
        item = Item("abc"[number * 7 % 3], weight=1000 + 500 * (number % 2), band=number % 5 // 4)
        passed.pass_through(item)
        pushed.push(item)
        assert pushed.peek() is item
        pushed.remove(item)
        for queue in (passed, pushed):
            queue.charge(item.tenant, prompt=number * 13 % 17)
        assert [passed.turn(tenant) for tenant in "abc"[: number + 1] if passed.counter(tenant)] == [
            pushed.turn(tenant) for tenant in "abc"[: number + 1] if pushed.counter(tenant)
        ]
    assert len(passed) == len(pushed) == 0
    assert passed.changes == pushed.changes
