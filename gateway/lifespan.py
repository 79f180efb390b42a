"""ASGI's lifespan: opens the runtime before the first request and closes it after the last."""

from __future__ import annotations

import os

import structlog

from base.heartbeat import REPLACES
from base.http.asgi import Receive, Scope, Send
from gateway.bootstrap import open_runtime
from gateway.runtime.runtime import Runtime

CONNECT_SECONDS = 10.0

log = structlog.get_logger(__name__)


async def lifespan(scope: Scope, receive: Receive, send: Send) -> None:
    """Open the runtime into the scope's state, which every request gets; close it at the end."""
    runtime: Runtime | None = None
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                runtime = await open_runtime()
                if os.environ.get(REPLACES):  # whoever connects meanwhile finds another gateway, or waits
                    await runtime.engines.connected(CONNECT_SECONDS)
            except Exception as error:
                log.exception("start_failed")
                await send({"type": "lifespan.startup.failed", "message": str(error) or type(error).__name__})
                return
            scope["state"]["runtime"] = runtime
            await send({"type": "lifespan.startup.complete"})
        else:
            try:
                if runtime is not None:
                    await runtime.close()
            except Exception as error:
                log.exception("stop_failed")
                await send({"type": "lifespan.shutdown.failed", "message": str(error) or type(error).__name__})
                return
            await send({"type": "lifespan.shutdown.complete"})
            return
