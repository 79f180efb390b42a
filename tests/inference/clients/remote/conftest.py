"""A scripted server and engines at it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from inference.engine import EngineSpec
from inference.open import open_engine
from tests.services.ports import lease_port
from tests.upstream import Upstream, serving


@pytest.fixture
async def remote():
    """A function that makes an engine at a new server and returns both; its keywords are those of the server's plan."""
    async with AsyncExitStack() as stack:

        async def make(dialect="vllm", *, options=None, credential="", at=None, ready=True, **plan):
            upstream = at or await stack.enter_async_context(serving(Upstream(dialect, **plan)))
            spec = EngineSpec("d", "openai", upstream.address, upstream.options(**(options or {})), credential)
            engine = open_engine(spec)
            stack.push_async_callback(engine.close)
            if ready:
                async with asyncio.timeout(60):
                    while not (await engine.health()).ready:  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(0.002)
            return engine, upstream

        yield make


@pytest.fixture
def unused_port():
    """A port of this machine at which nobody listens."""
    return lease_port()
