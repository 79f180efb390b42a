"""The bytes to and from Redis, on asyncio's transport itself: no task and no stream between a call and its answer.

Redis' library opens the connection (its URL, TLS, who we are) and has no part in it from then on: what scripts answer,
integers and texts of them, needs no general reader.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from redis.asyncio.connection import AbstractConnection

Argument = str | int

_STATUS, _ERROR, _INTEGER, _TEXT, _LIST, _PUSH, _NULL = b"+-:$*>_"


class ReplyError(Exception):
    """An error reply."""


class IncompleteError(Exception):
    """A reply goes on in what hasn't come yet."""


class Script:
    """A Lua script in ASCII, called by its digest."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Command:
    """A command as it is sent, its words in ASCII; `future` is its answer.

    `unheard` is called with an answer that nobody waits for any more, since the future was cancelled.
    """

    __slots__ = ("future", "packed", "unheard")

    def __init__(self, *words: str, unheard: Callable[[Any], object] | None = None) -> None:
        # By hand: the library takes half of a request's time for it, since a word may be anything there.
        self.packed = f"*{len(words)}\r\n" + "".join([f"${len(word)}\r\n{word}\r\n" for word in words])
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.unheard = unheard

    def answer(self, answer: Any) -> None:
        """Resolve the future."""
        if not self.future.done():
            self.future.set_result(answer)
        elif self.unheard is not None and self.future.cancelled():
            self.unheard(answer)


class Call(Command):
    """A script's call."""

    __slots__ = ()

    def __init__(
        self,
        script: Script,
        keys: Sequence[str],
        arguments: Sequence[Argument],
        *,
        unheard: Callable[[Any], object] | None = None,
    ) -> None:
        super().__init__("EVALSHA", script.digest, str(len(keys)), *keys, *map(str, arguments), unheard=unheard)


class Push(list[Any]):
    """A pushed message, which answers no command."""


class Wire(asyncio.Protocol):
    """A connection taken over from the library, over which one batch of commands at a time is answered.

    `on_lost` is called once when it ends, or when Redis says what it can't or that it can't: nothing is answered then.
    """

    def __init__(self, opened: AbstractConnection, on_lost: Callable[[Exception], object]) -> None:
        # Taken from `opened`, which would close them when it is forgotten.
        self._writer = cast("asyncio.StreamWriter", opened._writer)  # noqa: SLF001 - it hands them out nowhere
        opened._reader = opened._writer = None  # noqa: SLF001
        self._writer.transport.set_protocol(self)
        self._on_lost: Callable[[Exception], object] | None = on_lost
        self._on_end: Callable[[list[Command]], object] = lambda _: None
        self._batch: Iterator[Command] = iter(())
        self._missing = 0  # answers to the batch
        self._unknown: list[Command] = []
        self._unread = b""
        self._error: Exception | None = None
        self._gone = asyncio.Event()

    @property
    def is_waiting(self) -> bool:
        """Whether answers to the last batch are missing."""
        return self._missing > 0

    def send(self, batch: Sequence[Command], on_end: Callable[[list[Command]], object]) -> None:
        """Send commands, once the last batch was answered, and answer them.

        Behind the last answer `on_end` is called with those of which nothing has run, since Redis doesn't know their
        script.
        """
        assert not self._missing, "one batch at a time"
        data = "".join([command.packed for command in batch]).encode("ascii")
        self._batch, self._missing, self._unknown, self._on_end = iter(batch), len(batch), [], on_end
        self._writer.transport.write(data)

    async def ask(self, batch: Sequence[Command]) -> None:
        """Send commands and wait until all are answered; raise what the connection is lost with."""
        if not batch:
            return
        done = asyncio.Event()
        on_lost, self._on_lost = self._on_lost, lambda _: done.set()
        self.send(batch, lambda _: done.set())
        await done.wait()
        if self._error is not None:
            raise self._error
        self._on_lost = on_lost

    def close(self) -> None:
        """Close it; nothing is called any more."""
        self._on_lost = None
        self._missing = 0
        self._writer.close()

    async def wait_closed(self) -> None:
        """Return once the transport is closed, which takes a few turns of the loop, and over TLS the other side."""
        await self._gone.wait()

    # -- what the transport calls -----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        try:
            self._read(self._unread + data)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for an answer
            self._lose(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._gone.set()
        self._lose(error or ConnectionResetError("Redis closed the connection"))

    def _read(self, data: bytes) -> None:
        at, size = 0, len(data)
        while at < size:
            try:
                answer, at = reply(data, at)
            except IncompleteError:
                break
            if not isinstance(answer, Push):
                self._take(answer)
        self._unread = data[at:]

    def _take(self, answer: Any) -> None:
        if not self._missing:
            raise ValueError("an answer to nothing")
        command = next(self._batch)
        if isinstance(answer, ReplyError):
            if not str(answer).startswith("NOSCRIPT"):
                raise answer
            self._unknown.append(command)
        else:
            command.answer(answer)
        self._missing -= 1
        if not self._missing:
            self._on_end(self._unknown)

    def _lose(self, error: Exception) -> None:
        self._error = error
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost(error)


def reply(data: bytes, at: int) -> tuple[Any, int]:
    """Return the reply that begins at `at`, and where the next one does.

    Raise IncompleteError where its end isn't there yet, ValueError for what is none.
    """
    end = data.find(b"\r\n", at)
    if end < 0:
        raise IncompleteError
    kind, line, at = data[at], data[at + 1 : end], end + 2
    if kind == _INTEGER:
        return int(line), at
    if kind in {_LIST, _PUSH}:
        items: list[Any] = [] if kind == _LIST else Push()
        for _ in range(int(line)):
            item, at = reply(data, at)
            items.append(item)
        return items, at
    if kind == _TEXT and (size := int(line)) >= 0:
        if len(data) < at + size + 2:
            raise IncompleteError
        return data[at : at + size], at + size + 2
    if kind in {_TEXT, _NULL}:
        return None, at
    if kind == _STATUS:
        return line, at
    if kind == _ERROR:
        return ReplyError(line.decode(errors="replace")), at
    raise ValueError(f"no reply of Redis: {data[:40]!r}")
