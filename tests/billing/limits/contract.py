"""What every rate store must do. A store joins by subclassing `RateStoreContract` and giving `open_store`.

Time is the test's: the store gets a `Clock`, and nothing here waits.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.limits import gcra
from billing.limits.types import Bucket, Impossible, Lease, Limited, RateStore, Take, Taken

SECOND = 1_000_000
PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.differing_executors])


@dataclass
class Clock:
    """Microseconds that only the test moves."""

    now: int = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.now

    def advance(self, microseconds: int) -> None:
        self.now += microseconds


def bucket(limit: int = 10, period_us: int = 10 * SECOND, burst: int = 5, key: str = "t:requests") -> Bucket:
    return Bucket(key=key, name=key.partition(":")[2], limit=limit, period_us=period_us, burst=burst)


def credit(limit: int = 1_000, burst: int = 500) -> Bucket:
    return bucket(limit=limit, burst=burst, key="t:credits")


def lease(holder: str, limit: int = 2, ttl_us: int = 30 * SECOND) -> Lease:
    return Lease(key="t:concurrency", limit=limit, holder=holder, ttl_us=ttl_us)


buckets = st.builds(
    bucket,
    limit=st.integers(1, 10**11),
    period_us=st.integers(1, 5 * 3600 * SECOND),
    burst=st.integers(1, 10**11),
)


class RateStoreContract:
    """The contract; `open_store` gives a store whose time is `clock`, empty at first."""

    def open_store(self, clock: Clock) -> AbstractAsyncContextManager[RateStore]:
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    async def test_burst_is_taken_at_once_and_then_the_rate_counts(self, clock):
        async with self.open_store(clock) as store:
            for left in (4, 3, 2, 1, 0):
                taken = await store.take([Take(bucket(), 1)])
                assert isinstance(taken, Taken)
                assert (taken.states[0].remaining, taken.states[0].limit) == (left, 5)
            refused = await store.take([Take(bucket(), 1)])
            assert refused == Limited(name="requests", retry_us=SECOND, states=refused.states)
            assert refused.states[0].remaining == 0
            assert refused.states[0].reset_us == 5 * SECOND
            clock.advance(SECOND - 1)
            assert isinstance(await store.take([Take(bucket(), 1)]), Limited)
            clock.advance(1)
            assert isinstance(await store.take([Take(bucket(), 1)]), Taken)

    async def test_a_full_bucket_never_grows_beyond_its_burst(self, clock):
        async with self.open_store(clock) as store:
            assert isinstance(await store.take([Take(bucket(), 5)]), Taken)
            clock.advance(3600 * SECOND)
            taken = await store.take([Take(bucket(), 0)])
            assert taken.states[0].remaining == 5
            assert isinstance(await store.take([Take(bucket(), 5)]), Taken)
            assert isinstance(await store.take([Take(bucket(), 1)]), Limited)

    async def test_all_or_nothing_over_several_buckets(self, clock):
        async with self.open_store(clock) as store:
            await store.take([Take(credit(), 450)])
            refused = await store.take([Take(bucket(), 1), Take(credit(), 100)], lease("a"))
            assert isinstance(refused, Limited)
            assert refused.name == "credits"
            assert [state.remaining for state in refused.states] == [5, 50]
            taken = await store.take([Take(bucket(), 5), Take(credit(), 50)], lease("b", limit=1))
            assert isinstance(taken, Taken)
            assert [state.remaining for state in taken.states] == [0, 0]

    async def test_the_reason_that_lasts_longest_is_named(self, clock):
        async with self.open_store(clock) as store:
            await store.take([Take(bucket(), 5), Take(credit(), 500)])
            refused = await store.take([Take(bucket(), 3), Take(credit(), 1)])
            assert refused.name == "requests"
            assert refused.retry_us == 3 * SECOND

    async def test_the_same_bucket_twice_counts_twice(self, clock):
        async with self.open_store(clock) as store:
            assert isinstance(await store.take([Take(bucket(), 3), Take(bucket(), 3)]), Limited)
            assert isinstance(await store.take([Take(bucket(), 3), Take(bucket(), 2)]), Taken)

    async def test_more_than_the_burst_is_impossible_and_takes_nothing(self, clock):
        async with self.open_store(clock) as store:
            answer = await store.take([Take(bucket(), 1), Take(credit(), 501)], lease("a", limit=1))
            assert answer == Impossible(name="credits", burst=500, cost=501)
            taken = await store.take([Take(bucket(), 5), Take(credit(), 500)], lease("b", limit=1))
            assert isinstance(taken, Taken)

    async def test_adjust_makes_a_debt_that_time_repays(self, clock):
        async with self.open_store(clock) as store:
            await store.take([Take(bucket(), 5)])
            await store.adjust(bucket(), 20)
            refused = await store.take([Take(bucket(), 1)])
            assert refused.retry_us == 21 * SECOND
            clock.advance(21 * SECOND)
            assert isinstance(await store.take([Take(bucket(), 1)]), Taken)

    async def test_adjust_gives_back_but_never_beyond_full(self, clock):
        async with self.open_store(clock) as store:
            await store.take([Take(bucket(), 3)])
            await store.adjust(bucket(), -2)
            assert (await store.take([Take(bucket(), 0)])).states[0].remaining == 4
            await store.adjust(bucket(), -100)
            assert (await store.take([Take(bucket(), 5)])).states[0].remaining == 0
            assert isinstance(await store.take([Take(bucket(), 1)]), Limited)

    async def test_a_lease_is_given_back_with_what_its_request_took_too_much_or_too_little(self, clock):
        async with self.open_store(clock) as store:
            await store.take([Take(bucket(), 3), Take(credit(), 400)], lease("a", limit=1))
            await store.give_back(lease("a", limit=1), [Take(bucket(), -1), Take(credit(), 50)])
            seen = await store.take([Take(bucket(), 0), Take(credit(), 0)], lease("b", limit=1))
            assert [state.remaining for state in seen.states] == [3, 50]
            await store.give_back(lease("nobody"), [Take(credit(), -450)])
            assert (await store.take([Take(credit(), 0)])).states[0].remaining == 500

    async def test_leases_are_places_that_are_given_back(self, clock):
        async with self.open_store(clock) as store:
            assert isinstance(await store.take([], lease("a")), Taken)
            assert isinstance(await store.take([], lease("b")), Taken)
            refused = await store.take([Take(bucket(), 1)], lease("c"))
            assert (refused.name, refused.retry_us) == ("concurrency", 30 * SECOND)
            assert refused.states[0].remaining == 5
            await store.give_back(lease("a"))
            await store.give_back(lease("nobody"))
            assert isinstance(await store.take([], lease("c")), Taken)
            assert isinstance(await store.take([], lease("d")), Limited)

    async def test_a_lease_held_already_is_taken_again_without_a_second_place(self, clock):
        async with self.open_store(clock) as store:
            assert isinstance(await store.take([], lease("a")), Taken)
            assert isinstance(await store.take([], lease("a")), Taken)
            assert isinstance(await store.take([], lease("b")), Taken)
            assert isinstance(await store.take([], lease("a")), Taken)

    async def test_a_lease_ends_by_itself_unless_it_is_renewed(self, clock):
        async with self.open_store(clock) as store:
            await store.take([], lease("a"))
            await store.take([], lease("b"))
            clock.advance(20 * SECOND)
            await store.renew(lease("a"))
            clock.advance(10 * SECOND)
            assert isinstance(await store.take([], lease("c")), Taken)
            refused = await store.take([], lease("d"))
            assert refused.retry_us == 20 * SECOND

    async def test_an_ended_lease_cannot_be_renewed(self, clock):
        async with self.open_store(clock) as store:
            await store.take([], lease("a", limit=1))
            clock.advance(30 * SECOND)
            await store.renew(lease("a", limit=1))
            assert isinstance(await store.take([], lease("b", limit=1)), Taken)

    async def test_tenants_do_not_share_buckets(self, clock):
        async with self.open_store(clock) as store:
            await store.take([Take(bucket(), 5)])
            assert isinstance(await store.take([Take(bucket(key="u:requests"), 5)]), Taken)

    @PROPERTY
    @given(
        one=buckets,
        calls=st.lists(st.tuples(st.integers(0, 3600 * SECOND), st.floats(0, 1)), min_size=1, max_size=30),
    )
    def test_never_more_than_burst_and_rate_over_any_interval(self, one, calls):
        async def play():
            clock = Clock()
            taken = []
            async with self.open_store(clock) as store:
                for wait, fraction in calls:
                    clock.advance(wait)
                    cost = int(one.burst * fraction)
                    if isinstance(await store.take([Take(one, cost)]), Taken):
                        taken.append((clock.now, cost))
            for first in range(len(taken)):
                total = 0
                for moment, cost in taken[first:]:
                    total += cost
                    allowed = (gcra.burst_us(one) + moment - taken[first][0]) * one.limit // one.period_us
                    assert total <= allowed

        asyncio.run(play())

    @PROPERTY
    @given(one=buckets, calls=st.lists(st.tuples(st.integers(0, 10 * SECOND), st.integers(0, 10**11)), max_size=20))
    def test_retry_after_is_exact(self, one, calls):
        async def play():
            clock = Clock()
            async with self.open_store(clock) as store:
                for wait, cost in calls:
                    clock.advance(wait)
                    answer = await store.take([Take(one, min(cost, one.burst))])
                    if isinstance(answer, Limited):
                        clock.advance(answer.retry_us - 1)
                        assert isinstance(await store.take([Take(one, min(cost, one.burst))]), Limited)
                        clock.advance(1)
                        assert isinstance(await store.take([Take(one, min(cost, one.burst))]), Taken)

        asyncio.run(play())

    @PROPERTY
    @given(one=buckets, deltas=st.lists(st.integers(-(10**11), 10**11), max_size=20))
    def test_what_remains_can_be_taken_and_not_one_more(self, one, deltas):
        async def play():
            clock = Clock()
            async with self.open_store(clock) as store:
                for delta in deltas:
                    await store.adjust(one, delta)
                    state = (await store.take([Take(one, 0)])).states[0]
                    assert 0 <= state.remaining <= one.burst
                    if state.remaining:
                        assert isinstance(await store.take([Take(one, state.remaining)]), Taken)
                        await store.adjust(one, -state.remaining)
                    if 0 < state.remaining < one.burst:
                        over = await store.take([Take(one, state.remaining + 1)])
                        assert isinstance(over, Limited)

        asyncio.run(play())
