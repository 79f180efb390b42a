"""One answer, read at several gateways: live through Redis, and at its end from the database without it."""

from __future__ import annotations

import asyncio
import copy
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from cryptography.fernet import Fernet
from django.db import OperationalError
from redis.asyncio import Redis

from base.ids import uuid7
from gateway.apis.responses.runs import cancel_as_asked
from gateway.apis.websocket import endpoint as responses
from gateway.durable import answers, follower, replays
from gateway.durable.answers import to_cancel
from gateway.durable.log import Batch
from gateway.durable.mirror import Mirror
from gateway.durable.replays import Replays
from tests.gateway.apis.client import assert_error
from tests.gateway.apis.responses.test_resumed import CREATE, ENDS, resume
from tests.gateway.apis.websocket.socket import Socket
from tests.gateway.durable.conftest import Bench, chat
from tests.gateway.world import assert_books, in_database, make_world, settled
from tests.waiting import until

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch):
    monkeypatch.setattr(follower, "LOOK_SECONDS", 0.01)


@asynccontextmanager
async def beside(bench, redis=None):
    """Another gateway beside the first, which shares nothing with it but the database, the engine, and Redis."""
    runtime = copy.copy(bench.runtime)
    runtime.requests = copy.copy(bench.runtime.requests)
    runtime.requests.live = {}
    runtime.replays = Replays(runtime.threads, runtime.own_threads, uuid7(), runtime.requests.supervise)
    mirrors = []
    if redis is not None:
        for one in (bench.runtime, runtime):
            one.replays.mirror = Mirror(redis.url, 5.0)
            mirrors.append(one.replays.mirror)
    yield Bench(runtime, bench.world)
    await settled(bench.runtime)
    for mirror in mirrors:
        await mirror.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_without_redis_the_end_is_read_from_the_database(gateway, stream):
    async with gateway(tokens=20, hang_at=10) as bench, beside(bench) as other:
        first = bench.ask(chat(stream=stream))
        await bench.engine.hanging()
        second = other.ask(chat(stream=stream))
        await until(lambda: other.runtime.replays._followers)
        bench.engine.release()
        whole, followed = await first.finished(), await second.finished()
        assert whole.body == followed.body
        assert followed.headers["idempotency-replayed"] == "true"
    await in_database(assert_books, bench.world, records=1)


async def test_stream_is_read_at_another_gateway_while_it_is_made(gateway, redis_server):
    async with gateway(tokens=20, hang_at=10) as bench, beside(bench, redis_server) as other:
        first = bench.ask(chat(stream=True))
        await first.body_has(b"id: 5\n")
        second = other.ask(chat(stream=True), after=2)
        await second.body_has(b"id: 5\n")  # while the engine still waits
        bench.engine.release()
        whole, rest = await first.finished(), await second.finished()
        assert rest.body.startswith(b"id: 3\n")
        assert whole.body.endswith(rest.body)
    await in_database(assert_books, bench.world, records=1)


async def test_what_redis_has_of_an_answer_is_sealed(gateway, redis_server):
    """Whoever reads Redis read the answers of all tenants for ten minutes."""
    async with gateway(tokens=20, hang_at=10) as bench, beside(bench, redis_server) as other:
        first = bench.ask(chat(stream=True))
        second = other.ask(chat(stream=True))
        await second.body_has(b"id: 5\n")
        client = Redis.from_url(redis_server.url)
        [name] = await client.keys("*kept:*")
        stored = repr(await client.xrange(name))
        await client.aclose()
        bench.engine.release()
        whole, followed = await first.finished(), await second.finished()
        assert followed.body == whole.body
        assert "w1" in whole.body.decode()
        assert not any(word in stored for word in ("choices", "chatcmpl", "w1 ", "event-stream"))
    await in_database(assert_books, bench.world, records=1)


async def test_redis_that_dies_takes_nothing_along(gateway, redis_server):
    async with gateway(tokens=20, hang_at=10) as bench, beside(bench, redis_server) as other:
        first = bench.ask(chat(stream=True))
        second = other.ask(chat(stream=True))
        await second.body_has(b"id: 5\n")
        redis_server.kill()
        bench.engine.release()
        whole, followed = await first.finished(), await second.finished()
        assert followed.body == whole.body
    await in_database(assert_books, bench.world, records=1)


async def test_stream_cut_ten_times_is_whole_and_charged_once(gateway, redis_server):
    async with gateway(tokens=120, delay=0.001) as bench, beside(bench, redis_server) as other:
        text, after, cuts = b"", None, 0
        while cuts < 10:
            exchange = (bench, other)[cuts % 2].ask(chat(stream=True), after=after)
            await exchange.body_has(b"id: %d\n" % (0 if after is None else after + 1))
            exchange.leave()
            await asyncio.gather(exchange.task, return_exceptions=True)
            events = exchange.answer.body.split(b"\n\n")[:-1]
            after = int(events[-1].split(b"\n")[0][4:])
            text += exchange.answer.body
            cuts += 1
            if b"[DONE]" in exchange.answer.body:
                break
        text += (await other.ask(chat(stream=True), after=after).finished()).body
        assert text == (await bench.ask(chat(stream=True)).finished()).body
    await in_database(assert_books, bench.world, records=1)


async def test_gateway_that_is_lost_is_told_and_the_next_request_runs_anew(gateway):
    async with gateway(tokens=20, hang_at=10) as bench, beside(bench) as other:
        first = bench.ask(chat())
        await bench.engine.hanging()
        from tests.gateway.durable.test_lost_gateways import end_leases

        second = other.ask(chat())
        await until(lambda: other.runtime.replays._followers)
        await in_database(end_leases)
        lost = await second.finished()
        assert (lost.status, lost.json()["error"]["code"]) == (503, "answer_lost")
        bench.engine.options = replace(bench.engine.options, hang_at=0)
        answer = await other.ask(chat()).finished()
        assert answer.status == 200
        bench.engine.release()
        zombie = await first.finished()
        assert zombie.json()["error"]["code"] == "answer_lost"


async def test_reader_elsewhere_isnt_told_of_a_lost_answer_where_the_database_is_away(gateway, monkeypatch):
    """Told that it isn't charged somebody would ask for another one, and pay for both."""
    monkeypatch.setattr(replays, "STORE_SECONDS", 0.01)
    async with gateway(tokens=20, hang_at=10) as bench, beside(bench) as other:
        first = bench.ask(chat())
        await bench.engine.hanging()
        with monkeypatch.context() as away:
            away.setattr(answers, "look", fail)
            second = await other.ask(chat()).finished()
        assert (second.status, second.json()["error"]["code"]) == (503, "database_unavailable")
        bench.engine.release()
        whole = await first.finished()
        assert (await other.ask(chat()).finished()).body == whole.body
    await in_database(assert_books, bench.world, records=1)


def fail(*_):
    raise OperationalError("the connection is lost")


@pytest.mark.parametrize("is_database_away", [False, True])
async def test_reader_elsewhere_keeps_an_answer_going(gateway, redis_server, monkeypatch, is_database_away):
    monkeypatch.setattr(replays, "STORE_SECONDS", 0.01)
    async with gateway(tokens=20, hang_at=10, terms={"resume_s": 0}) as bench, beside(bench, redis_server) as other:
        first = bench.ask(chat(stream=True))
        await first.body_has(b"id: 5\n")
        second = other.ask(chat(stream=True))
        await second.body_has(b"id: 5\n")
        first.leave()
        await first.task
        [keeper] = bench.runtime.replays._keepers.values()
        with monkeypatch.context() as away:
            if is_database_away:
                away.setattr(answers, "seconds_since_reader", fail)
            await keeper._end_without_readers()
        bench.engine.release()
        assert b"w20" in (await second.finished()).body


@pytest.mark.parametrize("has_redis", [True, False])
async def test_a_response_goes_on_over_a_socket_at_another_gateway(gateway, request, monkeypatch, has_redis):
    monkeypatch.setattr(responses, "PAUSE_SECONDS", 0)
    redis = request.getfixturevalue("redis_server") if has_redis else None
    async with gateway(tokens=20, hang_at=10) as bench, beside(bench, redis) as other:
        first = await Socket(bench.app, key=bench.world.secret).opened()
        first.send(CREATE)
        events = await first.until("response.in_progress")
        await first.leave()
        identifier = events[0]["response"]["id"]
        second = await Socket(other.app, key=bench.world.secret).opened()
        second.send(resume(identifier, events[-1]["sequence_number"]))
        if has_redis:
            events += await second.until("response.output_text.delta")  # while the engine still waits
            await second.leave()
            second = await Socket(other.app, key=bench.world.secret).opened()
            second.send(resume(identifier, events[-1]["sequence_number"]))
        bench.engine.release()
        events += await second.until(*ENDS)
        for app in (bench.app, other.app):
            whole = await Socket(app, key=bench.world.secret).opened()
            whole.send(resume(identifier))
            assert await whole.until(*ENDS) == events
            await whole.leave()
        await second.leave()
        assert events[-1]["type"] == "response.completed"
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        assert text.split() == [f"w{number}" for number in range(1, 21)]
    await in_database(assert_books, bench.world, records=1)


async def test_a_response_is_cancelled_over_a_socket_at_another_gateway(gateway):
    async with gateway(tokens=20, hang_at=10) as bench, beside(bench) as other:
        first = await Socket(bench.app, key=bench.world.secret).opened()
        first.send(CREATE)
        events = await first.until("response.output_text.delta")
        identifier = events[0]["response"]["id"]
        second = await Socket(other.app, key=bench.world.secret).opened()
        second.send({"type": "response.cancel", "response_id": identifier})
        await cancelled_by(bench)
        events += await first.until(*ENDS)
        assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "cancelled")
        second.send(resume(identifier))
        assert await second.until(*ENDS) == events
        await first.leave()
        await second.leave()
    charged, _ = await in_database(assert_books, bench.world, records=1)
    assert charged == events[-1]["response"]["usage"]["credits_micro"] > 0


async def test_a_response_is_cancelled_where_it_is_gone_on_from_without_its_id(gateway):
    async with gateway(tokens=20, hang_at=10) as bench, beside(bench) as other:
        first = await Socket(bench.app, key=bench.world.secret).opened()
        first.send(CREATE)
        begun = await first.until("response.output_text.delta")
        await first.leave()
        second = await Socket(other.app, key=bench.world.secret).opened()
        second.send(resume(begun[0]["response"]["id"]))
        await until(lambda: other.runtime.replays._followers)
        second.send({"type": "response.cancel"})
        await cancelled_by(bench)
        assert (await second.until(*ENDS))[-1]["response"]["status"] == "cancelled"
        await second.leave()
    await in_database(assert_books, bench.world, records=1)


async def test_a_response_of_a_socket_is_cancelled_over_http_at_another_gateway(gateway):
    async with gateway(tokens=20, hang_at=10) as bench, beside(bench) as other:
        first = await Socket(bench.app, key=bench.world.secret).opened()
        first.send(CREATE)
        events = await first.until("response.output_text.delta")
        path = f"/v1/responses/{events[0]['response']['id']}/cancel"
        asked = other.ask({}, key=None, path=path)
        await cancelled_by(bench)
        events += await first.until(*ENDS)
        answer = await asked.finished()
        assert (answer.status, answer.json()) == (200, events[-1]["response"])
        again = await bench.ask({}, key=None, path=path).finished()
        assert (again.status, again.json()) == (200, events[-1]["response"])
        await first.leave()
    await in_database(assert_books, bench.world, records=1)


async def test_nobody_else_cancels_a_response(gateway):
    stranger = await in_database(make_world)
    async with gateway(tokens=20, hang_at=10) as bench, beside(bench) as other:
        first = await Socket(bench.app, key=bench.world.secret).opened()
        first.send(CREATE)
        [begun, *_] = await first.until("response.output_text.delta")
        identifier = begun["response"]["id"]
        second = await Socket(other.app, key=stranger.secret).opened()
        second.send({"type": "response.cancel", "response_id": identifier})
        path = f"/v1/responses/{identifier}/cancel"
        refused = await other.ask({}, key=None, path=path, secret=stranger.secret).finished()
        assert (refused.status, refused.json()["error"]["code"]) == (404, "response_not_found")
        await second.leave()
        await until(lambda: not other.runtime.requests._tasks - bench.runtime.requests._tasks)
        assert await in_database(to_cancel, bench.runtime.requests.incarnation) == []
        bench.engine.release()
        assert (await first.until(*ENDS))[-1]["type"] == "response.completed"
        await first.leave()


async def cancelled_by(bench):
    """Have the gateway look for what it is to cancel until it has found something."""
    async with asyncio.timeout(120):
        while not await in_database(to_cancel, bench.runtime.requests.incarnation):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
    await cancel_as_asked(bench.runtime)


class LateMirror:
    """Gives another gateway the first events of what `replays` make, and the others when it is told to."""

    def __init__(self, replays, count):
        self.replays, self.count, self.go_on = replays, count, asyncio.Event()

    async def read(self, run):
        event_log = self.replays._keepers[run].log
        await event_log.begun()
        yield event_log.head, Batch(0, list(event_log.events[: self.count]))
        await self.go_on.wait()
        async for batch in event_log.read(self.count - 1):
            yield event_log.head, batch


async def test_who_read_further_than_the_other_gateway_knows_goes_on_there(gateway):
    """It was told that there is no such event yet, though it had that event."""
    async with gateway(tokens=20, hang_at=10) as bench, beside(bench) as other:
        first = bench.ask(chat(stream=True))
        await first.body_has(b"id: 7\n")
        mirror = other.runtime.replays.mirror = LateMirror(bench.runtime.replays, 3)
        second = other.ask(chat(stream=True), after=7)
        await until(lambda: any(one.log.next for one in other.runtime.replays._followers.values()))
        mirror.go_on.set()
        bench.engine.release()
        whole, rest = await first.finished(), await second.finished()
        assert rest.body.startswith(b"id: 8\n")
        assert whole.body.endswith(rest.body)
    await in_database(assert_books, bench.world, records=1)


@pytest.mark.parametrize("stream", [True, False])
async def test_what_another_gateway_stores_under_a_secret_that_is_unknown_here_is_told(gateway, stream, monkeypatch):
    """While secrets are rotated: who waited for it waited for ever."""
    monkeypatch.setattr(answers, "seal_bytes", Fernet(Fernet.generate_key()).encrypt)
    async with gateway(tokens=20, hang_at=10) as bench, beside(bench) as other:
        first = bench.ask(chat(stream=stream))
        await bench.engine.hanging()
        second = other.ask(chat(stream=stream))
        await until(lambda: other.runtime.replays._followers)
        bench.engine.release()
        assert (await first.finished()).status == 200
        third = other.ask(chat(stream=stream))
        for asked in (second, third):
            assert_error(await asked.finished(), 503, "answer_unreadable")
    await in_database(assert_books, bench.world, records=1)


async def test_redis_that_is_flushed_takes_nothing_along(gateway, redis_server):
    """Who reads already goes on; who comes after it begins at the first event all the same, and misses none."""
    async with gateway(tokens=20, hang_at=10) as bench, beside(bench, redis_server) as other:
        first = bench.ask(chat(stream=True))
        second = other.ask(chat(stream=True))
        await second.body_has(b"id: 5\n")
        async with Redis.from_url(redis_server.url) as client:
            await client.flushall()
        async with beside(bench) as third:
            third.runtime.replays.mirror = other.runtime.replays.mirror
            late = third.ask(chat(stream=True))
            await until(lambda: third.runtime.replays._followers)
            bench.engine.release()
            told = [(await exchange.finished()).body for exchange in (first, second, late)]
        assert told == [told[0]] * 3
    await in_database(assert_books, bench.world, records=1)
