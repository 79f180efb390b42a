"""Websockets over fake engines."""

from __future__ import annotations

import pytest

from gateway.apis.websocket import endpoint as responses
from tests.gateway.apis.conftest import app, world
from tests.gateway.apis.websocket.socket import Socket

__all__ = ["app", "socket", "unhurried", "world"]


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """No pause between deltas, so that each delta is an event of its own."""
    monkeypatch.setattr(responses, "PAUSE_SECONDS", 0)


@pytest.fixture
async def socket(app):
    """An open socket with a good key."""
    opened = await Socket(app).opened()
    yield opened
    if not opened.task.done():
        await opened.leave()
