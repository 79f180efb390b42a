"""A socket's lanes: in each, responses are made one after the other; lanes run beside each other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from gateway.edge.response_events import response_id
from gateway.edge.wire.responses import ResponseCreate
from gateway.errors.refusal import Refusal
from gateway.generation.generation import Generation
from gateway.runtime.runtime import Runtime

MOST_LANES = 16
MOST_WAITING = 8
MOST_WAITING_BYTES = 4 * 1024 * 1024  # in all lanes of a socket, as the client sent it

Work = Callable[["Lane", ResponseCreate], Awaitable[None]]


@dataclass(eq=False, slots=True)
class Lane:
    """One conversation of a socket: what waits and what runs."""

    stream_id: str | None
    waiting: deque[tuple[ResponseCreate, int]] = field(default_factory=deque)  # with its size in bytes
    generation: Generation | None = None
    is_stopped: bool = False  # what is being started or runs shall end

    def began(self, generation: Generation) -> None:
        """The response that was being started runs; it ends at once if it was stopped meanwhile."""
        self.generation = generation
        if self.is_stopped:
            generation.client_left()

    def stop(self) -> None:
        """End what runs."""
        self.is_stopped = True
        if self.generation is not None:
            self.generation.client_left()


class Lanes:
    """The lanes of one socket. `work` makes one response; it runs under the runtime's supervision."""

    def __init__(self, runtime: Runtime, work: Work) -> None:
        self._runtime = runtime
        self._work = work
        self._busy: dict[str | None, Lane] = {}
        self._waiting_bytes = 0
        self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def create(self, request: ResponseCreate, size: int) -> None:
        """Make a response in its lane, after those that wait there; a Refusal (429) where too many do.

        `size` is what the request counts as while it waits.
        """
        lane = self._busy.get(request.stream_id)
        if lane is not None:
            if len(lane.waiting) >= MOST_WAITING:
                raise _crowded(f"{MOST_WAITING} responses wait in this lane already.")
            if self._waiting_bytes + size > MOST_WAITING_BYTES:
                raise _crowded(f"{self._waiting_bytes} bytes of responses wait in this connection already.")
            lane.waiting.append((request, size))
            self._waiting_bytes += size
            return
        if len(self._busy) >= MOST_LANES:
            raise _crowded(f"{MOST_LANES} lanes of this connection are busy already.")
        lane = Lane(request.stream_id, deque([(request, 0)]))
        self._busy[request.stream_id] = lane
        self._idle.clear()
        self._runtime.supervise(self._run(lane))

    def cancel(self, stream_id: str | None, identifier: str | None) -> None:
        """Stop what runs in the lane, or the response called `identifier`; harmless when it has ended."""
        if identifier is None:
            lane = self._busy.get(stream_id)
            if lane is not None:
                lane.stop()
            return
        for lane in self._busy.values():
            if lane.generation is not None and response_id(lane.generation) == identifier:
                lane.stop()

    def close(self) -> None:
        """Stop everything and forget what waits; settling goes on without the socket."""
        self._is_closed = True
        for lane in self._busy.values():
            lane.waiting.clear()
            lane.stop()

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs."""
        return not self._busy

    async def idle(self) -> None:
        """Return when nothing runs."""
        await self._idle.wait()

    async def _run(self, lane: Lane) -> None:
        try:
            while lane.waiting:
                request, size = lane.waiting.popleft()
                self._waiting_bytes -= size
                lane.is_stopped = self._is_closed
                try:
                    await self._work(lane, request)
                finally:
                    lane.generation = None
        finally:
            del self._busy[lane.stream_id]
            if not self._busy:
                self._idle.set()


def _crowded(message: str) -> Refusal:
    return Refusal(429, "too_many_responses", message)
