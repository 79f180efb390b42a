"""What costs nothing is answered at a pace, each owner's for itself."""

from __future__ import annotations

import pytest

from gateway.concurrency.patience import BURST, LONGEST, MOST_OWNERS, RATE, Patience
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


async def test_many_that_come_together_wait_no_longer_than_the_bound(clock):
    async def at_once(seconds):
        clock.slept.append(seconds)

    patience = Patience(clock, at_once)
    await ask(patience, "a", 5000)
    assert max(clock.slept) == pytest.approx(LONGEST)


async def test_owners_that_rested_are_forgotten(patience, clock):
    for number in range(MOST_OWNERS):
        await patience.wait(number)
    clock.now += 1 / RATE
    await patience.wait("last")
    assert len(patience._due) == 1
