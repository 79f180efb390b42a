"""A real server on a free port, in the test's own event loop."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import uvicorn

from gateway.server.bounds import Bounds, Listener
from gateway.server.server import configuration


@asynccontextmanager
async def serving(application, *, lifespan="off", listener=None, runtime=None, **options):
    """Serve `application` as production does; yields ``127.0.0.1:port``. `runtime` counts the server's own answers."""
    listener = listener or Listener(Bounds.of_settings())
    config = configuration(application, listener, lifespan=lifespan, timeout_graceful_shutdown=5, **options)
    config.load()
    if runtime is not None:
        config.lifespan_class = lifespan_with(runtime)
    server = uvicorn.Server(config)
    port = socket.socket()
    port.bind(("127.0.0.1", 0))
    task = asyncio.create_task(server.serve([port]))
    try:
        while not server.started:
            assert not task.done(), task.result()
            await asyncio.sleep(0.005)
        yield f"127.0.0.1:{port.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        port.close()


def with_runtime(runtime):
    """The whole application over an open runtime."""
    from gateway.asgi import application

    async def application_with_runtime(scope, receive, send):
        await application({**scope, "state": {"runtime": runtime}}, receive, send)

    return application_with_runtime


def lifespan_with(runtime):
    """A lifespan whose runtime is there already."""

    class Open:
        should_exit = False
        state = {"runtime": runtime}

        def __init__(self, config):
            """It is open already."""

        async def startup(self):
            """It is open already."""

        async def shutdown(self):
            """Whoever opened it closes it."""

    return Open
