"""The connections and places that all deployments of one endpoint share."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

import msgspec
from aiohappyeyeballs import start_connection

from inference.clients.remote import faults
from inference.clients.remote.addresses import Network, open_socket
from inference.clients.remote.connection import Connection
from inference.clients.remote.faults import AskError
from inference.clients.remote.options import RemoteOptions
from inference.clients.remote.queue import Places
from inference.errors import EngineError, UnreachableError

KEEP_SECONDS = 3.0  # most servers close idle connections after 5: none is used that is about to be closed
ASK_SECONDS = 4.0  # two questions in a row, to a tokenizer, within the gateway's patience for a prompt
FINISH_SECONDS = 1.0  # for what follows the end mark of an answer: nothing, usually
RACE_SECONDS = 0.25  # before the next of a name's addresses is tried beside the one that hasn't answered
MOST_LOOK_UPS = 8  # of names at once, one of an endpoint at most
MOST_ANSWER = 64 << 20  # bytes of an answer in one piece
MOST_ERROR = 1 << 16

# Threads of their own: a look-up can't be ended, and a name server that doesn't answer would take all of the loop's few
# threads, in which whatever else the process connects to is looked up.
_names = ThreadPoolExecutor(MOST_LOOK_UPS, thread_name_prefix="remote-names")

log = logging.getLogger(__name__)

Addresses = list[tuple[Any, ...]]  # as getaddrinfo returns them


class Pool:
    """An endpoint: as many connections as are needed, since `places` bounds the requests."""

    def __init__(self, base: str, networks: Sequence[Network], forget: Callable[[], object]) -> None:
        self.places = Places(1, 1)
        self._base = urlsplit(base)
        self._networks = tuple(networks)
        self._users: dict[object, RemoteOptions] = {}
        self._forget = forget
        self._idle: deque[Connection] = deque()  # the one that was used last at the end
        self._busy: set[Connection] = set()
        self._tidying: asyncio.TimerHandle | None = None
        self._look_up: asyncio.Future[Addresses] | None = None  # of the endpoint's name, while it runs

    def join(self, user: object, options: RemoteOptions) -> None:
        """Count one more deployment; the smallest of their bounds holds for the endpoint."""
        self._users[user] = options
        self._bound()

    async def leave(self, user: object) -> None:
        """Count one less, and close the connections after the last."""
        if self._users.pop(user, None) is None:
            return
        if self._users:
            self._bound()
            return
        self._forget()
        if self._tidying is not None:
            self._tidying.cancel()
        for connection in (*self._idle, *self._busy):
            connection.close()

    def _bound(self) -> None:
        self.places.bound(
            min(options.concurrency for options in self._users.values()),
            min(options.queue for options in self._users.values()),
        )

    # -- connections ------------------------------------------------------------------------------------------------

    def kept(self) -> Connection | None:
        """Return a connection that an earlier answer left, None where there is none."""
        oldest = asyncio.get_running_loop().time() - KEEP_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and connection.idle_since > oldest:
                self._busy.add(connection)
                return connection
            connection.close()
        return None

    async def connect(self, seconds: float) -> Connection:
        """Return a new connection; raise `EngineError` where there is none within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return await self._connected()
        except OSError as error:  # TimeoutError is one
            raise faults.not_connected() from error

    async def post(
        self, connection: Connection, path: str, body: dict[str, Any], headers: Mapping[str, str], seconds: float
    ) -> None:
        """Send a request and wait for its answer's head, `seconds` at most (TimeoutError).

        Redirects are not followed. Raise `EngineError` for any status but 200.
        """
        until = asyncio.get_running_loop().time() + seconds
        connection.send(self._request("POST", path, headers, msgspec.json.encode(body)))
        try:
            status = await connection.head(until)
        except TimeoutError:
            raise
        except OSError as error:
            raise UnreachableError("The engine closed the connection before it answered.") from error
        if status != 200:
            raise faults.refusal_of(status, faults.words(await _words(connection)))

    def finish(self, connection: Connection) -> None:
        """Keep the connection of an answer that was read up to its end mark; nobody waits for what follows it."""
        connection.finish(FINISH_SECONDS, self._ended)

    def cut(self, connection: Connection) -> None:
        """Close a connection whose answer isn't read any further."""
        self._busy.discard(connection)
        connection.close()

    async def ask(self, headers: Mapping[str, str], path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the JSON at `path` (None for an answer that isn't JSON), for questions beside the requests.

        Raise `AskError`, whose `status` is 0 where there was no answer.
        """
        until = asyncio.get_running_loop().time() + ASK_SECONDS
        method, data = ("GET", b"") if body is None else ("POST", msgspec.json.encode(body))
        try:
            connection = self.kept()
            if connection is None:
                async with asyncio.timeout_at(until):
                    connection = await self._connected()
            try:
                connection.send(self._request(method, path, headers, data))
                answer = decoded(await _found(connection, path, until))
            except BaseException:
                self.cut(connection)  # after an error some servers close it without saying so
                raise
        except TimeoutError:
            raise AskError(0, path, reason=f"no answer to {path} within {ASK_SECONDS:.0f} s") from None
        except OSError as error:
            raise AskError(0, path, reason=faults.reason_of(error)) from error
        self.finish(connection)
        return answer

    # -- inside -----------------------------------------------------------------------------------------------------

    async def _connected(self) -> Connection:
        loop = asyncio.get_running_loop()
        host, tls = self._host, self._tls
        made = await start_connection(
            await self._addresses(),
            happy_eyeballs_delay=RACE_SECONDS,
            socket_factory=partial(open_socket, self._networks),
        )
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            _, connection = await loop.create_connection(
                Connection, sock=made, ssl=tls, server_hostname=host if tls is not None else None
            )
        except BaseException:
            made.close()
            raise
        if not self._users:  # they left meanwhile, and nobody would close it
            connection.close()
            raise ConnectionAbortedError("the endpoint is no longer used")
        self._busy.add(connection)
        return connection

    async def _addresses(self) -> Addresses:
        """Return the endpoint's addresses; who waits no longer leaves the look-up to those who wait after it."""
        resolve = partial(socket.getaddrinfo, self._host, self._port, type=socket.SOCK_STREAM)
        if self._is_literal:
            return resolve()  # which asks nobody
        if self._look_up is None:
            self._look_up = asyncio.get_running_loop().run_in_executor(_names, resolve)
            self._look_up.add_done_callback(self._looked_up)
        look_up = self._look_up
        await asyncio.wait([look_up])
        return look_up.result()

    def _looked_up(self, look_up: asyncio.Future[Addresses]) -> None:
        self._look_up = None
        if not look_up.cancelled():
            look_up.exception()  # whether or not anybody waits for it still

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        if self._base.scheme != "https":
            return None
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    @cached_property
    def _host(self) -> str:
        host = self._base.hostname or ""
        return host if host.isascii() else host.encode("idna").decode()

    @cached_property
    def _is_literal(self) -> bool:
        """Whether the endpoint is an address and no name."""
        try:
            ipaddress.ip_address(self._host)
        except ValueError:
            return False
        return True

    @property
    def _port(self) -> int:
        return self._base.port or (443 if self._base.scheme == "https" else 80)

    @cached_property
    def _named(self) -> str:
        """The endpoint as the ``host`` header has it."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return host if self._base.port is None else f"{host}:{self._base.port}"

    def _request(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        given = {"host": self._named, **headers}
        if body:
            given |= {"content-type": "application/json", "content-length": str(len(body))}
        lines = "".join([f"{name}: {value}\r\n" for name, value in given.items()])
        if lines.count("\n") != len(given) or lines.count("\r") != len(given):
            raise EngineError("A header of the engine's requests has more than one line.")
        if not path.isascii() or not path.isprintable() or " " in path:
            raise EngineError("A path of the engine's requests has a character that no path can have.")
        where = quote(self._base.path, safe="/%:@!$&'()*+,;=~") + path
        return f"{method} {where} HTTP/1.1\r\n{lines}\r\n".encode() + body

    def _ended(self, connection: Connection) -> None:
        """Keep the connection for the next request, unless it can't have one."""
        self._busy.discard(connection)
        if not connection.is_reusable or not self._users:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._tidying is None:
            self._tidying = loop.call_later(KEEP_SECONDS, self._tidy)

    def _tidy(self) -> None:
        """Close what has been idle for long, and look again while anything is."""
        loop = asyncio.get_running_loop()
        while self._idle and self._idle[0].idle_since <= loop.time() - KEEP_SECONDS:
            self._idle.popleft().close()
        self._tidying = loop.call_later(KEEP_SECONDS, self._tidy) if self._idle else None


async def _found(connection: Connection, path: str, until: float) -> bytes:
    """Return the body of an answer of status 200, or raise `AskError`."""
    status = await connection.head(until)
    if status != 200:
        raise AskError(status, path, await _words(connection))
    return await whole(connection, until)


async def _words(connection: Connection) -> bytes:
    """Return what an error says, as far as it comes; that its client has left meanwhile changes nothing of it."""
    until = asyncio.get_running_loop().time() + ASK_SECONDS
    words = b""
    try:
        while len(words) < MOST_ERROR and (data := await connection.read(until)):
            words += data
    except Exception:
        log.debug("an error's words broke off", exc_info=True)
    return words[:MOST_ERROR]


async def whole(connection: Connection, until: float) -> bytes:
    """Return an answer's body; raise `UnreachableError` for one beyond all bounds."""
    parts, size = [], 0
    while data := await connection.read(until):
        size += len(data)
        if size > MOST_ANSWER:
            raise UnreachableError("The engine sent more than can be an answer.")
        parts.append(data)
    return b"".join(parts)


def decoded(body: bytes) -> Any:
    """Return JSON, None for what isn't."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[Any, ...], Pool]] = WeakKeyDictionary()


def pool_of(base: str, networks: Sequence[Network]) -> Pool:
    """Return the running loop's pool of an endpoint."""
    pools = _pools.setdefault(asyncio.get_running_loop(), {})
    key = (base, tuple(networks))
    if key not in pools:
        pools[key] = Pool(base, networks, lambda: pools.pop(key, None))
    return pools[key]
