"""The server's transports are its event loop's: production runs on uvloop, so both that and asyncio's own are tried."""

from __future__ import annotations

import asyncio

import uvloop


def pytest_asyncio_loop_factories(config, item):
    """Run each test of this folder on both loops."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
