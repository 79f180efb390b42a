"""Places of tenants: given in order, to each tenant its own, and to nobody who has gone."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.concurrency import ConcurrencyLimiter
from gateway.errors.refusal import Refusal
from tests.gateway.doubles import make_principal


async def turn():
    """Let everybody who can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


def entering(limiter, principal, size=0):
    return asyncio.ensure_future(limiter.enter(principal, size))


async def refused(waiting):
    with pytest.raises(Refusal) as caught:
        await waiting
    return caught.value.status, caught.value.code, caught.value.headers.get("retry-after")


async def test_places_are_given_in_the_order_of_coming():
    limiter, principal = ConcurrencyLimiter(), make_principal(concurrency=1)
    await limiter.enter(principal)
    order = []

    async def one(number):
        await limiter.enter(principal)
        order.append(number)

    waiting = [asyncio.ensure_future(one(number)) for number in range(5)]
    await turn()
    assert (order, len(limiter), limiter.waiting) == ([], 1, 5)
    for number in range(5):
        limiter.leave(principal)
        await turn()
        assert order == list(range(number + 1))
        assert len(limiter) == 1
    limiter.leave(principal)
    await asyncio.gather(*waiting)
    assert not limiter._tenants


async def test_newcomer_does_not_pass_those_who_wait():
    limiter, principal = ConcurrencyLimiter(), make_principal(concurrency=1)
    await limiter.enter(principal)
    first = entering(limiter, principal)
    await turn()
    limiter.leave(principal)  # the place is the first's from now on, though it hasn't had a turn yet
    second = entering(limiter, principal)
    await turn()
    assert (first.done(), second.done()) == (True, False)
    limiter.leave(principal)
    await second


async def test_newcomer_whose_plan_was_raised_does_not_pass_those_who_wait():
    limiter, principal = ConcurrencyLimiter(), make_principal(concurrency=1)
    raised = replace(principal, concurrency=2)
    await limiter.enter(principal)
    first, second = entering(limiter, principal), entering(limiter, raised)
    await turn()
    assert (first.done(), second.done()) == (False, False)
    limiter.leave(principal)
    await asyncio.gather(first, second)
    assert len(limiter) == 2


async def test_nobody_waits_for_another_tenant():
    limiter, busy, other = ConcurrencyLimiter(length=3), make_principal(concurrency=1), make_principal(concurrency=1)
    await limiter.enter(busy)
    waiting = [entering(limiter, busy) for _ in range(3)]
    await turn()
    await asyncio.wait_for(limiter.enter(other), 120)
    assert await refused(limiter.enter(busy)) == (429, "concurrency_limit_exceeded", "1")
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_queue_is_bounded_in_bytes():
    limiter, principal = ConcurrencyLimiter(size=100), make_principal(concurrency=1)
    await limiter.enter(principal, 10_000)  # what runs doesn't wait
    waiting = entering(limiter, principal, 60)
    await turn()
    assert (await refused(limiter.enter(principal, 41)))[0] == 429
    fits = entering(limiter, principal, 40)
    await turn()
    assert limiter.waiting == 2
    limiter.leave(principal)
    limiter.leave(principal)
    await asyncio.gather(waiting, fits)


async def test_deadline_is_a_429_that_says_when_the_queue_has_moved_on():
    limiter, principal = ConcurrencyLimiter(seconds=0.01), make_principal(concurrency=1)
    await limiter.enter(principal)
    limiter._tenants[principal.queue].interval = 3.0  # one ends every three seconds
    assert await refused(limiter.enter(principal)) == (429, "concurrency_limit_exceeded", "6")
    assert limiter.waiting == 0
    limiter.leave(principal)
    assert not limiter._tenants


async def test_who_is_cancelled_leaves_the_queue_and_the_next_moves_up():
    limiter, principal = ConcurrencyLimiter(), make_principal(concurrency=1)
    await limiter.enter(principal)
    first, second = entering(limiter, principal, 5), entering(limiter, principal)
    await turn()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert limiter.waiting == 1
    limiter.leave(principal)
    await asyncio.wait_for(second, 120)
    limiter.leave(principal)
    assert not limiter._tenants


@pytest.mark.parametrize("leaves_first", [True, False])
async def test_place_given_to_somebody_who_is_cancelled_in_that_moment_goes_on(leaves_first):
    limiter, principal = ConcurrencyLimiter(), make_principal(concurrency=1)
    await limiter.enter(principal)
    first, second = entering(limiter, principal), entering(limiter, principal)
    await turn()
    steps = [lambda: limiter.leave(principal), first.cancel]
    for step in steps if leaves_first else reversed(steps):
        step()
    await asyncio.wait_for(second, 120)
    assert first.cancelled()
    assert len(limiter) == 1
    limiter.leave(principal)
    assert not limiter._tenants


async def test_close_refuses_who_waits_and_who_comes():
    limiter, principal = ConcurrencyLimiter(), make_principal(concurrency=1)
    await limiter.enter(principal)
    waiting = entering(limiter, principal)
    await turn()
    limiter.close()
    assert (await refused(waiting))[:2] == (503, "server_draining")
    assert (await refused(limiter.enter(principal)))[:2] == (503, "server_draining")
    limiter.leave(principal)
    assert not limiter._tenants
