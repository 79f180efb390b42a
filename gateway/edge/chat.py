"""``POST /v1/chat/completions``."""

from __future__ import annotations

from contextlib import aclosing

from msgspec import UNSET

from gateway.edge.access import principal_of
from gateway.edge.answer import answer_headers, credit_headers, failure_of, finish_of, opened
from gateway.edge.disconnect import watching
from gateway.edge.http import (
    Receive,
    Scope,
    Send,
    encode,
    header_of,
    read_body,
    request_id_of,
    require_method,
    runtime_of,
    send_json,
)
from gateway.edge.sse import EventStream, event
from gateway.edge.wire.chat import (
    AnswerMessage,
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    Choice,
    ChunkChoice,
    ChunkDelta,
)
from gateway.edge.wire.decode import decode
from gateway.edge.wire.errors import openai_error
from gateway.edge.wire.usage import chat_usage
from gateway.generation.events import Outcome
from gateway.generation.generation import Generation, start_generation
from inference.types import Delta

_DONE = b"data: [DONE]\n\n"


async def chat_completions(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one chat, whole or as a stream."""
    require_method(scope, "POST")
    principal = await principal_of(scope)
    request = decode(ChatRequest, await read_body(scope, receive, principal.tenant))
    intent = request.intent(header_of(scope, b"x-sluice-task"))
    generation = await start_generation(runtime_of(scope), principal, intent, request_id_of(scope))
    async with watching(receive, generation.client_left) as client:
        if request.stream:
            await _stream(generation, client, send, with_usage=request.wants_usage)
        else:
            await _answer(generation, client, send)


async def _answer(generation: Generation, client: watching, send: Send) -> None:
    texts: list[str] = []
    async with aclosing(generation.events()) as events:
        async for item in events:
            match item:
                case Delta(text=text):
                    texts.append(text)
                case Outcome():
                    outcome = item
    await client.stop()
    failure = failure_of(outcome)
    if failure is not None:
        raise failure
    answer = ChatCompletion(
        id=completion_id(generation),
        created=generation.created,
        model=generation.route.model,
        choices=[
            Choice(
                index=0,
                message=AnswerMessage("".join(texts)),
                finish_reason=finish_of(outcome),
                sluice_reason=outcome.sluice_reason or UNSET,
            )
        ],
        usage=chat_usage(outcome.usage, outcome.charge),
    )
    await send_json(send, 200, answer, {**answer_headers(generation), **credit_headers(outcome)})


async def _stream(generation: Generation, client: watching, send: Send, *, with_usage: bool) -> None:
    chunks = _Chunks(generation, with_usage=with_usage)
    async with (
        aclosing(await opened(generation)) as events,
        EventStream(send, answer_headers(generation)) as stream,
    ):
        await stream.write(chunks.choice(ChunkDelta(role="assistant", content="")))
        async for item in events:
            match item:
                case Delta(text=text) if text:
                    await stream.write(chunks.text(text))
                case Outcome():
                    await client.stop()
                    await stream.finish(chunks.end(item))


class _Chunks:
    """Writes one stream's chunks."""

    def __init__(self, generation: Generation, *, with_usage: bool) -> None:
        self._generation = generation
        self._with_usage = with_usage
        self._id = completion_id(generation)
        # Chunks of text differ in nothing but the text, so they are encoded once. An unescaped quote can't be part of
        # any other value.
        self._before, _, self._after = self.choice(ChunkDelta(content="")).partition(b'"content":""')

    def text(self, text: str) -> bytes:
        """One chunk of the message's text."""
        return b'%b"content":%b%b' % (self._before, encode(text), self._after)

    def choice(self, delta: ChunkDelta, finish: str | None = None, sluice_reason: str | None = None) -> bytes:
        choice = ChunkChoice(0, delta, finish, sluice_reason=sluice_reason or UNSET)
        return self._chunk([choice], None if self._with_usage else UNSET)

    def end(self, outcome: Outcome) -> bytes:
        """The last events: finish reason, usage if asked for, and the end mark; or the error, without an end mark."""
        usage = chat_usage(outcome.usage, outcome.charge)
        failure = failure_of(outcome)
        if failure is not None:
            return event(encode({**openai_error(failure, self._generation.id), "usage": usage}))
        last = self.choice(ChunkDelta(), finish_of(outcome), outcome.sluice_reason)
        return last + (self._chunk([], usage) if self._with_usage else b"") + _DONE

    def _chunk(self, choices: list[ChunkChoice], usage: object) -> bytes:
        return event(
            encode(
                ChatChunk(
                    id=self._id,
                    created=self._generation.created,
                    model=self._generation.route.model,
                    choices=choices,
                    usage=usage,  # type: ignore[arg-type]
                )
            )
        )


def completion_id(generation: Generation) -> str:
    """The request's id as Chat Completions shows it."""
    return f"chatcmpl-{generation.id.hex}"
