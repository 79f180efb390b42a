"""Limits on a request's body, on the requests of one address, and on refusals, for data plane and Django."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from functools import lru_cache
from typing import Generic, TypeVar

import structlog
from django.conf import settings

from base.http import Application, ASGIMessage, Receive, Scope, Send, header_of
from gateway.concurrency import Cap
from gateway.errors.refusal import Refusal
from gateway.http.request import uploads

RATE = 50.0
"""Answers a second for each owner, behind the first ones."""
BURST = 200
LONGEST = 5.0
"""Seconds that an answer waits at most."""
MOST_WAITING = 32
"""Answers of an owner that wait at the same time: what waits keeps a connection."""
MOST_OWNERS = 10_000
FREE_BYTES = 64 * 1024
"""Of a body that was read for nothing; each further part of as many counts as one more answer."""

Owner = TypeVar("Owner", bound=Hashable)


class Patience(Generic[Owner]):
    """Spaces what each owner gets beyond its first ones: the wait costs its own connection and nobody else."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._due: dict[Owner, float] = {}  # when as many as were answered would have been, one after the other
        self._waiting: Counter[Owner] = Counter()

    async def wait(self, owner: Owner, size: int = 0) -> bool:
        """Return at once, or when it is the turn of one more for `owner`, for which `size` bytes were read; False, at
        once, where too many of its wait already.
        """
        now = self._clock()
        due = max(self._due.get(owner, now), now)
        seconds = due - BURST / RATE - now
        if seconds > 0 and self._waiting[owner] >= MOST_WAITING:
            return False
        self._due[owner] = min(due + (1 + size // FREE_BYTES) / RATE, now + BURST / RATE + LONGEST)
        if len(self._due) > MOST_OWNERS:
            self._due = {one: until for one, until in self._due.items() if until > now}
        if seconds > 0:
            self._waiting[owner] += 1
            try:
                await self._sleep(seconds)
            finally:
                self._waiting[owner] -= 1
                if not self._waiting[owner]:
                    del self._waiting[owner]
        return True


MOST_STRANGERS = 8  # that the log tells of

log = structlog.get_logger(__name__)

_CLOSE = {"connection": "close"}


def bounded(application: Application) -> Application:
    """Return `application`, whose `receive` raises a Refusal for a body that is too large (413) or too slow (408).

    An announced length that is too large is refused before a byte is read.
    """

    def application_with_bounds(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        # No coroutine of its own: every token of a stream would pass through it.
        if scope["type"] == "http":
            body = scope["body"] = _Body(scope, receive)
            receive = body.receive
        return application(scope, receive, send)

    return application_with_bounds


def allow_body(scope: Scope, most: int, seconds: float) -> None:
    """Let the request's body, of which nothing has been read, have other bounds than the settings' of all endpoints."""
    body: _Body = scope["body"]
    body.most, body.seconds = most, seconds


def counted_by_address(application: Application) -> Application:
    """Return `application`, which counts bodies being received by client address, with a limit (429): the caller isn't
    known yet.

    Django keeps a whole body, in memory or in a temporary file, before it asks who sends it.
    """

    async def application_with_count(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        with uploads.share(_network_of(scope)) as take:

            async def receive_counted() -> ASGIMessage:
                message = await receive()
                if message.get("more_body"):
                    take(len(message["body"]))
                return message

            await application(scope, receive_counted, send)

    return application_with_count


def paced_by_address(application: Application) -> Application:
    """Return `application`, whose requests wait where one address sends very many: pages, which ask for no key and are
    made in the process that serves everybody.
    """
    patience: Patience[str] = Patience()

    async def application_at_a_pace(scope: Scope, receive: Receive, send: Send) -> None:
        network = _network_of(scope)
        if network and not await patience.wait(network):
            raise too_many_connections()
        await application(scope, receive, send)

    return application_at_a_pace


def _network_of(scope: Scope) -> str:
    return client_network((scope.get("client") or ("",))[0])


CLIENT_BITS = 56  # of IPv6: as much as an access line is given
SITE_BITS = 48  # as much as a customer of a data centre is given


@lru_cache(4096)
def client_network(address: str, bits: int = CLIENT_BITS) -> str:
    """Return the network that counts as one client: an IPv4 address, or the network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, bits), strict=False))


def too_many_connections() -> Refusal:
    """Return the 429 for an address with as many connections (behind a proxy: requests) as one client may have."""
    text = "Your address has as many connections to this server as it may."
    return Refusal(429, "too_many_connections", text, headers={"retry-after": "1"})


def limited_by_address(application: Application) -> Application:
    """Return `application`, which limits concurrent requests and websockets of one address (429).

    For use behind a trusted proxy, whose connections the server can't tell apart by their clients.
    """
    addresses: Cap[str] = Cap(settings.SLUICE_MAX_CONNECTIONS_PER_ADDRESS, too_many_connections)
    strangers: set[str] = set()

    async def application_with_limit(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not scope.get("client"):
            await application(scope, receive, send)
            return
        address = scope["client"][0]
        if address not in (header_of(scope, b"x-forwarded-for") or address) and len(strangers) < MOST_STRANGERS:
            if address not in strangers:
                log.warning("forwarded_by_stranger", address=address, mend="add a proxy of yours to SLUICE_PROXIES")
            strangers.add(address)
        with addresses.share(_network_of(scope)) as take:
            take(1)
            await application(scope, receive, send)

    return application_with_limit


def size_read(scope: Scope) -> int:
    """Return how many bytes of the request's body were received; `scope` is the one that `bounded` got."""
    body: _Body | None = scope.get("body")
    return 0 if body is None else body.size


class _Body:
    """Limits one request's body as it is received; later messages (the disconnect) pass unchanged."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._headers = scope["headers"]  # and not the scope, which refers to this
        self._connection = scope.get("connection")
        self._receive = receive
        self.most = settings.SLUICE_MAX_BODY_BYTES
        self.seconds = settings.SLUICE_BODY_SECONDS
        self.size = 0
        self._deadline = 0.0
        self._is_whole = False

    async def receive(self) -> ASGIMessage:
        if self._is_whole:
            return await self._receive()
        if not self._deadline:
            self._begin()
        if self._has_arrived:
            message = await self._receive()
        else:
            message = await self._receive_in_time()
        self.size += len(message.get("body", b""))
        if self.size > self.most:
            raise _too_large(self.most)
        self._is_whole = not message.get("more_body", False)
        return message

    @property
    def _has_arrived(self) -> bool:
        """Whether our server has the next message already, as nearly always: a timer would cost more than reading."""
        return self._connection is not None and self._connection.has_message

    async def _receive_in_time(self) -> ASGIMessage:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._receive()
        except TimeoutError:
            text = f"The body took longer than {self.seconds:g} s."
            raise Refusal(408, "request_timeout", text, headers=_CLOSE) from None

    def _begin(self) -> None:
        announced = header_of({"headers": self._headers}, b"content-length")
        if announced is not None and announced.isdigit() and int(announced[:20]) > self.most:
            raise _too_large(self.most)
        self._deadline = asyncio.get_running_loop().time() + self.seconds


def _too_large(most: int) -> Refusal:
    text = f"The body is larger than {most:,} bytes."
    return Refusal(413, "request_too_large", text, headers=_CLOSE)
