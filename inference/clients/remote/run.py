"""One request at a remote engine, from its place in the queue to its last event."""

from __future__ import annotations

import array
import asyncio
import logging
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec

from inference.clients.remote import faults
from inference.clients.remote.dialects.base import Dialect
from inference.clients.remote.options import RemoteOptions
from inference.clients.remote.pool import Pool, whole
from inference.clients.remote.queue import Ticket
from inference.clients.remote.sse import Chunk, GarbageError, chunks
from inference.clients.remote.usage import Counter
from inference.errors import EngineError, UnreachableError
from inference.tracing import traceparent
from inference.types import (
    Delta,
    EngineFault,
    Event,
    Finished,
    FinishReason,
    Prepared,
    Started,
    Usage,
    Vector,
)

USAGE_SECONDS = 5.0  # for what comes after the answer itself: its usage and the end mark

T = TypeVar("T")
log = logging.getLogger(__name__)


class CancelledRunError(Exception):
    """The request was cancelled."""


class _EmbeddingItem(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class _Embeddings(msgspec.Struct):
    data: list[_EmbeddingItem]
    usage: Any = None


class RemoteRun:
    """See the module. `most_output` is what the server is asked for: the allowance can't be raised once it runs.

    Nothing is ever sent a second time.
    """

    def __init__(
        self,
        prepared: Prepared,
        allowance: int,
        *,
        likely_prompt: int,
        pool: Pool,
        dialect: Dialect,
        options: RemoteOptions,
        headers: dict[str, str],
        salt: str,
    ) -> None:
        self.most_output = min(allowance, prepared.max_output)
        self._prepared = prepared
        self._pool = pool
        self._dialect = dialect
        self._options = options
        self._headers = headers | {"x-request-id": prepared.request.id}
        if trace := traceparent.get():
            self._headers["traceparent"] = trace
        self._salt = salt
        self._counter = Counter(likely_prompt, prepared.most_prompt, self.most_output)
        request = prepared.request
        self._ticket = Ticket(request.tenant, request.weight, request.band, request.priority)
        self._patience: asyncio.Timeout | None = None
        self._is_cancelled = False
        self._has_begun = False
        self._reason: str | None = None
        self._is_complete = False  # the server has ended the answer
        self._stop: str | int | None = None
        self._created = time.monotonic()
        self._sent_at = self._first_at = self._created

    @property
    def usage(self) -> Usage:
        """The usage so far; nothing before the first event."""
        return self._counter.usage if self._has_begun else Usage()

    def cancel(self) -> None:
        """End the request now, whatever it waits for."""
        self._is_cancelled = True
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())

    def end(self, reason: FinishReason, error: EngineFault | None = None, stop: str | int | None = None) -> Finished:
        """Return the last event of a request that ends now."""
        now = time.monotonic()
        first = self._first_at if self._has_begun else now
        is_exact = not self._has_begun or self._counter.is_exact
        if not is_exact:
            log.info("request %s: the remote engine's usage is an estimate", self._prepared.request.id)
        return Finished(
            reason,
            self.usage,
            error,
            stop,
            exact=is_exact,
            is_estimate=not is_exact,
            queued_ms=(self._sent_at - self._created) * 1000,
            prefill_ms=(first - self._sent_at) * 1000,
            decode_ms=(now - first) * 1000,
        )

    async def chat(self) -> AsyncGenerator[Event, None]:
        """Yield every event of a chat; raise `EngineError` instead of the first when the server took nothing."""
        body = self._dialect.chat(self._prepared.request, self._options.model, self.most_output, self._salt)
        async with self._placed():
            response = await self._post("/v1/chat/completions", body)
            stream = chunks(response.content)
            try:
                async for event in self._relayed(stream):
                    yield event
            finally:
                if self._is_complete:
                    self._pool.finish(response)
                else:
                    response.close()

    async def embed(self) -> AsyncGenerator[Event, None]:
        """Yield every event of an embedding request."""
        body = self._dialect.embedding(self._prepared.request, self._options.model)
        async with self._placed():
            response = await self._post("/v1/embeddings", body)
            try:
                answer = await self._read_embeddings(response)
            finally:
                response.close()
            yield self._begun()
            for index, vector in enumerate(answer):
                yield Vector(index, vector)
            yield self.end(FinishReason.STOP)

    # -- inside -------------------------------------------------------------------------------------------------

    async def _within(self, seconds: float, work: Awaitable[T]) -> T:
        """Return what `work` does; raise TimeoutError after `seconds`, `CancelledRunError` at once when cancelled."""
        try:
            async with asyncio.timeout(0 if self._is_cancelled else seconds) as self._patience:
                return await work
        except TimeoutError:
            if self._is_cancelled:
                raise CancelledRunError from None
            raise
        finally:
            self._patience = None

    @asynccontextmanager
    async def _placed(self) -> AsyncIterator[None]:
        """Hold a place at the endpoint."""
        places = self._pool.places
        await self._within(self._options.queue_seconds + 1, places.take(self._ticket, self._options.queue_seconds))
        try:
            self._sent_at = time.monotonic()
            places.served(self._ticket, Usage(input=self._prepared.prompt_tokens))
            yield
        finally:
            places.give_back(self._ticket)

    async def _post(self, path: str, body: dict[str, Any]) -> aiohttp.ClientResponse:
        posted = self._pool.post(path, body, self._headers, self._options.connect_seconds)
        try:
            return await self._within(self._options.first_seconds, posted)
        except TimeoutError as error:
            raise UnreachableError("The engine didn't begin to answer in time.") from error

    async def _relayed(self, stream: AsyncIterator[list[Chunk]]) -> AsyncGenerator[Event, None]:
        """Yield the events that a stream of chunks means: one Delta for those that arrived together."""
        while not isinstance(arrived := await self._next(stream), Finished):
            if not self._has_begun:
                if arrived[0].error is not None:
                    raise EngineError("The engine failed before it began to answer.", code=faults.FAILED.code)
                self._counter.report(self._dialect.report(arrived[0].usage, arrived[0].timings))
                yield self._begun()
            before = self._counter.usage
            texts, has_failed = [], False
            for chunk in arrived:
                has_failed = chunk.error is not None
                if has_failed:
                    break
                texts.append(self._taken(chunk))
            text, usage = "".join(texts), self._counter.usage
            if text or usage != before:
                self._pool.places.served(self._ticket, usage)
                yield Delta(text, usage)
            if has_failed:
                yield self.end(FinishReason.ERROR, faults.FAILED)
                return
            if self._reason is None and self._counter.completion > self.most_output:
                self._reason = "length"  # it goes on beyond what it was asked for, and what is paid for
                yield self._ended()
                return
        yield arrived

    async def _next(self, stream: AsyncIterator[list[Chunk]]) -> list[Chunk] | Finished:
        """Return the next chunks, or the request's end; raise `EngineError` for an end before the first chunk."""
        if self._is_cancelled:
            return self.end(FinishReason.CANCELLED)
        seconds = self._options.idle_seconds if self._has_begun else self._options.first_seconds
        try:
            arrived = await self._within(USAGE_SECONDS if self._reason else seconds, anext(stream, None))
        except CancelledRunError:
            return self.end(FinishReason.CANCELLED)
        except (TimeoutError, GarbageError, aiohttp.ClientError, OSError) as error:
            return self._failed(error)
        self._is_complete = arrived is None
        return self._ended() if arrived is None else arrived

    def _begun(self) -> Started:
        self._has_begun = True
        self._first_at = time.monotonic()
        return Started(self._counter.usage.cache_read)

    def _taken(self, chunk: Chunk) -> str:
        """Count a chunk, and return its text."""
        text = ""
        for choice in chunk.choices or ():
            piece = choice.delta
            if piece is not None and (
                output := (piece.content or "") + (piece.reasoning_content or piece.reasoning or "")
            ):
                self._counter.output(output)
                text += piece.content or ""
            if choice.finish_reason:
                self._reason = choice.finish_reason
                self._stop = choice.matched_stop if choice.stop_reason is None else choice.stop_reason
        if chunk.usage is not None or chunk.timings is not None:
            self._counter.report(self._dialect.report(chunk.usage, chunk.timings))
        return text

    def _ended(self) -> Finished:
        """Return the end of a stream that ended by itself; without a reason it was cut."""
        if not self._has_begun:
            raise UnreachableError("The engine answered with nothing.")
        match self._reason:
            case None:
                return self.end(FinishReason.ERROR, faults.STOPPED)
            case "abort" | "error":
                return self.end(FinishReason.ERROR, faults.FAILED)
            case "length":
                is_short = self.most_output < self._prepared.max_output and self.usage.completion >= self.most_output
                return self.end(FinishReason.ALLOWANCE if is_short else FinishReason.LENGTH)
            case _:
                return self.end(FinishReason.STOP, stop=self._stop)

    def _failed(self, error: Exception) -> Finished:
        """Return the end of a stream that stalled, broke or made no sense; before its first event raise instead."""
        log.warning("request %s: the remote engine's stream failed: %r", self._prepared.request.id, error)
        if self._reason is not None:  # the answer is complete: only its usage is missing
            return self._ended()
        if not self._has_begun:
            raise UnreachableError("The engine failed before it began to answer.") from error
        if isinstance(error, TimeoutError):
            return self.end(FinishReason.ERROR, faults.SILENT)
        return self.end(FinishReason.ERROR, faults.UNREADABLE if isinstance(error, GarbageError) else faults.STOPPED)

    async def _read_embeddings(self, response: aiohttp.ClientResponse) -> list[bytes]:
        """Return the vectors in the order of the inputs, as little-endian float32."""
        try:
            body = await self._within(self._options.first_seconds, whole(response))
            answer = msgspec.json.decode(body, type=_Embeddings)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise UnreachableError("The engine didn't answer in time, or not to the end.") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise EngineError("The engine sent what can't be read.") from error
        vectors = [vector.embedding for vector in sorted(answer.data, key=lambda item: item.index)]
        if len(vectors) != len(self._prepared.request.inputs) or len(set(map(len, vectors))) != 1 or not vectors[0]:
            raise EngineError("The engine sent another number of vectors than there are inputs, or of unequal widths.")
        self._counter.report(self._dialect.report(answer.usage, None))
        self._counter.nothing_generated()
        return [_packed(vector) for vector in vectors]


def _packed(vector: list[float]) -> bytes:
    numbers = array.array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
