"""A real server on a free port, in the test's own event loop."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import uvicorn


@asynccontextmanager
async def serving(application, *, lifespan="off"):
    """Serve `application` as production does; yields ``127.0.0.1:port``."""
    config = uvicorn.Config(
        application,
        lifespan=lifespan,
        log_config=None,
        access_log=False,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    task = asyncio.create_task(server.serve([listener]))
    try:
        while not server.started:
            assert not task.done(), task.result()
            await asyncio.sleep(0.005)
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


def with_runtime(runtime):
    """The whole application over an open runtime."""
    from gateway.asgi import application

    async def application_with_runtime(scope, receive, send):
        await application({**scope, "state": {"runtime": runtime}}, receive, send)

    return application_with_runtime
