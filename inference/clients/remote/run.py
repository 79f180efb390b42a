"""One request at a remote engine, from its place in the queue to its last event."""

from __future__ import annotations

import array
import asyncio
import logging
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from operator import itemgetter
from typing import Any

import msgspec

from inference.clients.remote import faults
from inference.clients.remote.connection import Connection
from inference.clients.remote.dialects.base import Dialect
from inference.clients.remote.guided import follows
from inference.clients.remote.options import RemoteOptions
from inference.clients.remote.pieces import Calls, Pieces
from inference.clients.remote.pool import Pool, whole
from inference.clients.remote.queue import Ticket
from inference.clients.remote.sse import Arrival, Chunk, EventReader, GarbageError, Piece, Texts
from inference.clients.remote.usage import Counter
from inference.errors import UnreachableError
from inference.tracing import traceparent
from inference.types import (
    ANSWER_NOT_GUIDED,
    Delta,
    EngineFault,
    Event,
    Finished,
    FinishReason,
    Kind,
    Prepared,
    Started,
    Usage,
    Vector,
)

USAGE_SECONDS = 5.0  # for what comes after the answer itself: its usage and the end mark

log = logging.getLogger(__name__)


class CancelledRunError(Exception):
    """The request was cancelled."""


class _EmbeddingItem(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class _Embeddings(msgspec.Struct):
    data: list[_EmbeddingItem]
    usage: Any = None


class _ScoreItem(msgspec.Struct):
    score: float
    index: int = 0


class _Scores(msgspec.Struct):
    data: list[_ScoreItem]
    usage: Any = None


class RemoteRun:
    """`most_output` is what the server is asked for: the allowance can't be raised once it runs.

    Nothing is ever sent a second time. One that `is_part` of a request whose first answer has begun is never refused a
    place in the queue.
    """

    def __init__(
        self,
        prepared: Prepared,
        allowance: int,
        *,
        likely_prompt: int,
        least_prompt: int,
        pool: Pool,
        dialect: Dialect,
        options: RemoteOptions,
        headers: dict[str, str],
        salt: str,
        is_part: bool = False,
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
        self._counter = Counter(likely_prompt, prepared.most_prompt, self.most_output, least_prompt)
        request = prepared.request
        self._ticket = Ticket(request.tenant, request.weight, request.band, request.priority, is_part)
        self._waiting: asyncio.Timeout | None = None  # for a place or a connection
        self._connection: Connection | None = None
        self._events = EventReader()
        self._calls = Calls()
        self._tells_tokens = request.sampling.logprobs is not None
        self._echoed = str(request.prompt) if request.sampling.echo else ""
        self._guided: list[str] = []  # the text of an answer that is to be held to something
        self._garbage: GarbageError | None = None  # what followed the last events
        self._is_cancelled = False
        self._was_sent = False
        self.has_place = False  # before which nothing that befalls it is the server's doing
        self.has_begun = False  # whether anything of the answer has come, or its end
        self._reason: str | None = None
        self._stop: str | int | None = None
        self._created = time.monotonic()
        self._sent_at = self._first_at = self._created

    @property
    def usage(self) -> Usage:
        """The usage so far; nothing before the answer begins, since nothing shows that the server computed anything."""
        return self._counter.usage if self.has_begun else Usage()

    @property
    def tells_cached(self) -> bool:
        """Whether the server has said how much of the prompt was cached."""
        return self._counter.tells_cached

    def cancel(self) -> None:
        """End the request now, whatever it waits for."""
        self._is_cancelled = True
        if self._connection is not None:
            self._connection.stop(CancelledRunError())
        elif self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    def end(self, reason: FinishReason, error: EngineFault | None = None, stop: str | int | None = None) -> Finished:
        """Return the last event of a request that ends now."""
        now = time.monotonic()
        first = self._first_at if self.has_begun else now
        is_exact = not self._was_sent or self._counter.is_exact
        return Finished(
            reason,
            self.usage,
            error,
            stop,
            exact=is_exact,
            is_estimate=self.has_begun and not is_exact,
            queued_ms=(self._sent_at - self._created) * 1000,
            prefill_ms=(first - self._sent_at) * 1000,
            decode_ms=(now - first) * 1000,
            findings=self._findings(reason) if self._was_sent else (),
        )

    def _findings(self, reason: FinishReason) -> tuple[str, ...]:
        """Return what the server said that can't be, and whether it ended an answer that isn't what it was held to."""
        sampling, text = self._prepared.request.sampling, "".join(self._guided)
        is_whole = reason is FinishReason.STOP and not sampling.stop and not sampling.stop_token_ids
        if text and is_whole and sampling.guidance is not None and not follows(sampling.guidance, text):
            return (*self._counter.findings, ANSWER_NOT_GUIDED)
        return self._counter.findings

    async def chat(self) -> AsyncGenerator[Event, None]:
        """Yield every event of a chat; raise `EngineError` instead of the first when the server took nothing."""
        body = self._dialect.chat(self._prepared.request, self._options.model, self.most_output, self._salt)
        await self._take_place()
        try:
            is_raw = self._prepared.request.prompt is not None
            connection = await self._post("/v1/completions" if is_raw else "/v1/chat/completions", body)
            try:
                is_over = False
                while not is_over:
                    for event in self._told(await self._next(connection)):
                        if self._prepared.request.sampling.guidance is not None and isinstance(event, Delta):
                            self._guided.append(event.text)
                        is_over = isinstance(event, Finished)
                        yield event
                        if isinstance(event, Started) and self._echoed:
                            yield Delta(self._echoed, self.usage)
            finally:
                self._leave(connection, is_read=self._events.is_ended)
        finally:
            self._pool.places.give_back(self._ticket)

    async def embed(self) -> AsyncGenerator[Event, None]:
        """Yield every event of an embedding request, or of one for scores."""
        request, model = self._prepared.request, self._options.model
        is_score = request.kind is Kind.SCORE
        body = self._dialect.score(request, model) if is_score else self._dialect.embedding(request, model)
        await self._take_place()
        try:
            connection = await self._post("/v1/score" if is_score else "/v1/embeddings", body)
            try:
                answer = await self._read_vectors(connection, is_score=is_score)
            finally:
                self._leave(connection)
        finally:
            self._pool.places.give_back(self._ticket)
        yield self._begun()
        for index, vector in enumerate(answer):
            yield Vector(index, vector)
        yield self.end(FinishReason.STOP)

    # -- inside -------------------------------------------------------------------------------------------------

    async def _take_place(self) -> None:
        """Wait for a place at the endpoint; whoever calls gives it back."""
        places = self._pool.places
        if not places.take_free(self._ticket):
            async with self._cancellable():
                await places.take(self._ticket, self._options.queue_seconds)
        self.has_place = True
        self._sent_at = time.monotonic()
        places.served(self._ticket, Usage(input=self._prepared.prompt_tokens))

    async def _post(self, path: str, body: dict[str, Any]) -> Connection:
        """Send the request and return the connection that its answer comes over, the body unread."""
        connection = self._pool.kept()
        if connection is None:
            async with self._cancellable():
                connection = await self._pool.connect(self._options.connect_seconds)
        self._connection = connection
        if self._is_cancelled:
            connection.stop(CancelledRunError())
        try:
            await self._pool.post(connection, path, body, self._headers, self._options.first_seconds)
        except BaseException as error:
            self._connection = None
            self._pool.cut(connection)  # after an error some servers close it without saying so
            self._was_sent = connection.is_sent
            if isinstance(error, TimeoutError):
                raise UnreachableError("The engine didn't begin to answer in time.") from error
            raise
        self._was_sent = True
        return connection

    def _leave(self, connection: Connection, *, is_read: bool = False) -> None:
        """Give the connection to the next request if its answer ends here, or ended already; else close it."""
        self._connection = None
        if is_read or connection.is_reusable:
            self._pool.finish(connection)
        else:
            self._pool.cut(connection)

    @asynccontextmanager
    async def _cancellable(self) -> AsyncIterator[None]:
        """Let `cancel` end what is awaited inside, with `CancelledRunError`."""
        try:
            async with asyncio.timeout(0 if self._is_cancelled else None) as self._waiting:
                yield
        except TimeoutError:
            raise CancelledRunError from None
        finally:
            self._waiting = None

    def _told(self, arrived: list[Arrival] | Finished) -> Iterator[Event]:
        """Yield the events that chunks mean: one Delta for those that arrived together, and what ends the request.

        Before the answer begins they mean none; raise `EngineError` for one of them that says why there is no answer.
        """
        if isinstance(arrived, Finished):
            yield arrived
            return
        before = self._counter.usage
        pieces = Pieces()
        failure, goes_on = self._take_all(arrived, pieces)
        usage = self._counter.usage
        is_new = usage != before
        if is_new or pieces:
            self._pool.places.served(self._ticket, usage)
        if not self.has_begun:
            if not (pieces or self._reason or usage.completion):  # some open a stream before they look at the request
                if failure is not None:
                    raise self._dialect.refusal(failure.error, failure.error_type)
                return
            yield self._begun()
        yield from pieces.deltas(usage, is_new=is_new)
        if failure is not None:
            yield self.end(FinishReason.ERROR, faults.FAILED)
        elif goes_on or (self._reason is None and self._counter.is_beyond):
            self._reason = self._reason or "length"  # it goes on beyond what it was asked for, and what is paid for
            yield self._ended()

    def _take_all(self, arrived: list[Arrival], pieces: Pieces) -> tuple[Chunk | None, bool]:
        """Take what arrived up to an error, which is returned, or to output for which there is no room (True)."""
        for arrival in arrived:
            if not isinstance(arrival, Texts) and arrival.error is not None:
                return arrival, False
            if not self._take(arrival, pieces):
                return None, True
        return None, False

    async def _next(self, connection: Connection) -> list[Arrival] | Finished:
        """Return the next chunks, or the request's end; raise `EngineError` for an end before the answer begins."""
        seconds = self._options.idle_seconds if self.has_begun else self._options.first_seconds
        until = asyncio.get_running_loop().time() + (USAGE_SECONDS if self._reason else seconds)
        try:
            while not self._events.is_ended:
                if self._is_cancelled:
                    return self.end(FinishReason.CANCELLED)
                if self._garbage is not None:
                    raise self._garbage
                if not (data := await connection.read(until)):
                    break
                arrived, self._garbage = self._events.events(data)
                if arrived:
                    return arrived
        except CancelledRunError:
            return self.end(FinishReason.CANCELLED)
        except (GarbageError, OSError) as error:  # TimeoutError is one
            return self._failed(error)
        if self._reason is not None:  # else the stream was cut, however properly it ended
            self._counter.complete()
        return self._ended()

    def _begun(self) -> Started:
        self.has_begun = True
        self._first_at = time.monotonic()
        return Started(self._counter.usage.cache_read)

    @property
    def _room(self) -> int:
        """How many more events with output belong to the answer: none behind its end, else what it was asked for and
        one, which shows that the server goes on.
        """
        return 0 if self._reason is not None else max(0, self.most_output + 1 - self._counter.events)

    def _take(self, arrival: Arrival, pieces: Pieces) -> bool:
        """Count what arrived, and add it to `pieces`; False where output goes on for which there is no room."""
        if isinstance(arrival, Texts):
            texts, room = arrival.texts, self._room
            if len(texts) > room:
                texts = [text for text in texts if text]
            taken = texts[:room]
            text = "".join(taken)
            self._counter.output(text, len(taken) - taken.count(""))
            pieces.add("text", text)
            return len(texts) <= room
        for choice in arrival.choices or ():
            piece = choice.delta if choice.text is None else Piece(content=choice.text)
            if piece is not None:
                text, thought = piece.content or "", piece.thought
                calls = [told for call in piece.tool_calls or () if (told := self._calls.take(call)) is not None]
                written = [call.arguments for call in piece.tool_calls or ()] + [call.name for call in calls]
                if output := text + thought + "".join(written):
                    if not self._room:
                        return False
                    self._counter.output(output)
                pieces.add("reasoning", thought)
                pieces.add("text", text, choice.logprobs if self._tells_tokens else None)
                pieces.call(calls)
            if choice.finish_reason:
                self._reason = choice.finish_reason
                self._stop = choice.matched_stop if choice.stop_reason is None else choice.stop_reason
        self._report(arrival)
        return True

    def _report(self, chunk: Chunk) -> None:
        """Take in what an event says of the usage, as few do; one with nothing else says all that there is to it."""
        if chunk.usage is not None or chunk.timings is not None:
            self._counter.report(self._dialect.report(chunk.usage, chunk.timings))
            if not chunk.choices:
                self._counter.complete()

    def _ended(self) -> Finished:
        """Return the end of a stream that ended by itself; without a reason it was cut."""
        if not self.has_begun:
            raise UnreachableError("The engine answered with nothing.")
        match self._reason:
            case None:
                return self.end(FinishReason.ERROR, faults.STOPPED)
            case "abort" | "error":
                return self.end(FinishReason.ERROR, faults.FAILED)
            case "length":
                is_full = self._counter.is_beyond or self.usage.completion >= self.most_output
                is_short = is_full and self.most_output < self._prepared.max_output
                return self.end(FinishReason.ALLOWANCE if is_short else FinishReason.LENGTH)
            case _:
                return self.end(FinishReason.STOP, stop=self._stop)

    def _failed(self, error: Exception) -> Finished:
        """Return the end of a stream that stalled, broke or made no sense; before the answer begins raise instead."""
        log.warning("request %s: the remote engine's stream failed: %r", self._prepared.request.id, error)
        if self._reason is not None:  # the answer is complete: only its usage is missing
            return self._ended()
        if not self.has_begun:
            raise UnreachableError("The engine failed before it began to answer.") from error
        if isinstance(error, TimeoutError):
            return self.end(FinishReason.ERROR, faults.SILENT)
        return self.end(FinishReason.ERROR, faults.UNREADABLE if isinstance(error, GarbageError) else faults.STOPPED)

    async def _read_vectors(self, connection: Connection, *, is_score: bool) -> list[bytes]:
        """Return the vectors, or scores alone, in the order of the inputs, as little-endian float32.

        Raise `UnreachableError` for what isn't that: the server may have run all the same.
        """
        try:
            body = await whole(connection, asyncio.get_running_loop().time() + self._options.first_seconds)
            answer: _Embeddings | _Scores
            if is_score:
                answer = msgspec.json.decode(body, type=_Scores)
            else:
                answer = msgspec.json.decode(body, type=_Embeddings)
        except OSError as error:  # TimeoutError is one
            raise UnreachableError("The engine didn't answer in time, or not to the end.") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnreachableError("The engine sent what can't be read.") from error
        items = [(item.index, [item.score] if isinstance(item, _ScoreItem) else item.embedding) for item in answer.data]
        vectors = [vector for _, vector in sorted(items, key=itemgetter(0))]
        if len(vectors) != len(self._prepared.request.inputs) or len(set(map(len, vectors))) != 1 or not vectors[0]:
            raise UnreachableError("The engine sent fewer or more vectors than there are inputs, or of unequal widths.")
        self._counter.report(self._dialect.report(answer.usage, None))
        self._counter.nothing_generated()
        self._counter.complete()
        return [_packed(vector) for vector in vectors]


def _packed(vector: list[float]) -> bytes:
    numbers = array.array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
