"""The gateway's HTTP server: listeners, file descriptors, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import structlog
import uvicorn
from django.conf import settings
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from base.http import Application
from gateway.errors.faults import draining
from gateway.http.listener.bounds import Addresses, Bounds, Listener
from gateway.http.listener.http import BoundedHTTP
from gateway.http.listener.websocket import BoundedWebSocket
from gateway.runtime.metrics import Metrics
from gateway.runtime.runtime import Runtime

IDLE_SECONDS = 1.0  # a gateway that ends closes idle connections then: a request may be on its way
LOOK_SECONDS = 0.05
TICK_SECONDS = 1.0
PATIENCE = 4.5  # of a gateway that is told to stop; the supervisor waits for ten seconds in all
LAST_SECONDS = 1.5  # after that, for the errors of those that were ended
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
            "timeout_graceful_shutdown": LAST_SECONDS,
            "timeout_keep_alive": bounds.idle_seconds,
            "access_log": False,
            "log_config": None,
            "server_header": False,
            **options,
        },
    )


class Server(uvicorn.Server):
    """Answers what comes on the connections that it has before it ends; may serve probes on another port, or on the
    listening socket `probes_on`.

    One that is to end takes no more connections. Whoever has one is answered, for `PATIENCE` seconds after SIGTERM and
    for `leave_seconds` when others serve meanwhile (`leave`), who are sent the new ones: on a socket of its own it
    listens for `notice_seconds` more, in which proxies see that it isn't ready. Then requests that still run, or aren't
    whole yet, end with an error, before uvicorn would cut them off.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        probes: uvicorn.Config | None = None,
        *,
        listener: Listener | None = None,
        probes_on: socket.socket | None = None,
        leave_seconds: float = 30.0,
        notice_seconds: float = 0.0,
    ) -> None:
        self._exits = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = asyncio.Event()  # it is to leave or to end
        super().__init__(config)
        self._probes = probes
        self._listener = listener
        self._probes_on = probes_on
        self._leave_seconds = leave_seconds
        self._notice_seconds = notice_seconds
        self._is_to_leave = False
        self._leaving: asyncio.Task[None] | None = None
        self._has_begun_to_leave = False
        self._has_left = False

    def leave(self) -> None:
        """Have the server leave: from a signal's handler."""
        self._is_to_leave = True
        self._look()

    @property
    def should_exit(self) -> bool:
        """Whether it is to end; set by handlers of signals too."""
        return self._exits

    @should_exit.setter
    def should_exit(self, exits: bool) -> None:
        self._exits = exits
        self._look()

    def _look(self) -> None:
        """Have `main_loop` look now: from any thread, and from a signal's handler."""
        if (loop := self._loop) is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._told.set)

    async def main_loop(self) -> None:
        """Look each second, and whenever something is told: uvicorn's own looks ten times as often."""
        self._loop = asyncio.get_running_loop()
        counter = 0  # of tenths of a second, as `on_tick` wants it
        while not await self.on_tick(counter):
            counter = (counter + 10) % 864_000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._told.wait()
            self._told.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the runtime and listen."""
        if sockets:  # others accept on them too, so that nobody need be told beforehand
            self._notice_seconds = 0.0
        await super().startup(sockets)
        metrics: Metrics | None = self.lifespan.state.get("metrics")
        if (listener := self._listener) is not None and metrics is not None:
            most = listener.bounds.connections
            metrics.gauges.follow(
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
            self._leaving = asyncio.create_task(self._leave_and_end())
        return await super().on_tick(counter)

    async def _leave_and_end(self) -> None:
        if (runtime := self._runtime) is not None:
            runtime.requests.leave()  # `/readyz` says so to the health checks of proxies
            await asyncio.sleep(self._notice_seconds)
        await self._leave(self._leave_seconds)
        self._has_left = self.should_exit = True

    async def _leave(self, seconds: float) -> None:
        """Take no more connections, answer on those that there are as their last, until all are closed or `seconds`
        are over.
        """
        if not self._has_begun_to_leave:
            self._has_begun_to_leave = True
            await self._begin_to_leave()
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        connections, runtime = self.server_state.connections, self._runtime
        live = {} if runtime is None else runtime.requests.live
        # `live` has what runs without a connection too: background responses and lines of batches.
        while (connections or live) and loop.time() < until and not self.force_exit:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(LOOK_SECONDS)

    async def _begin_to_leave(self) -> None:
        log.info("gateway_leaves", connections=len(self.server_state.connections))
        for server in self.servers:
            server.close()
        self.config.encoded_headers.append((b"connection", b"close"))
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        if (runtime := self._runtime) is not None:
            runtime.requests.leave()
        await asyncio.sleep(0)  # what was accepted in this turn of the loop becomes a connection in the next
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedHTTP):
                connection.answer_last(IDLE_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what runs and what still comes for `PATIENCE` seconds, unless it has left; then end it with an error
        that says why.
        """
        if self._leaving is not None:
            self._leaving.cancel()
        patience = 0.0 if self._has_left else PATIENCE
        until = asyncio.get_running_loop().time() + patience
        await self._leave(patience)
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedHTTP):
                connection.end(draining())
        if (runtime := self._runtime) is not None:
            await runtime.requests.drain(
                max(0.0, until - asyncio.get_running_loop().time())
            )  # what has no connection has it too
        await super().shutdown(sockets)

    @property
    def _runtime(self) -> Runtime | None:
        return cast("Runtime | None", self.lifespan.state.get("runtime"))


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
        timeout_notify=0,  # at each tick
    )
    of_probes = None
    if settings.SLUICE_METRICS_PORT:
        own = Listener(bounds, trusted_proxies())
        of_probes = configuration(probes, own, host=host, port=settings.SLUICE_METRICS_PORT, ws="none")
    return Server(
        config,
        of_probes,
        listener=listener,
        probes_on=probes_on if of_probes else None,
        leave_seconds=settings.SLUICE_DRAIN_SECONDS,
        notice_seconds=settings.SLUICE_NOTICE_SECONDS,
    )


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
