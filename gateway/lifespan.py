"""ASGI's lifespan: opens what a process needs before its first request, and closes it after the last.

Every request gets the state: `runtime` where the data plane is served, else `data_plane` (the way to one that serves
it) and `pages` (the checks of its readiness); and `metrics`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from django.conf import settings

from base.heartbeat import REPLACES
from base.http import Application, Receive, Scope, Send
from base.ids import uuid7
from gateway.bootstrap import open_runtime, open_traces
from gateway.runtime.data_plane import HTTPDataPlane
from gateway.runtime.metrics import Metrics, observe_delay, pool_sources
from gateway.runtime.readiness import Look

CONNECT_SECONDS = 10.0

State = dict[str, Any]
Close = Callable[[], Awaitable[None]]

log = structlog.get_logger(__name__)


async def open_data_plane() -> tuple[State, Close]:
    """Return the state of a process that serves requests to engines, and what closes it."""
    runtime = await open_runtime()
    if os.environ.get(REPLACES):  # whoever connects meanwhile finds another gateway, or waits
        await runtime.engines.connected(CONNECT_SECONDS)
    return {"runtime": runtime, "metrics": runtime.metrics}, runtime.close


async def open_pages() -> tuple[State, Close]:
    """Return the state of a process that serves pages and the management API alone, and what closes it."""
    closers: list[Close] = []
    if settings.OTEL_EXPORTER_OTLP_ENDPOINT:
        closers.append(open_traces(uuid7()))
    pages, metrics = Look(), Metrics()
    metrics.gauges.follow(pool_sources())
    delay = asyncio.create_task(observe_delay(metrics.loop_delay.observe))

    async def close() -> None:
        delay.cancel()
        for closer in (pages.close, *closers):
            await closer()

    return {"data_plane": HTTPDataPlane(settings.SLUICE_DATA_PLANE), "pages": pages, "metrics": metrics}, close


def lifespan(opened: Callable[[], Awaitable[tuple[State, Close]]]) -> Application:
    """Return the application of the lifespan in which `opened` is what a process needs."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        close: Close | None = None
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    state, close = await opened()
                except Exception as error:
                    log.exception("start_failed")
                    await send({"type": "lifespan.startup.failed", "message": str(error) or type(error).__name__})
                    return
                scope["state"].update(state)
                await send({"type": "lifespan.startup.complete"})
            else:
                try:
                    if close is not None:
                        await close()
                except Exception as error:
                    log.exception("stop_failed")
                    await send({"type": "lifespan.shutdown.failed", "message": str(error) or type(error).__name__})
                    return
                await send({"type": "lifespan.shutdown.complete"})
                return

    return run
