"""A socket's streams: responses of one stream run one after the other, those of different streams concurrently."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from gateway.apis.responses.wire import ResponseCreate, ResponseResume
from gateway.errors.refusal import Refusal
from gateway.runtime.runtime import Running, Runtime

MOST_STREAMS = 16
MOST_WAITING = 8
MOST_WAITING_BYTES = 4 * 1024 * 1024  # of requests as sent, in all streams of a socket

Request = ResponseCreate | ResponseResume
Work = Callable[["Stream", Request], Awaitable[None]]


@dataclass(eq=False, slots=True)
class Stream:
    """One stream of a socket: its waiting requests and its running response."""

    stream_id: str | None
    waiting: deque[tuple[Request, int]] = field(default_factory=deque)  # with its size in bytes
    generation: Running | None = None
    request: Request | None = None  # whose response runs
    is_kept: bool = False  # the response goes on without the socket
    is_stopped: bool = False  # the response that runs, or is being started, shall end
    task: asyncio.Task[None] | None = None

    @property
    def resumes(self) -> str:
        """The id of the response that it goes on with; empty if it makes its own."""
        return self.request.response_id if isinstance(self.request, ResponseResume) else ""

    @property
    def made_elsewhere(self) -> str:
        """The same, if this process isn't known to make it."""
        return self.resumes if self.generation is None else ""

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of its request, which names the project."""
        return (None if self.request is None else self.request.metadata) or {}

    def began(self, generation: Running) -> None:
        """Note that the response runs; cancels it at once if the stream was stopped meanwhile."""
        self.generation = generation
        if self.is_stopped:
            generation.cancel(None)

    def stop(self) -> None:
        """Stop the response that runs or is being started."""
        self.is_stopped = True
        if self.generation is not None:
            self.generation.cancel(None)


class Streams:
    """The streams of one socket. `work` generates one response, as a supervised task of the runtime."""

    def __init__(self, runtime: Runtime, work: Work) -> None:
        self._runtime = runtime
        self._work = work
        self._busy: dict[str | None, Stream] = {}
        self._waiting_bytes = 0
        self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def create(self, request: Request, size: int) -> None:
        """Make a response in its stream, after those that wait there; a Refusal (429) where too many do.

        `size` is what the request counts as while it waits.
        """
        stream = self._busy.get(request.stream_id)
        if stream is not None:
            if len(stream.waiting) >= MOST_WAITING:
                raise crowded(f"{MOST_WAITING} responses wait in this stream already.")
            if self._waiting_bytes + size > MOST_WAITING_BYTES:
                raise crowded(f"{self._waiting_bytes} bytes of responses wait in this connection already.")
            stream.waiting.append((request, size))
            self._waiting_bytes += size
            return
        if len(self._busy) >= MOST_STREAMS:
            raise crowded(f"{MOST_STREAMS} streams of this connection are busy already.")
        stream = Stream(request.stream_id, deque([(request, 0)]))
        self._busy[request.stream_id] = stream
        self._idle.clear()
        stream.task = self._runtime.supervise(self._run(stream))

    def cancel(self, stream_id: str | None, identifier: str | None) -> Stream | None:
        """Stop the stream's response, or the response called `identifier`, and return its stream; None where none of
        these runs it.
        """
        found = None if identifier is not None else self._busy.get(stream_id)
        for stream in self._busy.values():
            made = "" if stream.generation is None else f"resp_{stream.generation.id.hex}"
            if identifier is not None and identifier in {made, stream.resumes}:
                found = stream
        if found is not None:
            found.stop()
        return found

    def close(self) -> None:
        """Stop all responses but those that are kept, and drop all waiting requests; settling goes on without the
        socket.
        """
        self._is_closed = True
        for stream in self._busy.values():
            stream.waiting.clear()
            if not stream.is_kept:
                stream.stop()
            if (stream.generation is None or stream.is_kept) and stream.task is not None:
                stream.task.cancel()

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs."""
        return not self._busy

    async def idle(self) -> None:
        """Return when nothing runs."""
        await self._idle.wait()

    async def _run(self, stream: Stream) -> None:
        try:
            while stream.waiting:
                request, size = stream.waiting.popleft()
                self._waiting_bytes -= size
                stream.is_stopped = self._is_closed
                stream.request = request
                try:
                    await self._work(stream, request)
                finally:
                    stream.generation, stream.request, stream.is_kept = None, None, False
        finally:
            del self._busy[stream.stream_id]
            if not self._busy:
                self._idle.set()


def crowded(message: str) -> Refusal:
    """The 429 for more than one socket may have going on at once."""
    return Refusal(429, "too_many_responses", message)
