"""The server's transports are its event loop's: production runs on uvloop, so both that and asyncio's own are tried."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import uvicorn.server
import uvloop


def pytest_asyncio_loop_factories(config, item):
    """Run each test of this folder on both loops."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch):
    """Let uvicorn look every 5 ms, not every 100, whether it is to end and whether it has."""
    often = SimpleNamespace(**{**vars(asyncio), "sleep": lambda seconds: asyncio.sleep(seconds / 20)})
    monkeypatch.setattr(uvicorn.server, "asyncio", often)
