"""How kept answers end otherwise than well: abandoned, too large, failed, or not to be stored."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest
from django.db import OperationalError
from django.db.models import F

from billing.models import Hold, UsageRecord
from gateway.durable import answers, replays
from gateway.generation.sweep import Sweep
from gateway.http import durable
from inference.clients import fake_run
from inference.types import EngineFault
from tests.gateway.apis.client import Exchange, assert_error
from tests.gateway.durable.conftest import chat
from tests.gateway.world import assert_books, in_database, settled

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]


def charges():
    return [charge for charge in UsageRecord.objects.values_list("charge", flat=True) if charge]


@pytest.mark.parametrize("stream", [True, False])
async def test_abandoned_answer_is_charged_once_and_remembered_as_it_is(gateway, stream):
    async with gateway(tokens=40, hang_at=10, terms={"resume_s": 0}) as bench:
        first = bench.ask(chat(stream=stream))
        await bench.engine.hanging()
        first.leave()
        await first.task
        await settled(bench.runtime)
        again = [await bench.ask(chat(stream=stream)).finished() for _ in range(2)]
        assert again[0].body == again[1].body
        if stream:
            *_, (name, last) = again[0].events()
            assert (name, last["error"]["code"]) == ("error", "answer_abandoned")
            assert b"w9" in again[0].body
        else:
            assert_error_of_run(again[0], 409, "answer_abandoned")
        assert len(bench.engine.record.entries) == 1
    charged, [row] = await in_database(assert_books, bench.world, records=1)
    assert charged
    assert row.output_tokens == 9


def assert_error_of_run(answer, status, code):
    """The error of the run itself: its id is that of the request which began it."""
    assert (answer.status, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers["x-should-retry"] == "false"


async def test_reader_that_comes_back_in_time_gets_the_rest(gateway):
    async with gateway(tokens=40, hang_at=10) as bench:
        first = bench.ask(chat(stream=True))
        await first.body_has(b"id: 7\n")
        first.leave()
        await first.task
        second = bench.ask(chat(stream=True), after=7)
        await second.body_has(b"id: 8\n")
        bench.engine.release()
        rest = await second.finished()
        whole = await bench.ask(chat(stream=True)).finished()
        assert whole.body.endswith(rest.body)
        assert b"w40" in rest.body
    await in_database(assert_books, bench.world, records=1)


async def test_stream_that_failed_through_us_is_not_charged_and_runs_again_under_other_numbers(gateway):
    async with gateway(tokens=20, error_at=10) as bench:
        failed = await bench.ask(chat(stream=True)).finished()
        *_, (_, last) = failed.events()
        assert last["error"]["code"] == "row_failed"
        await settled(bench.runtime)
        assert await in_database(charges) == []
        bench.engine.options = replace(bench.engine.options, error_at=0)
        answer = await bench.ask(chat(stream=True)).finished()
        assert answer.body.startswith(b"id: 1000000000\n")
        assert_error(await bench.ask(chat(stream=True), after=5).finished(), 409, "stream_restarted")
        resumed = await bench.ask(chat(stream=True), after=1_000_000_005).finished()
        assert answer.body.endswith(resumed.body)
    assert len(await in_database(charges)) == 1


async def test_stream_that_its_own_request_ended_is_paid_for_as_far_as_it_was_read(gateway, monkeypatch):
    """A grammar that leaves no token after a long text would else give that text for nothing, again and again."""
    impossible = partial(EngineFault, param="allowed_token_ids")
    monkeypatch.setattr(fake_run, "EngineFault", impossible)
    async with gateway(tokens=20, error_at=10) as bench:
        ended = await bench.ask(chat(stream=True)).finished()
        *_, (_, last) = ended.events()
        assert last["error"]["param"] == "allowed_token_ids"
        assert b"w9" in ended.body
        again = await bench.ask(chat(stream=True)).finished()
        assert (again.body, again.headers["idempotency-replayed"]) == (ended.body, "true")
        assert_error(await bench.ask(chat(), key="k2").finished(), 400, "row_failed", param="allowed_token_ids")
        await settled(bench.runtime)
    charged, rows = await in_database(assert_books, bench.world, records=2)
    assert charged
    assert sorted(row.output_tokens for row in rows) == [0, 9]


async def test_whole_answer_that_failed_through_us_runs_again(gateway):
    async with gateway(tokens=20, error_at=10) as bench:
        assert_error(await bench.ask(chat()).finished(), 500, "row_failed")
        bench.engine.options = replace(bench.engine.options, error_at=0)
        answer = await bench.ask(chat()).finished()
        assert answer.status == 200
    assert await in_database(charges) == [answer.json()["usage"]["credits_micro"]]


@pytest.mark.parametrize("stream", [True, False])
async def test_answer_that_cannot_be_stored_is_not_charged(gateway, monkeypatch, stream):
    def away(*_, **__):
        raise OperationalError("the database is away")

    async with gateway(tokens=20) as bench:
        with monkeypatch.context() as patch:
            patch.setattr(replays, "STORE_SECONDS", 0)
            patch.setattr(answers, "store", away)
            lost = bench.ask(chat(stream=stream))
            if stream:  # it is cut: its end mark would be a lie
                with pytest.raises(Exception, match="couldn't be stored"):
                    await lost.finished()
                assert b"[DONE]" not in lost.answer.body
            else:
                assert_error(await lost.finished(), 503, "answer_lost")
        answer = await bench.ask(chat(stream=stream)).finished()
        assert answer.status == 200
    assert len(await in_database(charges)) == 1


async def test_answer_that_was_stored_unheard_is_charged(gateway, monkeypatch):
    """The database stores it and is away before it says so: whoever asks again gets the answer, so it is paid for."""
    store = answers.store

    def unheard(*given):
        store(*given)
        raise OperationalError("the database is away")

    async with gateway(tokens=20) as bench:
        with monkeypatch.context() as patch:
            patch.setattr(replays, "STORE_SECONDS", 0)
            patch.setattr(answers, "store", unheard)
            assert_error(await bench.ask(chat()).finished(), 503, "answer_lost")
            await settled(bench.runtime)
        again = await bench.ask(chat()).finished()
        assert (again.status, again.headers["idempotency-replayed"]) == (200, "true")
        await in_database(Hold.objects.update, lease_until=F("reserved_at"))
        await Sweep(
            engines_of=bench.runtime.engines.of, submit=bench.runtime.writer.submit, threads=bench.runtime.own_threads
        ).turn()
    charged, _ = await in_database(assert_books, bench.world, records=1)
    assert charged == again.json()["usage"]["credits_micro"]


async def test_answer_beyond_what_the_tenant_may_keep_in_memory_ends_there(gateway):
    async with gateway(tokens=200) as bench:
        bench.runtime.replays._bytes.most = 2_000
        ended = await bench.ask(chat(stream=True)).finished()
        *_, (name, last) = ended.events()
        assert (name, last["error"]["code"]) == ("error", "too_much_kept")
        again = await bench.ask(chat(stream=True)).finished()
        assert again.body == ended.body
        assert not len(bench.runtime.replays._bytes)
        assert not len(bench.runtime.replays)
    await in_database(assert_books, bench.world, records=1)


async def test_reader_far_behind_is_ended_with_a_reason_and_goes_on_later(gateway, monkeypatch):
    async with gateway(tokens=40, hang_at=10) as bench:
        slow = SlowReader(bench)
        await slow.stopped.wait()
        quick = bench.ask(chat(stream=True))
        bench.engine.release()
        whole = await quick.finished()
        with monkeypatch.context() as patch:
            patch.setattr(durable, "MOST_BEHIND", 500)
            slow.go_on.set()
            await slow.task
        *_, (name, last) = slow.exchange.answer.events()
        assert (name, last["error"]["code"]) == ("error", "reader_too_slow")
        rest = await bench.ask(chat(stream=True), after=slow.last_number()).finished()
        assert whole.body.endswith(rest.body)
    await in_database(assert_books, bench.world, records=1)


class SlowReader:
    """A client that reads the first events and then nothing until it is told to."""

    def __init__(self, bench):
        self.stopped, self.go_on = asyncio.Event(), asyncio.Event()

        async def slowed(scope, receive, send):
            async def slow_send(message):
                await send(message)
                if b"id: " in message.get("body", b"") and not self.stopped.is_set():
                    self.stopped.set()
                    await self.go_on.wait()

            await bench.app(scope, receive, slow_send)

        self.exchange = Exchange(
            slowed,
            "POST",
            "/v1/chat/completions",
            body=chat(stream=True),
            headers={"idempotency-key": "k1"},
            key=bench.world.secret,
        )
        self.task = self.exchange.task

    def last_number(self):
        return max(int(line[4:]) for line in self.exchange.answer.body.decode().splitlines() if line.startswith("id: "))
