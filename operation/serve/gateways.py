"""The gateways of `serve`: processes that accept on the same listening sockets, which outlive them."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from django.conf import settings

from base.home import runtime_directory
from operation.serve.processes import ChildSpec
from operation.serve.starting import listen, port_problem
from operation.serve.supervisor import Supervisor

DEADLINE = 10.0


def gateways_problem(count: int) -> str:
    """Return why these settings don't allow `count` gateways, or an empty string."""
    if count < 1:
        return "--gateways has to be 1 or more"
    if count > 1 and settings.SLUICE_EMBEDDED:
        return "several gateways need PostgreSQL and Redis: set DATABASE_URL and REDIS_URL"
    if count > 1 and not settings.REDIS_URL:
        return "several gateways count limits together in Redis: set REDIS_URL"
    return ""


def ports_problem(host: str, port: int, count: int) -> str:
    """Return why `count` gateways can't listen at `host` and `port` now, or an empty string."""
    first = settings.SLUICE_METRICS_PORT
    ports = [port, *(range(first, first + count) if first else ())]
    return next(filter(None, (port_problem(host, one) for one in ports)), "")


class Gateways:
    """`count` gateways at `host` and `port`, and the probes of each on a port of its own where settings want that.

    What connects while a gateway ends and another starts waits in the socket's queue: nothing is refused.
    """

    def __init__(self, host: str, port: int, count: int) -> None:
        """Raise OSError when nothing can listen there."""
        self._host = host
        self._port = port
        self._listening = listen(host, port)
        first = settings.SLUICE_METRICS_PORT
        self._probes = [listen(host, first + index)[0] for index in range(count)] if first else []
        self.names = ["gateway"] if count == 1 else [f"gateway-{number}" for number in range(1, count + 1)]
        self._can_overlap = bool(settings.REDIS_URL) and not settings.SLUICE_EMBEDDED

    def specs(self, python: Sequence[str], silence: float) -> list[ChildSpec]:
        """Return the children; `python` is how to run `manage.py`."""
        return [self._spec(index, name, python, silence) for index, name in enumerate(self.names)]

    def replace(self, supervisor: Supervisor) -> None:
        """Start each gateway anew: beside the old one where the database takes several, else after it has ended."""
        if self._can_overlap:
            supervisor.roll(self.names)
        else:
            supervisor.restart(*self.names)

    def close(self) -> None:
        """Listen no more."""
        for one in (*self._listening, *self._probes):
            one.close()

    def _spec(self, index: int, name: str, python: Sequence[str], silence: float) -> ChildSpec:
        command = [*python, "gateway", "--host", self._host, "--port", str(self._port)]
        given: list[socket.socket] = [*self._listening]
        for one in self._listening:
            command += ["--fd", str(one.fileno())]
        if self._probes:
            given.append(self._probes[index])
            command += ["--metrics-fd", str(self._probes[index].fileno())]
        return ChildSpec(
            name,
            command,
            DEADLINE,
            silence,
            runtime_directory() / f"{name}.heartbeat",
            group="gateway",
            descriptors=tuple(one.fileno() for one in given),
            farewell=settings.SLUICE_DRAIN_SECONDS,
        )
