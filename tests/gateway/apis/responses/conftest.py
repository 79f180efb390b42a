"""What the engine is asked for, whichever way a response was asked for."""

from __future__ import annotations

import pytest

from gateway.apis.responses import endpoint as over_http
from gateway.apis.websocket import endpoint as over_websocket


@pytest.fixture
def intents(monkeypatch):
    """The intents of all responses, in their order."""
    asked = []
    for module in (over_http, over_websocket):
        start = module.start_generation

        async def noted(runtime, principal, intent, request_id, start=start):
            asked.append(intent)
            return await start(runtime, principal, intent, request_id)

        monkeypatch.setattr(module, "start_generation", noted)
    return asked
