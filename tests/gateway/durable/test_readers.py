"""Requests under an idempotency key: one answer and one charge, whoever asks how often."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from gateway.errors.refusal import Refusal
from gateway.http.durable import last_event_of
from tests.gateway.apis.client import assert_error
from tests.gateway.durable.conftest import chat
from tests.gateway.world import assert_books, in_database, settled

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]


async def test_fifty_clients_with_one_key_get_one_answer_and_one_charge(gateway):
    async with gateway(tokens=30) as bench:
        answers = await asyncio.gather(*(bench.ask(chat()).finished() for _ in range(50)))
        again = await bench.ask(chat()).finished()
        assert len(bench.engine.record.entries) == 1
    assert {answer.status for answer in answers} == {200}
    assert {answer.body for answer in (*answers, again)} == {answers[0].body}
    assert sorted(answer.headers.get("idempotency-replayed", "no") for answer in answers) == ["no"] + ["true"] * 49
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["x-sluice-credits"] == answers[0].headers["x-sluice-credits"]
    charged, _ = await in_database(assert_books, bench.world, records=1)
    assert answers[0].json()["usage"]["credits_micro"] == charged


async def test_without_a_key_each_pays(gateway):
    async with gateway(tokens=3) as bench:
        answers = await asyncio.gather(*(bench.ask(chat(), key=None).finished() for _ in range(5)))
    assert len({answer.body for answer in answers}) == 5
    await in_database(assert_books, bench.world, records=5)


async def test_stream_is_attached_to_and_replayed_byte_for_byte(gateway):
    async with gateway(tokens=20, hang_at=10) as bench:
        first = bench.ask(chat(stream=True))
        await first.body_has(b"id: 5\n")
        second = bench.ask(chat(stream=True))
        await second.body_has(b"id: 5\n")
        bench.engine.release()
        answers = [await first.finished(), await second.finished(), await bench.ask(chat(stream=True)).finished()]
        resumed = await bench.ask(chat(stream=True), after=5).finished()
    assert {answer.body for answer in answers} == {answers[0].body}
    assert answers[0].body.startswith(b"id: 0\ndata: ")
    assert answers[0].body.endswith(b"data: [DONE]\n\n")
    assert resumed.body.startswith(b"id: 6\n")
    assert answers[0].body.endswith(resumed.body)
    await in_database(assert_books, bench.world, records=1)


async def test_key_for_another_request_is_refused(gateway):
    async with gateway(tokens=3) as bench:
        await bench.ask(chat("one")).finished()
        assert_error(await bench.ask(chat("two")).finished(), 422, "idempotency_key_reused", param="idempotency-key")
        other_place = await bench.ask({"model": "fake", "input": "one"}, path="/v1/embeddings").finished()
        assert_error(other_place, 422, "idempotency_key_reused")
        with capture_logs() as lines:
            other_task = await bench.ask(chat("one"), x_sluice_task="code").finished()
        assert_error(other_task, 422, "idempotency_key_reused")
        assert not [line for line in lines if line["log_level"] == "error"], "it is no fault of ours"
    await in_database(assert_books, bench.world, records=1)


async def test_key_for_another_request_is_refused_while_the_first_is_being_made(gateway):
    async with gateway(tokens=3) as bench:
        first, other = bench.ask(chat("one")), bench.ask(chat("two"))  # at once: no row tells of either
        told = await asyncio.gather(first.finished(), other.finished())
    assert sorted(answer.status for answer in told) == [200, 422]
    [refused] = [answer for answer in told if answer.status == 422]
    assert_error(refused, 422, "idempotency_key_reused")
    await in_database(assert_books, bench.world, records=1)


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "caf\xe9"])
async def test_key_that_is_none_is_refused(gateway, key):
    async with gateway() as bench:
        assert_error(await bench.ask(chat(), key=key).finished(), 400, "invalid_idempotency_key")


@pytest.mark.parametrize("after", ["-1", "1.5", "9" * 16, ""])
async def test_last_event_that_is_none_is_refused(gateway, after):
    with pytest.raises(Refusal):
        last_event_of({"headers": [(b"last-event-id", b"\xb2")]})  # a digit, but no number
    async with gateway() as bench:
        assert_error(await bench.ask(chat(), after=after).finished(), 400, "invalid_value", param="last-event-id")


async def test_refusal_before_anything_ran_is_not_remembered(gateway):
    async with gateway(tokens=3) as bench:
        assert_error(await bench.ask(chat(temperature=9)).finished(), 400, "invalid_value")
        answer = await bench.ask(chat()).finished()
        assert answer.status == 200
        assert "idempotency-replayed" not in answer.headers
        await settled(bench.runtime)
    await in_database(assert_books, bench.world, records=1)
