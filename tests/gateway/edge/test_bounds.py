"""What one client's requests may take together, behind a trusted proxy or with many addresses of its own."""

from __future__ import annotations

import asyncio

import pytest

from gateway.edge import bounds
from gateway.edge.guard import guarded
from gateway.edge.http import uploads
from gateway.errors.refusal import Refusal
from tests.gateway.edge.client import Exchange, ask, assert_error


async def test_requests_of_one_address_are_bounded(app, settings):
    settings.SLUICE_MAX_CONNECTIONS_PER_ADDRESS = 1
    limited = guarded(bounds.limited_by_address(app))
    waiting = Exchange(limited, "POST", "/v1/chat/completions", body=None)
    waiting.feed(b"{")
    assert_error(await ask(limited, "/healthz", key=None), 429, "too_many_connections")
    waiting.leave()
    await waiting.finished()
    assert (await ask(limited, "/healthz", key=None)).status == 200


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
        await upload("2001:db8:0:1::1")
    assert refused.value.code == "too_many_uploads"
    assert len(uploads) == 0
