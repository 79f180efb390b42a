"""Leases: renewed together, fenced in time, and given up when they are somebody else's."""

from __future__ import annotations

import asyncio

import pytest

from base.ids import uuid7
from billing.writer.entry import WriterError
from billing.writer.operations import Release, Renew
from gateway.generation import leases
from gateway.generation.generation import start_generation
from inference.types import FinishReason
from tests.gateway.doubles import collect, make_intent, make_stand


def leases_of(stand):
    return leases.Leases(stand.runtime.requests, stand.writer)


async def running(**options):
    """Return a stand with one generation that waits before its sixth token."""
    stand = await make_stand(**({"tokens": 40, "hang_at": 6} | options))
    generation = await start_generation(stand.runtime, stand.principal, make_intent(), uuid7())
    await stand.engine.hanging()
    while generation.checkpoint().get("output") != 5:  # noqa: ASYNC110 - its task only has to be let run
        await asyncio.sleep(0)
    return stand, generation


async def test_renew_pushes_the_lease_and_keeps_the_checkpoint():
    stand, generation = await running()
    generation.lease_until = 0.0
    await leases_of(stand).renew()
    [renew] = stand.writer.renews
    assert renew.owner == stand.runtime.requests.incarnation
    assert renew.checkpoints == {generation.id: {"input": 100, "output": 5}}
    now = asyncio.get_running_loop().time()
    assert now + 20 < generation.lease_until <= now + 30
    stand.engine.release()
    _, outcome, _ = await collect(generation)
    assert outcome.error is None


async def test_generation_whose_hold_is_not_renewed_is_stopped():
    stand, generation = await running()
    other = uuid7()
    stand.writer.holds[generation.id].owner = other
    await leases_of(stand).renew()
    _, outcome, _ = await collect(generation)
    assert (outcome.reason, outcome.error.code) == (FinishReason.ERROR, "lease_lost")
    assert stand.engine.cancellations == [generation.id.hex]


async def test_generation_is_stopped_five_seconds_before_its_lease_ends():
    stand, generation = await running()
    generation.lease_until = asyncio.get_running_loop().time() + 5.5
    leases_of(stand).fence()
    await asyncio.sleep(0)
    assert not stand.engine.cancellations
    generation.lease_until = asyncio.get_running_loop().time() + 5.0
    leases_of(stand).fence()
    _, outcome, _ = await collect(generation)
    assert outcome.error.code == "lease_lost"
    assert outcome.charge == 1000 + 5 * 40


async def test_failed_renewal_is_tried_again_soon(monkeypatch):
    monkeypatch.setattr(leases, "RENEW_RETRY", 0)
    stand, generation = await running()
    failures, renewed = iter([WriterError("away"), WriterError("away")]), asyncio.Event()

    async def fail(operation):
        if isinstance(operation, Renew):
            for error in failures:
                raise error
            renewed.set()

    stand.writer.before = fail
    loop = asyncio.create_task(leases_of(stand).keep_renewed())
    await asyncio.wait_for(renewed.wait(), 120)
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop
    stand.engine.release()
    await collect(generation)


async def test_ended_generations_are_not_renewed():
    stand, generation = await running()
    stand.engine.release()
    await collect(generation)
    await leases_of(stand).renew()
    assert not stand.writer.renews


async def test_hold_of_a_settlement_that_is_pending_is_renewed():
    stand = await make_stand()
    request = uuid7()
    stand.runtime.requests.unsettled(Release(request, uuid7()))
    await leases_of(stand).renew()
    assert [renew.checkpoints for renew in stand.writer.renews] == [{request: {}}]
