"""One connection to Redis: what is asked together travels together, in order, and a silent server costs nobody time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import structlog
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from billing.limits.redis.wire import Command, ReplyError, Script, Wire

PATIENCE = 0.05
GRACE = 0.01  # after a busy moment of our own: what has arrived meanwhile is still read
CONNECT_SECONDS = 1.0
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.25, 2.0
IDLE_SECONDS = 1.0  # without a call, until Redis is asked whether it is still there
STEADY_SECONDS = 10.0  # a connection that lasted so long is opened anew at the first delay
MOST_QUEUED = 20_000
MOST_TOGETHER = 128  # in one batch: what takes no longer than anybody has patience for

log = structlog.get_logger(__name__)


class StoreLostError(Exception):
    """Redis does not answer: whether it did what it was asked last is not known."""


class RedisConnection:
    """Runs commands, mostly scripts, on one connection, in the order in which they were asked.

    Commands that come while others are under way go out together. A batch that isn't answered within `patience`
    seconds fails, the connection is given up, and until another one answers every command fails at once: only those who
    asked in that moment have waited. A lost connection is opened anew in the background, for as long as it takes.
    """

    def __init__(self, url: str, scripts: Sequence[Script], patience: float = PATIENCE) -> None:
        # Time is ours to keep, and nothing is to come that wasn't asked for.
        self._pool = ConnectionPool.from_url(
            url, socket_timeout=None, retry=Retry(NoBackoff(), 0), client_name="sluice-limits", protocol=2
        )
        self._scripts = scripts
        self._patience = patience
        self._wire: Wire | None = None
        self._queue: list[Command] = []
        self._batch: list[Command] = []  # what was sent last
        self._is_taught = False  # the scripts were sent again on its account
        self._is_scheduled = False  # what is queued will be sent in the loop's next turn
        self._sent_at = self._opened_at = 0.0
        self._is_late = False
        self._timer: asyncio.TimerHandle | None = None
        self._delay = RETRY_SECONDS
        self._opening: asyncio.Task[None] | None = None
        self.on_change: Callable[[bool], object] = lambda _: None  # told when Redis was lost, and when it is back
        self.greeting: Callable[[], Iterator[list[Command]]] = lambda: iter(())  # what a new connection says first
        self.losses = 0

    @property
    def is_up(self) -> bool:
        """True while Redis is believed to answer."""
        return self._wire is not None

    async def open(self) -> None:
        """Try to connect; that Redis can't be reached is no error, and is tried again."""
        try:
            await self._connect()
        except Exception as error:  # noqa: BLE001 - whatever it is, it may work later
            log.warning("redis_unreachable", error=_text(error))
            self.on_change(False)
            self._open_later()

    def send(self, command: Command) -> asyncio.Future[Any]:
        """Return the command's future; it, or this method, raises StoreLostError where nobody answers."""
        if self._wire is None or len(self._queue) >= MOST_QUEUED:
            raise StoreLostError("Redis does not answer")
        self._queue.append(command)
        if not self._is_scheduled and not self._wire.is_waiting:
            self._is_scheduled = True  # behind what else this turn of the loop asks
            asyncio.get_running_loop().call_soon(self._send_queued)
        return command.future

    async def close(self) -> None:
        """Send what is queued, and close the connection."""
        if self._wire is not None and (asked := self._batch + self._queue):
            await asyncio.wait([asked[-1].future], timeout=2 * self._patience)
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        wire = self._wire
        self._end()
        if wire is not None:
            await _closed(wire)
        await self._pool.disconnect()

    # -- asking -----------------------------------------------------------------------------------------------------

    def _send_queued(self) -> None:
        """Send what is queued as one batch; while another one is under way that does it, once it is answered."""
        self._is_scheduled = False
        if self._queue and self._wire is not None and not self._wire.is_waiting:
            batch, self._queue = self._queue[:MOST_TOGETHER], self._queue[MOST_TOGETHER:]
            self._send(batch)

    def _send(self, batch: list[Command]) -> None:
        assert self._wire is not None, "nothing is sent before there is a connection"
        self._batch, self._is_taught, self._is_late = batch, False, False
        self._sent_at = asyncio.get_running_loop().time()
        self._look_at(self._sent_at + self._patience)
        try:
            self._wire.send(batch, self._answered)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for an answer
            self._lose(error)

    def _answered(self, unknown: list[Command]) -> None:
        """Go on behind a batch, of which Redis has no script for the `unknown`: it was emptied, or is another one."""
        if unknown and self._wire is not None:
            if self._is_taught:
                raise ReplyError("Redis doesn't keep the scripts")
            self._is_taught = True
            self._wire.send([*self._lessons(), *unknown], self._answered)
        else:
            self._batch = []
            self._send_queued()

    def _lessons(self) -> list[Command]:
        """Return what teaches Redis all scripts."""
        return [Command("SCRIPT", "LOAD", script.text) for script in self._scripts]

    def _look_at(self, moment: float) -> None:
        """Look then, or before, whether Redis is silent: one timer for all that is asked, most of it in vain."""
        if self._timer is not None:
            if self._timer.when() <= moment:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(moment, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._wire is None:
            return
        now = asyncio.get_running_loop().time()
        if not self._wire.is_waiting:
            if now < self._sent_at + IDLE_SECONDS:
                self._look_at(self._sent_at + IDLE_SECONDS)
            else:
                self._send([Command("PING")])
        elif now < self._sent_at + self._patience:
            self._look_at(self._sent_at + self._patience)
        elif not self._is_late:
            self._is_late = True
            self._look_at(now + GRACE)
        else:
            self._lose(TimeoutError())

    # -- opening, and losing ----------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        wire: Wire | None = None
        writers: list[asyncio.StreamWriter] = []

        async def greeted(made: Any) -> None:
            # Where this fails redis-py closes the writer, doesn't wait for it, and forgets it.
            writers.append(made._writer)  # noqa: SLF001
            await made.on_connect()

        connection.redis_connect_func = greeted
        try:
            async with asyncio.timeout(max(self._patience, CONNECT_SECONDS)) as limit:
                await connection.connect()
                wire = Wire(connection, self._lose)
                await wire.ask(self._lessons())
                for commands in self.greeting():
                    limit.reschedule(asyncio.get_running_loop().time() + max(self._patience, CONNECT_SECONDS))
                    await wire.ask(commands)
        except BaseException:
            # Waited for, since TLS says goodbye first, and the event loop may end right after.
            if wire is not None:
                await _closed(wire)
            with contextlib.suppress(TimeoutError, RedisError, OSError):
                async with asyncio.timeout(CONNECT_SECONDS):
                    await connection.disconnect()
                    for writer in writers:
                        await writer.wait_closed()
            raise
        self._wire = wire
        self._sent_at = self._opened_at = asyncio.get_running_loop().time()
        self._look_at(self._sent_at + IDLE_SECONDS)
        log.info("redis_answers")
        self.on_change(True)

    def _lose(self, error: Exception) -> None:
        """Give the connection up: whoever waits is told, and another one is opened later."""
        self.losses += 1
        log.warning("redis_lost", error=_text(error))
        if asyncio.get_running_loop().time() - self._opened_at > STEADY_SECONDS:
            self._delay = RETRY_SECONDS
        self._end()
        self.on_change(False)
        self._open_later()

    def _open_later(self) -> None:
        self._opening = asyncio.get_running_loop().create_task(self._open_again())

    async def _open_again(self) -> None:
        while self._wire is None:
            await asyncio.sleep(self._delay)
            self._delay = min(2 * self._delay, LONGEST_RETRY_SECONDS)
            with contextlib.suppress(Exception):  # whatever it is, it may work later
                await self._connect()

    def _end(self) -> None:
        """Close the connection and fail whatever has no answer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        failed, self._batch, self._queue = self._batch + self._queue, [], []
        for command in failed:
            if not command.future.done():
                command.future.set_exception(StoreLostError("Redis does not answer"))
                command.future.exception()  # retrieved: nobody need wait for it


async def _closed(wire: Wire) -> None:
    """Close `wire`, and wait for it as long as for a connection."""
    wire.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CONNECT_SECONDS):
            await wire.wait_closed()


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
