"""A socket's streams: responses of one stream run one after the other, those of different streams concurrently."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from base.http import Send, data_of, encode, event
from gateway.apis.responses.events import Event
from gateway.apis.responses.wire import ResponseCreate, ResponseResume
from gateway.errors.refusal import Refusal, openai_error
from gateway.runtime.requests import Running
from gateway.runtime.runtime import Runtime
from inference.messages import Message

MOST_RESPONSES = 32
MOST_CHARACTERS = 1_000_000

Turns = tuple[Message, ...]


class History:
    """The conversations that this socket's latest unstored responses ended; the oldest go where there are too many."""

    def __init__(self, most_responses: int = MOST_RESPONSES, most_characters: int = MOST_CHARACTERS) -> None:
        self._most_responses = most_responses
        self._most_characters = most_characters
        self._known: OrderedDict[str, tuple[UUID, Turns, int]] = OrderedDict()
        self._characters = 0

    def keep(self, response_id: str, project: UUID, turns: Turns) -> None:
        """Remember `turns` as the conversation that `response_id` ended."""
        size = sum(turn.size for turn in turns)
        self._known[response_id] = (project, turns, size)
        self._characters += size
        while len(self._known) > self._most_responses or self._characters > self._most_characters:
            _, (_, _, gone) = self._known.popitem(last=False)
            self._characters -= gone

    def turns_of(self, response_id: str, project: UUID) -> Turns | None:
        """The conversation that `response_id` ended; None if it isn't known, or isn't this project's."""
        found = self._known.get(response_id)
        return None if found is None or found[0] != project else found[1]


_HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
_ERROR = b"event: error\n"


def kept_writer(send: Send) -> Callable[..., Awaitable[None]]:
    """Return what puts events into the log that `send` leads to; `is_last` with those that end the response."""
    is_begun = False

    async def write(events: Iterable[Event], *, is_last: bool = False) -> None:
        nonlocal is_begun
        if not is_begun:
            is_begun = True
            await send(_HEAD)
        data = b"".join(event(encode(told), told["type"]) for told in events)
        await send({"type": "http.response.body", "body": data, "more_body": not is_last})

    return write


def message_of(told: bytes) -> bytes:
    """Return an event of the log as a websocket's message, in JSON."""
    data = data_of(told)
    return b'{"type":"error",' + data[1:] if told.startswith(_ERROR) else data


class EventSender:
    """Sends events while the socket is open; after `shut` it drops them."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_open = True

    async def send(self, event: dict[str, Any], stream_id: str | None) -> None:
        """Send `event` on its stream."""
        if self._is_open:
            named = event if stream_id is None else {**event, "stream_id": stream_id}
            await self._pass_on({"type": "websocket.send", "text": encode(named).decode()})

    async def send_encoded(self, message: bytes, stream_id: str | None) -> None:
        """Send an event that is a JSON object already on its stream."""
        if self._is_open:
            named = message if stream_id is None else b'%b,"stream_id":%b}' % (message[:-1], encode(stream_id))
            await self._pass_on({"type": "websocket.send", "text": named.decode()})

    async def refuse(
        self, refusal: Refusal, request_id: UUID, *, stream_id: str | None = None, event_id: str | None = None
    ) -> None:
        """Send `refusal` as an error event; `event_id` is what the client called the event that was wrong."""
        error = openai_error(refusal, request_id)["error"]
        if event_id is not None:
            error["event_id"] = event_id
        if refusal.headers:
            error["headers"] = refusal.headers
        await self.send({"type": "error", "status": refusal.status, "error": error}, stream_id)

    async def close(self, code: int) -> None:
        """Close the socket."""
        if self._is_open:
            self._is_open = False
            await self._pass_on({"type": "websocket.close", "code": code})

    async def _pass_on(self, message: dict[str, Any]) -> None:
        try:
            await self._send(message)
        except OSError:  # what ASGI servers raise once the client is gone; its disconnect is on its way to `receive`
            self._is_open = False

    def shut(self) -> None:
        """Drop events from now on: the client closed the socket."""
        self._is_open = False


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
        stream.task = self._runtime.requests.supervise(self._run(stream))

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
