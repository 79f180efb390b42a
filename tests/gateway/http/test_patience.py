"""What costs nothing is answered at a pace, each owner's for itself."""

from __future__ import annotations

import asyncio

import pytest

from gateway.http.bounds import BURST, FREE_BYTES, LONGEST, MOST_OWNERS, MOST_WAITING, RATE, Patience
from tests.gateway.concurrency.test_pace import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def patience(clock):
    return Patience(clock, clock.sleep)


async def ask(patience, owner, times):
    for _ in range(times):
        await patience.wait(owner)


async def test_the_first_ones_are_answered_at_once_and_the_others_one_after_the_other(patience, clock):
    await ask(patience, "a", BURST)
    assert clock.slept == []
    await ask(patience, "a", 100)
    assert sum(clock.slept) == pytest.approx(99 / RATE, abs=1 / RATE)
    assert max(clock.slept) == pytest.approx(1 / RATE)


async def test_bytes_that_were_read_for_nothing_count_as_more_answers(patience, clock):
    for _ in range(BURST // 20 - 1):
        await patience.wait("a", 19 * FREE_BYTES)
    assert clock.slept == []
    for _ in range(3):
        await patience.wait("a", 19 * FREE_BYTES)
    assert sum(clock.slept) == pytest.approx(20 / RATE, abs=1e-5)


async def test_another_owner_does_not_wait_for_it(patience, clock):
    await ask(patience, "a", BURST + 2)
    waited = len(clock.slept)
    assert waited
    await ask(patience, "b", BURST)
    assert len(clock.slept) == waited


async def test_who_rests_has_the_first_ones_again(patience, clock):
    await ask(patience, "a", 2 * BURST)
    clock.now += BURST / RATE
    clock.slept.clear()
    await ask(patience, "a", BURST)
    assert clock.slept == []


async def test_so_many_wait_and_none_longer_than_the_bound(clock):
    woken = asyncio.Event()

    async def until_woken(seconds):
        clock.slept.append(seconds)
        await woken.wait()

    patience = Patience(clock, until_woken)
    for _ in range(BURST + 1):
        assert await patience.wait("a")
    waits = [asyncio.ensure_future(patience.wait("a")) for _ in range(2 * MOST_WAITING)]
    for _ in range(3):
        await asyncio.sleep(0)
    done = [task for task in waits if task.done()]
    assert not any(task.result() for task in done)
    woken.set()
    assert sum(await asyncio.gather(*waits)) == len(waits) - len(done) == MOST_WAITING
    assert max(clock.slept) <= LONGEST
    assert await patience.wait("a"), "who waited makes room"


async def test_owners_that_rested_are_forgotten(patience, clock):
    for number in range(MOST_OWNERS):
        await patience.wait(number)
    clock.now += 1 / RATE
    await patience.wait("last")
    assert len(patience._due) == 1
