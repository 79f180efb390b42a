"""``manage.py gateway``: one gateway process (uvicorn) on this home."""

from __future__ import annotations

import gc
import sys
from typing import Any

import uvicorn
from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from gateway.edge.wire.limits import MAX_FRAME_BYTES
from gateway.home import HomeInUseError, HomeLock, port_problem
from gateway.logs import configure_logs
from gateway.supervisor import FATAL


class Command(BaseCommand):
    """Serve HTTP and websockets until SIGTERM; then let running generations end, for at most six seconds."""

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
        uvicorn.run(
            application,
            host=options["host"],
            port=options["port"],
            lifespan="on",
            ws_per_message_deflate=False,
            ws_max_size=2 * MAX_FRAME_BYTES,
            ws_max_queue=4,  # frames of one socket that nobody has read yet
            timeout_graceful_shutdown=6,  # the runtime then closes its books; the supervisor waits for ten in all
            timeout_keep_alive=30,
            access_log=False,
            log_config=None,
            proxy_headers=settings.SLUICE_TRUST_PROXY,
            forwarded_allow_ips=settings.SLUICE_PROXIES,
            server_header=False,
        )
