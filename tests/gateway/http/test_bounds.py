"""What one client's requests may take together, behind a trusted proxy or with many addresses of its own."""

from __future__ import annotations

import asyncio
import weakref

import pytest
import structlog
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from base.http import send_json
from gateway.errors.refusal import Refusal
from gateway.http import bounds, guard
from gateway.http.access import note_caller
from gateway.http.bounds import BURST, Patience
from gateway.http.guard import guarded
from gateway.http.request import uploads
from tests.gateway.apis.client import Exchange, ask, assert_error
from tests.gateway.concurrency.test_pace import Clock


async def test_requests_of_one_address_are_bounded(app, settings):
    settings.SLUICE_MAX_CONNECTIONS_PER_ADDRESS = 1
    limited = guarded(bounds.limited_by_address(app))
    waiting = Exchange(limited, "POST", "/v1/chat/completions", body=None)
    waiting.feed(b"{")
    assert_error(await ask(limited, "/healthz", key=None), 429, "too_many_connections")
    waiting.leave()
    await waiting.finished()
    assert (await ask(limited, "/healthz", key=None)).status == 200


async def test_an_address_that_nobody_named_speaks_for_nobody(settings):
    """Every private address was taken for a proxy: whoever had one chose the address that he was counted by."""
    with structlog.testing.capture_logs() as lines:
        for address, counted in (("127.0.0.1", "198.51.100.7"), ("10.1.2.3", "10.1.2.3")):
            scope = {
                "type": "http",
                "scheme": "http",
                "client": (address, 1),
                "headers": [(b"x-forwarded-for", b"198.51.100.7")],
            }
            seen = []

            async def noting(scope, receive, send, seen=seen):
                seen.append(scope["client"][0])

            listening = ProxyHeadersMiddleware(bounds.limited_by_address(noting), settings.SLUICE_PROXIES)
            for _ in range(2):
                await listening(dict(scope), None, None)
            assert seen == [counted] * 2
    assert [line["address"] for line in lines if line["event"] == "forwarded_by_stranger"] == ["10.1.2.3"]


async def test_bodies_from_one_network_of_ipv6_count_together(monkeypatch):
    monkeypatch.setattr(uploads, "most", 1000)
    is_held, goes_on = asyncio.Event(), asyncio.Event()

    async def reading(scope, receive, send):
        while (await receive())["more_body"]:
            if scope["client"] == ("2001:db8::1", 1):
                is_held.set()
                await goes_on.wait()

    async def send(message):
        raise AssertionError(message)

    async def upload(address):
        pieces = iter([{"body": b"x" * 600, "more_body": True}, {"body": b"", "more_body": False}])

        async def receive():
            return next(pieces)

        await bounds.counted_by_address(reading)({"type": "http", "client": (address, 1)}, receive, send)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(upload("2001:db8::1"))
        await is_held.wait()
        with pytest.raises(Refusal) as refused:
            await upload("2001:db8::2")
        goes_on.set()
        await upload("2001:db8:0:100::1")
    assert refused.value.code == "too_many_uploads"
    assert len(uploads) == 0


async def test_who_asks_in_a_loop_for_what_costs_nothing_waits_and_nobody_else(monkeypatch):
    clock = Clock()
    for where in (bounds, guard):
        monkeypatch.setattr(where, "Patience", lambda: Patience(clock, clock.sleep))

    async def refusing(scope, receive, send):
        note_caller(scope, tenant=scope["path"][1:] or None)
        raise Refusal(404, "unknown_model", "There is no such model.")

    async def page(scope, receive, send):
        await send_json(send, 200, {})

    async def waits_of(application, *asked):
        clock.slept.clear()
        for path, address in asked:
            await Exchange(application, "GET", path, address=address).finished()
        return len(clock.slept)

    faults = guarded(refusing)
    mine = ("/11111111-1111-1111-1111-111111111111", "192.0.2.1")
    assert await waits_of(faults, *[mine] * (BURST + 2)) > 0
    assert await waits_of(faults, ("/22222222-2222-2222-2222-222222222222", "192.0.2.1"), ("/", "192.0.2.1")) == 0
    pages = guarded(bounds.paced_by_address(page))
    assert await waits_of(pages, *[("/", "192.0.2.1")] * (BURST + 2)) > 0
    assert await waits_of(pages, ("/", "192.0.2.2")) == 0


async def test_large_bodies_that_are_refused_are_paced_by_their_bytes(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(guard, "Patience", lambda: Patience(clock, clock.sleep))

    async def refusing(scope, receive, send):
        await receive()
        raise Refusal(400, "context_length_exceeded", "It is too long.")

    faults = guarded(bounds.bounded(refusing))
    for size, most in ((10, BURST), (1_000_000, BURST // 16)):
        clock.slept.clear()
        clock.now += 60
        for _ in range(most):
            await Exchange(faults, "POST", "/", body=b"x" * size, address=f"192.0.2.{size % 7}").finished()
        assert clock.slept == []
        for _ in range(2):
            await Exchange(faults, "POST", "/", body=b"x" * size, address=f"192.0.2.{size % 7}").finished()
        assert clock.slept != []


async def test_a_refusal_that_waits_keeps_nothing_of_its_request(monkeypatch):
    class Body:
        pass

    kept = []

    async def asleep(seconds):
        kept.append([body for body in bodies if body() is not None])

    monkeypatch.setattr(guard, "Patience", lambda: Patience(lambda: 0.0, asleep))
    bodies = []

    async def refusing(scope, receive, send):
        body = Body()
        bodies.append(weakref.ref(body))
        raise Refusal(400, "invalid_value", "It is wrong.") from ValueError(body)

    faults = guarded(refusing)
    for _ in range(BURST + 3):
        await Exchange(faults, "GET", "/", key=None).finished()
    assert kept == [[]] * len(kept)
    assert kept
