"""The connections and places that all deployments of one endpoint share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
import msgspec

from inference.clients.remote import faults
from inference.clients.remote.addresses import ForbiddenAddressError, Network, open_socket
from inference.clients.remote.faults import AskError
from inference.clients.remote.options import RemoteOptions
from inference.clients.remote.queue import Places
from inference.errors import EngineError, UnreachableError

KEEP_SECONDS = 3.0  # most servers close idle connections after 5: none is used that is about to be closed
ASK_SECONDS = 4.0  # two questions in a row, to a tokenizer, within the gateway's patience for a prompt
FINISH_SECONDS = 1.0  # for what follows the end mark of an answer: nothing, usually
MOST_ANSWER = 64 << 20  # bytes of an answer in one piece
MOST_ERROR = 1 << 16


class Pool:
    """An endpoint: a session without limits of its own, since `places` bounds the requests."""

    def __init__(self, base: str, networks: Sequence[Network], forget: Callable[[], object]) -> None:
        self.base = base
        self.places = Places(1, 1)
        self._users: dict[object, RemoteOptions] = {}
        self._forget = forget
        self._finishing: set[asyncio.Task[None]] = set()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=KEEP_SECONDS, socket_factory=partial(open_socket, tuple(networks))
            ),
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=True,
        )

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
        for task in self._finishing:
            task.cancel()
        await self._session.close()

    def _bound(self) -> None:
        self.places.bound(
            min(options.concurrency for options in self._users.values()),
            min(options.queue for options in self._users.values()),
        )

    async def post(
        self, path: str, body: dict[str, Any], headers: dict[str, str], connect_seconds: float
    ) -> aiohttp.ClientResponse:
        """Return the answer to a request, its body unread; whoever calls closes it.

        Redirects are not followed. Raise `EngineError` for any status but 200, and for an endpoint out of reach.
        """
        try:
            response = await self._session.post(
                self.base + path,
                data=msgspec.json.encode(body),
                headers=headers | {"content-type": "application/json"},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise faults.not_connected() from error
        except (aiohttp.ClientError, OSError) as error:
            raise UnreachableError("The engine closed the connection before it answered.") from error
        if response.status == 200:
            return response
        try:
            async with asyncio.timeout(ASK_SECONDS):
                words = await response.content.read(MOST_ERROR)
        except (aiohttp.ClientError, OSError):
            words = b""
        finally:
            response.close()
        raise faults.refusal_of(response.status, words)

    def finish(self, response: aiohttp.ClientResponse) -> None:
        """Keep the connection of an answer that was read up to its end mark; nobody waits for what follows it."""
        if not response.content.at_eof():
            task = asyncio.get_running_loop().create_task(_read_out(response))
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)

    async def ask(self, headers: dict[str, str], path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the JSON at `path` (None for an answer that isn't JSON), for questions beside the requests.

        Raise `AskError`, whose `status` is 0 where there was no answer.
        """
        method = "GET" if body is None else "POST"
        data = None if body is None else msgspec.json.encode(body)
        given = headers if body is None else headers | {"content-type": "application/json"}
        try:
            async with (
                asyncio.timeout(ASK_SECONDS),
                self._session.request(
                    method, self.base + path, data=data, headers=given, allow_redirects=False
                ) as response,
            ):
                if response.status != 200:
                    words = await response.content.read(MOST_ERROR)
                    response.close()  # after an error some servers close it without saying so
                    raise AskError(response.status, path, words)
                return decoded(await whole(response))
        except TimeoutError:
            raise AskError(0, path, reason=f"no answer within {ASK_SECONDS:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise AskError(0, path, reason=_cause_of(error)) from error


async def _read_out(response: aiohttp.ClientResponse) -> None:
    try:
        async with asyncio.timeout(FINISH_SECONDS):
            while await response.content.readany():
                pass
    except (TimeoutError, aiohttp.ClientError, OSError):
        pass  # then it is closed instead
    finally:
        response.close()


async def whole(response: aiohttp.ClientResponse) -> bytes:
    """Return an answer's body; raise `EngineError` for one beyond all bounds."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MOST_ANSWER:
            raise EngineError("The engine sent more than can be an answer.")
        parts.append(part)
    return b"".join(parts)


def decoded(body: bytes) -> Any:
    """Return JSON, None for what isn't."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _cause_of(error: BaseException) -> str:
    """Return why no connection was made, in words for operators."""
    if isinstance(error, aiohttp.ClientConnectorError):
        forbidden = error.os_error
        if isinstance(forbidden, ForbiddenAddressError):
            return str(forbidden)
    return str(error) or type(error).__name__


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[Any, ...], Pool]] = WeakKeyDictionary()


def pool_of(base: str, networks: Sequence[Network]) -> Pool:
    """Return the running loop's pool of an endpoint."""
    pools = _pools.setdefault(asyncio.get_running_loop(), {})
    key = (base, tuple(networks))
    if key not in pools:
        pools[key] = Pool(base, networks, lambda: pools.pop(key, None))
    return pools[key]
