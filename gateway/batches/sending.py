"""Sends lines of batches to a gateway, over connections that are kept open."""

from __future__ import annotations

import http.client
import select
from dataclasses import dataclass
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings

from gateway.runtime.address import running_address
from gateway.runtime.batch_lines import credential_of
from gateway.runtime.principal import Line

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 600.0  # of silence, after which the line is asked for again
MOST_ANSWER = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """A line on its way: `key` is the API key under whose rights it runs."""

    line: Line
    key: UUID
    endpoint: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """What a gateway answered."""

    status: int
    request_id: str
    retry_after: float | None
    body: bytes


class NotSentError(Exception):
    """No gateway could be reached: nothing of the request ran."""


class UnknownError(Exception):
    """The request was sent, and nobody knows what became of it: ask again, it runs once."""


def gateway_address() -> str:
    """Return where the gateways take lines."""
    return str(settings.SLUICE_GATEWAY_URL or running_address() or settings.SLUICE_BASE_URL)


class Sender:
    """Sends one line after the other over a connection of its own."""

    def __init__(self) -> None:
        self._known: tuple[str, http.client.HTTPConnection] | None = None

    def send(self, request: Request) -> Reply:
        """Return the gateway's answer; raise NotSentError or UnknownError without one."""
        address = gateway_address()
        if self._known is not None and self._known[0] == address and not _is_over(self._known[1]):
            connection = self._known[1]
        else:
            connection = _connected(address)
            self.close()
            self._known = address, connection
        try:
            return _exchange(connection, address, request)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise UnknownError(str(error) or type(error).__name__) from error

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._known is not None:
            self._known[1].close()
            self._known = None


def _connected(address: str) -> http.client.HTTPConnection:
    parts = urlsplit(address)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=CONNECT_SECONDS)
    try:
        connection.connect()
    except OSError as error:
        raise NotSentError(f"{address}: {error}") from error
    connection.sock.settimeout(ANSWER_SECONDS)
    connection.auto_open = 0  # a connection that ends is noticed here
    return connection


def _is_over(connection: http.client.HTTPConnection) -> bool:
    """Whether an idle connection has ended: only then is there anything to read."""
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _exchange(connection: http.client.HTTPConnection, address: str, request: Request) -> Reply:
    connection.request(
        "POST",
        urlsplit(address).path + request.endpoint,
        request.body,
        {
            "content-type": "application/json",
            "authorization": f"Bearer {credential_of(request.key, request.line)}",
            "idempotency-key": request.line.id.hex,
            "connection": "keep-alive",
        },
    )
    with connection.getresponse() as answer:
        body = answer.read(MOST_ANSWER)
        wait = answer.headers.get("retry-after", "")
        return Reply(
            answer.status,
            answer.headers.get("x-request-id", ""),
            float(wait) if wait.isdigit() else None,
            body,
        )
