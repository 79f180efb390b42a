"""One connection to Redis: what is asked together travels together, in order, and a silent server costs nobody time."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import structlog
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

PATIENCE = 0.05
GRACE = 0.01  # after a busy moment of our own: what has arrived meanwhile is still read
CONNECT_SECONDS = 1.0
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.25, 2.0
IDLE_SECONDS = 1.0  # without a call, until Redis is asked whether it is still there
STEADY_SECONDS = 10.0  # a connection that lasted so long is opened anew at the first delay
MOST_QUEUED = 20_000
MOST_TOGETHER = 128  # in one batch: what takes no longer than anybody has patience for

Argument = str | int
log = structlog.get_logger(__name__)


class StoreLostError(Exception):
    """Redis does not answer: whether it did what it was asked last is not known."""


class Script:
    """A Lua script, called by its digest."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Call:
    """A script's call as it is sent; `future` is its answer. Keys and arguments are ASCII."""

    __slots__ = ("future", "packed")

    def __init__(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> None:
        # By hand: the library takes half of a request's time for it, since an argument may be anything there.
        texts = ["EVALSHA", script.digest, str(len(keys)), *keys, *map(str, arguments)]
        self.packed = f"*{len(texts)}\r\n" + "".join([f"${len(text)}\r\n{text}\r\n" for text in texts])
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class RedisConnection:
    """Runs scripts on one connection, in the order in which they were called.

    Calls that come while others are under way go out together. A batch that isn't answered within `patience`
    seconds fails, the connection is given up, and until another one answers every call fails at once: only those who
    asked in that moment have waited. A lost connection is opened anew in the background, for as long as it takes.
    """

    def __init__(self, url: str, scripts: Sequence[Script], patience: float = PATIENCE) -> None:
        # Time is ours to keep: the library would make a task for each write to do it.
        self._pool = ConnectionPool.from_url(
            url, socket_timeout=None, retry=Retry(NoBackoff(), 0), client_name="sluice-limits"
        )
        self._scripts = scripts
        self._patience = patience
        self._connection: AbstractConnection | None = None
        self._queue: list[Call] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.on_change: Callable[[bool], object] = lambda _: None  # told when Redis was lost, and when it is back
        self.greeting: Callable[[], Iterator[list[Call]]] = lambda: iter(())  # what a new connection says first
        self.losses = 0

    @property
    def is_up(self) -> bool:
        """True while Redis is believed to answer."""
        return self._connection is not None

    async def open(self) -> None:
        """Try to connect once and begin to work; that Redis can't be reached is no error."""
        try:
            await self._connect()
        except (RedisError, OSError, TimeoutError) as error:
            log.warning("redis_unreachable", error=_text(error))
            self.on_change(False)
        self._task = asyncio.get_running_loop().create_task(self._work())

    def send(self, call: Call) -> asyncio.Future[Any]:
        """Return the call's future; it, or this method, raises StoreLostError where nobody answers."""
        if self._connection is None or len(self._queue) >= MOST_QUEUED:
            raise StoreLostError("Redis does not answer")
        self._queue.append(call)
        self._wake.set()
        return call.future

    async def close(self) -> None:
        """Send what is queued, and close the connection."""
        if self._connection is not None and self._queue:
            await asyncio.wait([self._queue[-1].future], timeout=2 * self._patience)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail(self._queue)
        self._queue = []
        if self._connection is not None:
            await self._give_up()
        await self._pool.disconnect()

    async def _work(self) -> None:
        loop, delay, since = asyncio.get_running_loop(), RETRY_SECONDS, 0.0
        while True:
            try:
                if self._connection is None:
                    await self._connect()
                    since = loop.time()
                await self._work_or_time()
                batch, self._queue = self._queue[:MOST_TOGETHER], self._queue[MOST_TOGETHER:]
                try:
                    await self._send(batch)
                finally:
                    self._fail(batch)
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for an answer
                if self._connection is not None:
                    await self._lose(error)
                    delay = RETRY_SECONDS if loop.time() - since > STEADY_SECONDS else delay
                await asyncio.sleep(delay)
                delay = min(2 * delay, LONGEST_RETRY_SECONDS)

    async def _work_or_time(self) -> None:
        """Return when something is queued, or after `IDLE_SECONDS`."""
        if not self._queue:
            timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._wake.set)
            await self._wake.wait()
            timer.cancel()
        self._wake.clear()

    async def _lose(self, error: Exception) -> None:
        self.losses += 1
        log.warning("redis_lost", error=_text(error))
        await self._give_up()
        late, self._queue = self._queue, []
        self._fail(late)
        self.on_change(False)

    async def _connect(self) -> None:
        connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(max(self._patience, CONNECT_SECONDS)) as limit:
                await connection.connect()
                await self._teach(connection)
                for calls in self.greeting():
                    limit.reschedule(asyncio.get_running_loop().time() + max(self._patience, CONNECT_SECONDS))
                    await self._round_trip(connection, calls)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._connection = connection
        log.info("redis_answers")
        self.on_change(True)

    async def _give_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                await connection.disconnect(nowait=True)

    async def _send(self, batch: list[Call]) -> None:
        """Send the calls and resolve their futures, within `patience` seconds in all; without any, a ping."""
        connection, loop = self._connection, asyncio.get_running_loop()
        assert connection is not None, "nothing is sent before there is a connection"
        async with asyncio.timeout(None) as limit:
            timer = loop.call_later(self._patience, lambda: limit.reschedule(loop.time() + GRACE))
            try:
                unknown = await self._round_trip(connection, batch)
                if unknown:  # Redis was emptied, or is another one
                    await self._teach(connection)
                    await self._round_trip(connection, unknown)
            finally:
                timer.cancel()

    async def _teach(self, connection: AbstractConnection) -> None:
        """Have Redis know all scripts."""
        loads = [("SCRIPT", "LOAD", script.text) for script in self._scripts]
        await connection.send_packed_command(connection.pack_commands(loads), check_health=False)
        for _ in loads:
            await connection.read_response()

    async def _round_trip(self, connection: AbstractConnection, calls: list[Call]) -> list[Call]:
        """Resolve the calls' futures; return those whose script Redis doesn't know, of which nothing has run."""
        if not calls:
            await connection.send_command("PING", check_health=False)
            await connection.read_response()
            return []
        packed = "".join([one.packed for one in calls]).encode("ascii")
        await connection.send_packed_command(packed, check_health=False)
        unknown: list[Call] = []
        for one in calls:
            try:
                answer = await connection.read_response()
            except NoScriptError:
                unknown.append(one)
                continue
            if not one.future.done():
                one.future.set_result(answer)
        return unknown

    def _fail(self, calls: list[Call]) -> None:
        for one in calls:
            if not one.future.done():
                one.future.set_exception(StoreLostError("Redis does not answer"))
                one.future.exception()  # retrieved: nobody need wait for it


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
