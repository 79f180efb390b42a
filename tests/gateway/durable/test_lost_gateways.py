"""A gateway that dies at any point under a kept request leaves one answer and one charge, however it comes back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db.models import F

from base.ids import uuid7
from billing.models import Hold, UsageRecord
from billing.writer.operations import Reserve, Settle
from gateway.durable.delivery import Delivery
from gateway.durable.models import KeptAnswer
from gateway.generation.sweep import Sweep
from tests.gateway.durable.conftest import chat
from tests.gateway.world import in_database, settled

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]


class Gate:
    """Stops the first that comes, until it is opened: what a dead process does, and then what a slow one does."""

    def __init__(self):
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()
        self._is_first = True

    async def __call__(self):
        if self._is_first:
            self._is_first = False
            self.reached.set()
            await self._opened.wait()

    def open(self):
        self._opened.set()


def stop_before(bench, monkeypatch, point, gate):
    """Have the gateway stop at the point."""
    submit = bench.runtime.writer.submit
    stops_at = {"its hold is made": Reserve, "it is settled": Settle}.get(point, ())

    async def submit_or_stop(operation, *given):
        if isinstance(operation, stops_at):
            await gate()
        return await submit(operation, *given)

    monkeypatch.setattr(bench.runtime.writer, "submit", submit_or_stop)
    for owner, name, at in (
        (type(bench.runtime.replays), "store", "it is stored"),
        (Delivery, "all_settled", "its readers have its end"),
    ):
        original = getattr(owner, name)

        async def stopped(self, *given, original=original, at=at, **named):
            if point == at:
                await gate()
            return await original(self, *given, **named)

        monkeypatch.setattr(owner, name, stopped)
    return submit


def lose(runtime):
    """Let the process be another one, which knows nothing of what the lost one did; its leases are over."""
    runtime.requests.live.clear()
    runtime.replays._keepers.clear()
    runtime.replays._opening.clear()
    runtime.replays._owner = runtime.requests.incarnation = uuid7()


def end_leases():
    KeptAnswer.objects.unscoped().update(lease_until=F("created_at") - timedelta(seconds=1))
    Hold.objects.update(lease_until=F("reserved_at"))


def charges():
    assert not Hold.objects.exists()
    return [charge for charge in UsageRecord.objects.values_list("charge", flat=True) if charge]


@pytest.mark.parametrize("is_swept_first", [True, False])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "point",
    ["its hold is made", "it has generated", "it is stored", "it is settled", "its readers have its end"],
)
async def test_one_answer_and_one_charge(gateway, monkeypatch, point, stream, is_swept_first):
    async with gateway(tokens=20, hang_at=10 if point == "it has generated" else 0) as bench:
        gate = Gate()
        submit = stop_before(bench, monkeypatch, point, gate)
        first = bench.ask(chat(stream=stream))
        await (bench.engine.hanging() if point == "it has generated" else gate.reached.wait())

        lose(bench.runtime)
        await in_database(end_leases)
        bench.engine.options = replace(bench.engine.options, hang_at=0)
        sweep = Sweep(engines_of=bench.runtime.engines.of, submit=submit, threads=bench.runtime.own_threads)
        if is_swept_first:
            await sweep.turn()
        answer = await bench.ask(chat(stream=stream)).finished()
        await sweep.turn()
        assert answer.status == 200
        assert answer.body.count(b"w20") == 1, answer.body

        gate.open()  # the lost one wasn't dead, only slow
        bench.engine.release()
        await settled(bench.runtime)
        await asyncio.gather(first.task, return_exceptions=True)
        await sweep.turn()
        again = await bench.ask(chat(stream=stream)).finished()
        assert again.body == answer.body
        usage = [event for _, event in answer.events() if event != "[DONE]"][-1] if stream else answer.json()
    [charge] = await in_database(charges)
    assert stream or charge == usage["usage"]["credits_micro"]
