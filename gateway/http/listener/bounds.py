"""Limits on a listener's connections and bytes, per client and in all."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import structlog
from django.conf import settings

from gateway.concurrency import Cap
from gateway.errors.refusal import Refusal
from gateway.http.bounds import SITE_BITS, client_network, too_many_connections

SITE_SHARES = 4  # as many as that many clients may have: connections from one network of IPv6 of SITE_BITS
LOG_SECONDS = 10.0  # between two lines about connections that were turned away

log = structlog.get_logger(__name__)


class Addresses(Protocol):
    """A set of addresses and networks."""

    def __contains__(self, address: str, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one listener, per client and in total; bytes and seconds."""

    head_bytes: int
    head_seconds: float
    body_bytes: int
    frame_bytes: int
    idle_seconds: int
    write_seconds: float
    connections: int
    connections_per_address: int

    @classmethod
    def of_settings(cls) -> Bounds:
        """The limits that the environment sets."""
        return cls(
            head_bytes=settings.SLUICE_MAX_HEAD_BYTES,
            head_seconds=settings.SLUICE_HEAD_SECONDS,
            body_bytes=settings.SLUICE_MAX_BODY_BYTES,
            frame_bytes=settings.SLUICE_MAX_FRAME_BYTES,
            idle_seconds=settings.SLUICE_IDLE_SECONDS,
            write_seconds=settings.SLUICE_WRITE_SECONDS,
            connections=settings.SLUICE_MAX_CONNECTIONS,
            connections_per_address=settings.SLUICE_MAX_CONNECTIONS_PER_ADDRESS,
        )


class Waiting(Protocol):
    """A connection whose client may not have sent a request."""

    def give_way(self) -> None:
        """Close it at once, and give its place back."""
        ...


class Listener:
    """The shared state of a port's connections: their limits and their number."""

    def __init__(self, bounds: Bounds, proxies: Addresses = frozenset[str]()) -> None:
        self.bounds = bounds
        self._proxies = proxies
        self._everyone: Cap[None] = Cap(bounds.connections, _too_many_connections)
        self._addresses: Cap[str] = Cap(bounds.connections_per_address, too_many_connections)
        self._sites: Cap[str] = Cap(SITE_SHARES * bounds.connections_per_address, too_many_connections)
        self._without_request: dict[Waiting, None] = {}  # the one that has waited longest first
        self._turned_away = 0
        self._told_at = float("-inf")

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._everyone)

    def enter(self, address: str | None) -> ExitStack:
        """Count a connection until the returned stack is closed; a Refusal (503, 429) when there are too many.

        Of all that may be open the one gives way that has waited longest without a request. A trusted proxy speaks for
        many clients, so its connections count among all, but not as one client's.
        """
        with ExitStack() as place:
            if address is not None and address not in self._proxies:
                for cap, owner in (
                    (self._addresses, client_network(address)),
                    (self._sites, client_network(address, SITE_BITS)),
                ):
                    cap.take(owner)
                    place.callback(cap.give_back, owner)
            if len(self._everyone) >= self.bounds.connections and self._without_request:
                next(iter(self._without_request)).give_way()
            self._everyone.take(None)
            place.callback(self._everyone.give_back, None)
            return place.pop_all()

    def waits(self, connection: Waiting) -> None:
        """Note that the connection has no request from now on."""
        self._without_request.pop(connection, None)
        self._without_request[connection] = None

    def has_request(self, connection: Waiting) -> None:
        """Note that the connection has a request, or is closed."""
        self._without_request.pop(connection, None)

    def turned_away(self, address: str | None, code: str) -> None:
        """Log that a connection was refused; a flood of them makes one line in `LOG_SECONDS`."""
        self._turned_away += 1
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= LOG_SECONDS:
            log.warning("connections_refused", code=code, address=address, count=self._turned_away)
            self._turned_away, self._told_at = 0, now


def _too_many_connections() -> Refusal:
    return Refusal(503, "server_full", "This server has as many connections as it takes.", headers={"retry-after": "1"})
