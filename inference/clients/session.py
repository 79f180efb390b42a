"""One gateway process's session with a worker: calls and their answers, submitted requests and their events.

When the session fails, every request ends with the last usage that the worker reported, and a new session is opened at
once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from typing import Any

import zmq

from inference.clients.link import Link
from inference.conversion import error_of, event_of
from inference.errors import EngineError, InvalidRequestError, OverloadedError, UnreachableError
from inference.logs import request_field
from inference.protocol import (
    Batch,
    Cancel,
    Detokenize,
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
    TextReply,
    Tokenize,
    TokensReply,
    UsageOf,
    UsageReply,
    WireEvent,
)
from inference.types import Delta, EngineFault, EngineInfo, Event, Finished, FinishReason, Health, Usage

log = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0  # for calls that don't wait for running requests


class EventStream:
    """The queue of one request's events, with the last `usage` that they reported.

    It can have no more than `prompt_tokens` of prompt and, in all its answers, `allowance` of output.
    """

    __slots__ = ("_events", "_waiter", "allowance", "prompt_tokens", "usage")

    def __init__(self, prompt_tokens: int) -> None:
        self.usage = Usage()
        self.prompt_tokens = prompt_tokens
        self.allowance = 0
        self._events: deque[Event | EngineError] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def check(self, usage: Usage) -> None:
        """Raise EngineError when the request can't have that `usage`."""
        if usage.prompt > self.prompt_tokens or usage.completion > self.allowance:
            given = f"{self.prompt_tokens} and {self.allowance} tokens"
            raise EngineError(f"The engine counted more than {given}: {usage}.", code="usage_impossible")

    def put(self, event: Event | EngineError) -> None:
        """Append an event, or the error that ends the request."""
        if isinstance(event, Delta):
            self.usage = event.usage
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Event:
        """Return the next event when it has come, or raise the error in its place."""
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        event = self._events.popleft()
        if isinstance(event, EngineError):
            raise event
        return event


class WorkerSession:
    """`infos` and `health` are what the worker last sent of its deployments; `users` counts engines."""

    def __init__(
        self,
        endpoint: str,
        server_key: str = "",
        secret_key: str = "",
        *,
        renew_seconds: float,
        silence_seconds: float,
    ) -> None:
        self.endpoint = endpoint
        self._server_key = server_key
        self._secret_key = secret_key
        self.infos: dict[str, EngineInfo] = {}
        self.health: dict[str, Health] = {}
        self.users = 0
        self._renew_seconds = renew_seconds
        self._silence_seconds = silence_seconds
        self._context: zmq.Context[Any] = zmq.Context()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._streams: dict[str, EventStream] = {}
        self._unreachable = "the worker has not answered yet"
        self._link = self._open()

    @property
    def is_up(self) -> bool:
        """True between the worker's `Ready` and the session's failure."""
        return not self._unreachable

    @property
    def incarnation(self) -> str:
        """Identity of the worker's process; empty until the worker has answered."""
        return self._link.incarnation

    @property
    def unreachable_reason(self) -> str:
        """Why the session isn't up; empty while it is."""
        return self._unreachable

    async def call(
        self, message: Prepare | Tokenize | Detokenize | UsageOf | Drain, seconds: float = ANSWER_SECONDS
    ) -> Any:
        """Send a call and return its answer; raise what it was refused with, or `UnreachableError`.

        A prompt that isn't prepared in time is an `OverloadedError`: the session is up, so the worker lives, and other
        prompts or grammars keep it busy. One client's slow grammars would have it taken for broken, for everybody.
        """
        if not self.is_up:
            raise UnreachableError(self._unreachable)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[message.call] = answer
        try:
            self._link.send(message)
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError as error:
            if self.is_up and isinstance(message, Prepare | Tokenize | Detokenize):
                raise OverloadedError("the request could not be prepared in time") from error
            raise UnreachableError("the worker did not answer in time") from error
        finally:
            del self._calls[message.call]

    def next_call(self) -> int:
        """Return the number for a new call."""
        return next(self._numbers)

    def submit(self, request_id: str, stream: EventStream, allowance: int, is_final: bool) -> None:
        """Submit a prepared request, whose events go to `stream`.

        Raise `UnreachableError` while the session isn't up, `InvalidRequestError` when the request is running already.
        """
        if not self.is_up:
            raise UnreachableError(self._unreachable)
        if self._streams.setdefault(request_id, stream) is not stream:
            raise InvalidRequestError("the request is running already")
        stream.allowance = allowance
        self._link.send(Submit(request_id, allowance, is_final))

    def extend(self, request_id: str, allowance: int, is_final: bool) -> None:
        """Raise a running request's allowance."""
        if (stream := self._streams.get(request_id)) is not None:
            stream.allowance = max(stream.allowance, allowance)
            self._link.send(Extend(request_id, allowance, is_final))

    def cancel(self, request_id: str) -> None:
        """End a running request, whose Finished still comes, or forget one that is only prepared."""
        if self.is_up:
            self._link.send(Cancel(request_id))

    def close(self) -> None:
        """Close the session; requests that still run end as lost."""
        self._link.close()
        self._end_all("the session was closed")
        self._context.destroy(linger=200)

    def _open(self) -> Link:
        return Link(
            context=self._context,
            endpoint=self.endpoint,
            server_key=self._server_key,
            secret_key=self._secret_key,
            receive=self._receive,
            failed=self._failed,
            renew_seconds=self._renew_seconds,
            silence_seconds=self._silence_seconds,
        )

    def _failed(self, reason: str) -> None:
        if self.is_up:
            log.warning("session with the worker at %s failed: %s", self.endpoint, reason)
        self._end_all(reason)
        self._link = self._open()

    def _end_all(self, reason: str) -> None:
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
                    event = self._event_of(wire, stream)
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
            case (
                PreparedReply(call=call)
                | TokensReply(call=call)
                | TextReply(call=call)
                | UsageReply(call=call)
                | Drained(call=call)
            ):
                self._answer(call, message)

    def _event_of(self, wire: WireEvent, stream: EventStream) -> Event | EngineError:
        """Return the event; for one that can't be cancel the request and return the error that ends it.

        A worker that counts more than its request was given would have a tenant pay for what nobody held credit for.
        """
        try:
            event = event_of(wire)
            if isinstance(event, Delta | Finished):
                stream.check(event.usage)
        except EngineError as error:
            log.warning("a request's event is invalid: %s", error.message, extra=request_field(wire.id))
            self._link.send(Cancel(wire.id))
            return error
        return event

    def _answer(self, call: int, answer: object) -> None:
        waiting = self._calls.get(call)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, EngineError):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)
