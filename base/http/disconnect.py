"""Noticing that a client disconnects while its answer is generated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from base.http.asgi import ClientLeftError, Receive, Scope


class Connection(Protocol):
    """The state of a request's connection, as `scope["connection"]`; set by our own server alone."""

    is_lost: bool
    has_message: bool
    on_lost: Callable[[], None] | None
    """Called once when the connection ends."""


class watching:  # noqa: N801 - reads as a verb: `async with watching(scope, receive) as client`
    """While open, notices that the client disconnects: the block is then cancelled and ends with ClientLeftError.

    After `stops(work)` a disconnect, or an error in the block, calls `work` instead, and the block goes on to its end.
    A server also says "disconnect" after a complete answer, so call `stop()` before sending the final body.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._connection: Connection | None = scope.get("connection")
        self._receive = receive
        self._work: Callable[[], object] | None = None
        self._task: asyncio.Task[None] | None = None
        self._block: asyncio.Task[object] | None = None
        self._is_cancelled = False
        self.left = False

    async def __aenter__(self) -> Self:
        self._block = asyncio.current_task()
        if self._connection is None:
            self._task = asyncio.create_task(self._watch())
        elif self._connection.is_lost:
            self._leave()
        else:
            self._connection.on_lost = self._leave
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._work is not None:
            self._work()  # the client won't get the rest of the answer
        self.stop()
        if self._is_cancelled and self._block is not None and not self._block.uncancel():
            raise ClientLeftError from error

    def stops(self, work: Callable[[], object]) -> None:
        """Have a disconnect call `work` from now on, instead of cancelling the block; may be called again."""
        self._work = work

    def stop(self) -> None:
        """Stop watching: a later "disconnect" only means that the answer is complete."""
        if self._connection is not None:
            self._connection.on_lost = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()  # it does nothing more, so nobody need wait for it
            task.add_done_callback(_retrieve_error)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        self.left = True
        if self._work is not None:
            self._work()
        elif self._block is not None:
            self._is_cancelled = self._block.cancel()


def _retrieve_error(done: asyncio.Task[None]) -> None:
    """Mark the error as retrieved, so that asyncio doesn't log it: failing to watch must not fail the answer."""
    if not done.cancelled():
        done.exception()
