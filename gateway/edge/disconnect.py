"""Noticing that a client went away while its answer is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from gateway.edge.http import Receive


class watching:  # noqa: N801 - reads as a verb: `async with watching(receive, …) as client`
    """While open, calls `on_leave` once if the client disconnects.

    A server also says "disconnect" after a complete answer, so call `stop()` before sending the final body.
    """

    def __init__(self, receive: Receive, on_leave: Callable[[], object]) -> None:
        self._receive = receive
        self._on_leave = on_leave
        self._task: asyncio.Task[None] | None = None
        self.left = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self.left:
            self._leave()  # nobody will read the rest
        await self.stop()

    async def stop(self) -> None:
        """End the watch; what the server says from now on is not a client leaving."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()  # it was seen: an answer whose client can't be watched is still an answer

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        self.left = True
        self._on_leave()
