"""The engine of a deployment that a worker process serves.

All deployments of one worker share one session on an event loop. When the session fails, every request on it ends
with what the worker last reported, and a new session is opened at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Any
from weakref import WeakKeyDictionary

import zmq

from inference.clients.link import Link
from inference.engine import EngineSpec
from inference.errors import EngineError, InvalidRequestError, UnreachableError
from inference.protocol import (
    Batch,
    Cancel,
    Drain,
    Drained,
    Extend,
    FromWorker,
    Prepare,
    PreparedReply,
    Ready,
    Refused,
    Stats,
    Submit,
    UsageOf,
    UsageReply,
    WireEvent,
    error_of,
    event_of,
    evidence_of,
)
from inference.types import (
    Delta,
    EngineFault,
    EngineInfo,
    Event,
    Evidence,
    Finished,
    FinishReason,
    GenerationRequest,
    Health,
    Prepared,
    Usage,
)

log = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0  # for calls that the reader thread answers by itself


class _Stream:
    """The events of one request on their way from the session to its iterator."""

    __slots__ = ("_events", "_waiter", "usage")

    def __init__(self) -> None:
        self.usage = Usage()
        self._events: deque[Event | EngineError] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: Event | EngineError) -> None:
        if isinstance(event, Delta):
            self.usage = event.usage
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Event:
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        event = self._events.popleft()
        if isinstance(event, EngineError):
            raise event
        return event


class WorkerSession:
    """The connection to one worker: what runs there for this process, and what is known of its deployments."""

    def __init__(self, endpoint: str, *, renew_seconds: float, silence_seconds: float) -> None:
        self.endpoint = endpoint
        self.infos: dict[str, EngineInfo] = {}
        self.health: dict[str, Health] = {}
        self.users = 0
        self._renew_seconds = renew_seconds
        self._silence_seconds = silence_seconds
        self._context: zmq.Context[Any] = zmq.Context()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._streams: dict[str, _Stream] = {}
        self._unreachable = "the worker has not answered yet"
        self._link = self._open()

    @property
    def is_up(self) -> bool:
        """True while a worker answers."""
        return not self._unreachable

    @property
    def trouble(self) -> str:
        """Why no worker answers, or an empty text."""
        return self._unreachable

    async def call(self, message: Prepare | UsageOf | Drain, seconds: float = ANSWER_SECONDS) -> Any:
        """Send a call and return its answer; raise what it was refused with, or `UnreachableError`."""
        if not self.is_up:
            raise UnreachableError(self._unreachable)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[message.call] = answer
        try:
            self._link.send(message)
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError as error:
            raise UnreachableError("the worker did not answer in time") from error
        finally:
            del self._calls[message.call]

    def number(self) -> int:
        """Return a number that no other call of this session has."""
        return next(self._numbers)

    def submit(self, request_id: str, stream: _Stream, allowance: int, is_final: bool) -> None:
        """Let the worker generate; everything it says of the request goes to `stream`."""
        if not self.is_up:
            raise UnreachableError(self._unreachable)
        if self._streams.setdefault(request_id, stream) is not stream:
            raise InvalidRequestError("the request is running already")
        self._link.send(Submit(request_id, allowance, is_final))

    def extend(self, request_id: str, allowance: int, is_final: bool) -> None:
        """Raise a running request's allowance."""
        if request_id in self._streams:
            self._link.send(Extend(request_id, allowance, is_final))

    def cancel(self, request_id: str) -> None:
        """End a running request; its Finished still comes."""
        if request_id in self._streams:
            self._link.send(Cancel(request_id))

    def close(self) -> None:
        """Say goodbye; what still runs ends as lost."""
        self._link.close()
        self._lose("the session was closed")
        self._context.destroy(linger=200)

    def _open(self) -> Link:
        return Link(
            context=self._context,
            endpoint=self.endpoint,
            receive=self._receive,
            failed=self._failed,
            renew_seconds=self._renew_seconds,
            silence_seconds=self._silence_seconds,
        )

    def _failed(self, reason: str) -> None:
        if self.is_up:
            log.warning("session with the worker at %s failed: %s", self.endpoint, reason)
        self._lose(reason)
        self._link = self._open()

    def _lose(self, reason: str) -> None:
        self._unreachable = reason
        self.health.clear()
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(UnreachableError(reason))
        fault = EngineFault("worker_lost", f"the worker was lost: {reason}", retryable=True)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.put(Finished(FinishReason.ERROR, stream.usage, fault, exact=False))

    def _receive(self, message: FromWorker) -> None:  # noqa: C901  one arm per message
        match message:
            case Batch(events):
                for wire in events:
                    stream = self._streams.get(wire.id)
                    if stream is None:
                        continue
                    event = self._event_of(wire)
                    if isinstance(event, Finished | EngineError):
                        del self._streams[wire.id]
                    stream.put(event)
            case Stats():
                self.health = message.health
            case Ready():
                self.infos = message.engines
                self._unreachable = ""
            case Refused() if message.id:
                stream = self._streams.pop(message.id, None)
                if stream is not None:
                    stream.put(error_of(message))
            case Refused(call=call):
                self._answer(call, error_of(message))
            case PreparedReply(call=call) | UsageReply(call=call) | Drained(call=call):
                self._answer(call, message)

    def _event_of(self, wire: WireEvent) -> Event | EngineError:
        """Return the event, or what ends this request alone when it can't be believed."""
        try:
            return event_of(wire)
        except EngineError as error:
            log.warning("request %s: %s", wire.id, error.message)
            self._link.send(Cancel(wire.id))
            return error

    def _answer(self, call: int, answer: object) -> None:
        waiting = self._calls.get(call)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, EngineError):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)


class WorkerEngine:
    """One deployment of a worker; see `inference.engine.Engine` for what its calls promise."""

    def __init__(self, deployment: str, session: WorkerSession) -> None:
        self.deployment = deployment
        self._session = session
        self._closed = False
        session.users += 1

    @property
    def info(self) -> EngineInfo | None:
        return self._session.infos.get(self.deployment)

    async def prepare(self, request: GenerationRequest) -> Prepared:
        session = self._session
        reply: PreparedReply = await session.call(Prepare(session.number(), self.deployment, request))
        return Prepared(request, reply.prompt_tokens, reply.max_output)

    async def generate(self, prepared: Prepared, allowance: int, is_final: bool) -> AsyncIterator[Event]:
        request_id = prepared.request.id
        stream = _Stream()
        self._session.submit(request_id, stream, allowance, is_final)
        has_ended = False
        try:
            while not has_ended:
                event = await stream.get()
                has_ended = isinstance(event, Finished)
                yield event
        except EngineError:
            has_ended = True  # the worker doesn't have it
            raise
        finally:
            if not has_ended:
                self._session.cancel(request_id)

    async def extend(self, request_id: str, allowance: int, is_final: bool) -> None:
        self._session.extend(request_id, allowance, is_final)

    async def cancel(self, request_id: str) -> None:
        self._session.cancel(request_id)

    async def usage_of(self, request_id: str) -> Evidence:
        reply: UsageReply = await self._session.call(UsageOf(self._session.number(), request_id))
        return evidence_of(reply)

    async def health(self) -> Health:
        session = self._session
        if not session.is_up:
            return Health(ready=False, reason=session.trouble)
        state = session.health.get(self.deployment)
        if state is not None:
            return state
        known = self.deployment in session.infos
        return Health(ready=known, reason="" if known else "the worker does not serve this deployment")

    async def drain(self, deadline: float) -> None:
        """Let the worker take no new work for this deployment; return when nothing runs there any more.

        `deadline` is in seconds from now; what still runs then is cancelled.
        """
        message = Drain(self._session.number(), self.deployment, deadline)
        await self._session.call(message, deadline + ANSWER_SECONDS)

    async def close(self) -> None:
        """Leave the session; the last deployment that leaves closes it."""
        if self._closed:
            return
        self._closed = True
        self._session.users -= 1
        if self._session.users == 0:
            _forget(self._session)
            self._session.close()


_sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, WorkerSession]] = WeakKeyDictionary()


def open_worker_engine(spec: EngineSpec) -> WorkerEngine:
    """Return the engine of `spec`, on the running loop's session with the worker at its endpoint.

    Options: `renew_seconds` and `silence_seconds`. The first deployment of an endpoint decides them for all.
    """
    options = dict(spec.options)
    renew, silence = float(options.pop("renew_seconds", 1.0)), float(options.pop("silence_seconds", 5.0))
    if options:
        raise ValueError(f"deployment {spec.deployment}: unknown options {sorted(options)}")
    sessions = _sessions.setdefault(asyncio.get_running_loop(), {})
    session = sessions.get(spec.endpoint)
    if session is None:
        session = WorkerSession(spec.endpoint, renew_seconds=renew, silence_seconds=silence)
        sessions[spec.endpoint] = session
    return WorkerEngine(spec.deployment, session)


def _forget(session: WorkerSession) -> None:
    for sessions in _sessions.values():
        if sessions.get(session.endpoint) is session:
            del sessions[session.endpoint]
