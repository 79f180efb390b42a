"""The gateway's HTTP server: listeners, file descriptors, shutdown."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import structlog
import uvicorn
from django.conf import settings
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from gateway.http.asgi import Application
from gateway.runtime.runtime import Runtime
from gateway.server.bounds import Addresses, Bounds, Listener
from gateway.server.http import BoundedHTTP
from gateway.server.websocket import BoundedWebSocket

IDLE_SECONDS = 1.0  # a gateway that is replaced closes idle connections then: a request may be on its way
LOOK_SECONDS = 0.05
PATIENCE = 4.5  # the server cuts connections off after 6 s, and the supervisor waits for ten in all
OWN_FILES = 512  # descriptors kept for the database, engines, logs

log = structlog.get_logger(__name__)


def configuration(application: Application, listener: Listener, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration for `application` behind `listener`; `options` are uvicorn's own."""
    bounds = listener.bounds
    return uvicorn.Config(
        application,
        **{
            "http": cast("Any", partial(BoundedHTTP, listener=listener)),
            "ws": cast("Any", partial(BoundedWebSocket, listener=listener)),
            "ws_per_message_deflate": False,
            "ws_max_size": 2 * bounds.frame_bytes,  # up to which the application says what is wrong
            "timeout_graceful_shutdown": 6,
            "timeout_keep_alive": bounds.idle_seconds,
            "access_log": False,
            "log_config": None,
            "server_header": False,
            **options,
        },
    )


class Server(uvicorn.Server):
    """Ends running requests with an error of the API before uvicorn would cut them off; may serve probes on another
    port, or on the listening socket `probes_on`.

    One that is told to leave takes no more connections, while others accept them on the same sockets, lets what runs
    end for `leave_seconds` and then ends itself.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        probes: uvicorn.Config | None = None,
        *,
        listener: Listener | None = None,
        probes_on: socket.socket | None = None,
        leave_seconds: float = 30.0,
    ) -> None:
        super().__init__(config)
        self._probes = probes
        self._listener = listener
        self._probes_on = probes_on
        self._leave_seconds = leave_seconds
        self._is_to_leave = False
        self._leaving: asyncio.Task[None] | None = None

    def leave(self) -> None:
        """Have the server leave: from a signal's handler."""
        self._is_to_leave = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the runtime and listen."""
        await super().startup(sockets)
        runtime: Runtime | None = self.lifespan.state.get("runtime")
        if (listener := self._listener) is not None and runtime is not None:
            most = listener.bounds.connections
            runtime.metrics.gauges.follow(
                {"sluice_connections": lambda: listener.connections, "sluice_connections_limit": lambda: most}
            )
        probes = self._probes
        if probes is not None and self.started:
            probes.load()
            protocol = partial(
                cast("Any", probes.http_protocol_class),
                config=probes,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )
            loop = asyncio.get_running_loop()
            if self._probes_on is not None:
                self.servers.append(await loop.create_server(protocol, sock=self._probes_on))
            else:
                self.servers.append(await loop.create_server(protocol, host=probes.host, port=probes.port))

    async def on_tick(self, counter: int) -> bool:
        """Begin to leave, once told."""
        if self._is_to_leave and self._leaving is None:
            self._leaving = asyncio.create_task(self._leave())
        return await super().on_tick(counter)

    async def _leave(self) -> None:
        """Take no more connections, answer on those that there are as their last, and end once all are closed."""
        log.info("gateway_leaves", connections=len(self.server_state.connections))
        for server in self.servers:
            server.close()
        self.config.encoded_headers.append((b"connection", b"close"))
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        runtime: Runtime | None = self.lifespan.state.get("runtime")
        if runtime is not None:
            runtime.leave()
        loop = asyncio.get_running_loop()
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedHTTP):
                connection.answer_last()
                loop.call_later(IDLE_SECONDS, connection.shutdown)
        until = loop.time() + self._leave_seconds
        while self.server_state.connections and loop.time() < until:  # noqa: ASYNC110 - once in a process' life, and nobody tells
            await asyncio.sleep(LOOK_SECONDS)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests end for `PATIENCE` seconds; end the others with an error that says why, settled."""
        runtime: Runtime | None = self.lifespan.state.get("runtime")
        if runtime is not None:
            runtime.leave()
        draining = asyncio.create_task(runtime.drain(PATIENCE)) if runtime is not None else None
        await super().shutdown(sockets)
        if draining is not None:
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)


def gateway_server(
    application: Application,
    probes: Application,
    host: str,
    port: int,
    *,
    beat: Callable[[], Awaitable[None]] | None = None,
    probes_on: socket.socket | None = None,
) -> Server:
    """Return the server of one gateway process, with its bounds and descriptors as the settings want them.

    `probes` answers on the port of SLUICE_METRICS_PORT, or on the listening socket `probes_on`; its connections count
    apart. `beat` is awaited each second.
    """
    bounds = Bounds.of_settings()
    raise_file_limit(bounds.connections + OWN_FILES)
    listener = Listener(bounds, trusted_proxies())
    config = configuration(
        application,
        listener,
        host=host,
        port=port,
        lifespan="on",
        proxy_headers=settings.SLUICE_TRUST_PROXY,
        forwarded_allow_ips=settings.SLUICE_PROXIES,
        callback_notify=beat,
        timeout_notify=1,
    )
    leave_seconds = settings.SLUICE_DRAIN_SECONDS
    if not settings.SLUICE_METRICS_PORT:
        return Server(config, listener=listener, leave_seconds=leave_seconds)
    own = Listener(bounds, trusted_proxies())
    of_probes = configuration(probes, own, host=host, port=settings.SLUICE_METRICS_PORT, ws="none")
    return Server(config, of_probes, listener=listener, probes_on=probes_on, leave_seconds=leave_seconds)


def trusted_proxies() -> Addresses:
    """Return the addresses whose X-Forwarded-For is trusted; none unless a proxy is configured."""
    if not settings.SLUICE_TRUST_PROXY:
        return frozenset[str]()
    return ProxyHeadersMiddleware(cast("Any", None), settings.SLUICE_PROXIES).trusted_hosts


def raise_file_limit(wanted: int) -> None:
    """Let this process have `wanted` descriptors, as far as the system allows; say so when that is less."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning(
            "few_descriptors", allowed=allowed, wanted=wanted, mend="raise the limit, or SLUICE_MAX_CONNECTIONS down"
        )
