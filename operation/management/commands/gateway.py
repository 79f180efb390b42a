"""``manage.py gateway``: one gateway process (uvicorn) on this home."""

from __future__ import annotations

import contextlib
import gc
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from base.heartbeat import touch_heartbeat
from gateway.logs import background, configure_logs
from gateway.runtime.gateway_lock import FileLock, GatewayRunningError
from operation.schema import need_database
from operation.serve.address import address_of, address_of_sockets, announced
from operation.serve.starting import port_problem
from operation.serve.supervisor import FATAL


class Command(BaseCommand):
    """Serve HTTP and websockets until SIGTERM; then let running generations end, for at most five seconds."""

    help = "Run one gateway process: both planes, or one of them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)
        fd = "a listening socket that was opened before, instead of --host and --port; may be given several times"
        planes = "the data plane (/v1), the control plane (pages, accounts, management API), or both: docs/scaling.md"
        parser.add_argument("--plane", choices=["all", "data", "control"], default="all", help=planes)
        parser.add_argument("--fd", type=int, action="append", default=[], help=fd)
        parser.add_argument("--metrics-fd", type=int, help="the same for the port of SLUICE_METRICS_PORT")

    def handle(self, *args: Any, **options: Any) -> None:
        need_database()
        plane = options["plane"]
        if plane == "control" and not settings.SLUICE_DATA_PLANE:
            raise CommandError("--plane control needs SLUICE_DATA_PLANE: the address of a gateway's probes")
        if settings.SLUICE_EMBEDDED and plane != "control":
            try:
                FileLock.take(Path(settings.DATABASES["default"]["NAME"])).release()
            except GatewayRunningError as error:
                self.stderr.write(str(error))
                sys.exit(FATAL)
        listening = [socket.socket(fileno=descriptor) for descriptor in options["fd"]]
        probes_on = None if options["metrics_fd"] is None else socket.socket(fileno=options["metrics_fd"])
        own = [] if listening else [options["port"]]
        own += [] if probes_on else [settings.SLUICE_METRICS_PORT]
        for port in own:
            if port and (problem := port_problem(options["host"], port)):
                self.stderr.write(problem)
                sys.exit(FATAL)
        configure_logs(stream=background())
        from gateway.asgi import application_of, probes_of
        from gateway.http.listener.server import gateway_server

        # What was imported stays: left to the collector, it would be walked through in the middle of requests.
        # Requests leave few cycles, so it need not look after every 700 new objects either.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        server = gateway_server(
            application_of(plane), probes_of(plane), options["host"], options["port"], beat=_beat, probes_on=probes_on
        )
        address = address_of_sockets(listening) if listening else address_of(options["host"], options["port"])
        if plane == "control":  # commands look for the API
            address = ""
        signal.signal(signal.SIGHUP, lambda *_: server.leave())
        # The server ends in order, then takes the signal again: SIGTERM too must not end us before the address is gone.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with announced(address) if address else contextlib.nullcontext(), contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=listening or None)
        if not server.started:
            sys.exit(1)


async def _beat() -> None:
    """Show the supervisor, if there is one, that the event loop turns."""
    touch_heartbeat()
