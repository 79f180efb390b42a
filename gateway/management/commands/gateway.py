"""``manage.py gateway``: one gateway process (uvicorn) on this home."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from gateway.edge.wire.limits import MAX_FRAME_BYTES
from gateway.home import HomeInUseError, HomeLock
from gateway.logs import configure_logs
from gateway.management.ports import port_problem
from gateway.management.supervisor import FATAL
from gateway.management.watchdog import VARIABLE
from gateway.runtime.runtime import Runtime

PATIENCE = 4.5  # the server cuts connections off after 6 s, and the supervisor waits for ten in all


class Command(BaseCommand):
    """Serve HTTP and websockets until SIGTERM; then let running generations end, for at most five seconds."""

    help = "Run one gateway process."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.SLUICE_EMBEDDED:
            try:
                HomeLock.acquire(settings.SLUICE_HOME).release()
            except HomeInUseError as error:
                self.stderr.write(str(error))
                sys.exit(FATAL)
        if problem := port_problem(options["host"], options["port"]):
            self.stderr.write(problem)
            sys.exit(FATAL)
        configure_logs()
        from gateway.asgi import application

        # What was imported stays: left to the collector, it would be walked through in the middle of requests.
        # Requests leave few cycles, so it need not look after every 700 new objects either.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        config = uvicorn.Config(
            application,
            host=options["host"],
            port=options["port"],
            lifespan="on",
            ws_per_message_deflate=False,
            ws_max_size=2 * MAX_FRAME_BYTES,
            ws_max_queue=4,  # frames of one socket that nobody has read yet
            timeout_graceful_shutdown=6,
            timeout_keep_alive=30,
            access_log=False,
            log_config=None,
            proxy_headers=settings.SLUICE_TRUST_PROXY,
            forwarded_allow_ips=settings.SLUICE_PROXIES,
            server_header=False,
            callback_notify=_beat,
            timeout_notify=1,
        )
        server = _Server(config)
        with contextlib.suppress(KeyboardInterrupt):  # the server ends in order, then takes the signal again
            server.run()
        if not server.started:
            sys.exit(1)


async def _beat() -> None:
    """Show the supervisor, if there is one, that the event loop turns."""
    if heartbeat := os.environ.get(VARIABLE):
        Path(heartbeat).touch()  # noqa: ASYNC240 - one inode's time, nothing to wait for


class _Server(uvicorn.Server):
    """Ends what still runs in its own words before the server would cut it off."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests end for `PATIENCE` seconds; end the others with an error that says why, settled."""
        runtime: Runtime | None = self.lifespan.state.get("runtime")
        draining = asyncio.create_task(runtime.drain(PATIENCE)) if runtime is not None else None
        await super().shutdown(sockets)
        if draining is not None:
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
