"""Behind a trusted proxy one client's requests are bounded, since its connections can't be told apart."""

from __future__ import annotations

from gateway.edge import bounds
from gateway.edge.guard import guarded
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
