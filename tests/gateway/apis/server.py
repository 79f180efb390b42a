"""A real server on a free port, in the test's own event loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager

import uvicorn
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from gateway.http.listener.bounds import Bounds, Listener
from gateway.http.listener.server import configuration
from tests.waiting import until

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # to read the system's certificates is most of a client's making


def sdk(key, address):
    """OpenAI's own client of the server at `address`, which asks once."""
    http = DefaultAsyncHttpxClient(verify=NO_TLS)
    return AsyncOpenAI(api_key=key, base_url=f"http://{address}/v1", max_retries=0, http_client=http)


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
        await until(lambda: server.started or task.done())
        assert not task.done(), task.result()
        yield f"127.0.0.1:{port.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        port.close()


def with_runtime(runtime):
    """The whole application over an open runtime."""
    from gateway.asgi import application

    async def application_with_runtime(scope, receive, send):
        await application({**scope, "state": {"runtime": runtime, "metrics": runtime.metrics}}, receive, send)

    return application_with_runtime


def lifespan_with(runtime):
    """A lifespan whose runtime is there already."""

    class Open:
        should_exit = False
        state = {"runtime": runtime, "metrics": runtime.metrics}

        def __init__(self, config):
            """It is open already."""

        async def startup(self):
            """It is open already."""

        async def shutdown(self):
            """Whoever opened it closes it."""

    return Open
