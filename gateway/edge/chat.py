"""``POST /v1/chat/completions``."""

from __future__ import annotations

from msgspec import UNSET

from gateway.edge.access import note_model, principal_of
from gateway.edge.answer import Output, answer, failure_of
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
)
from gateway.edge.sse import event
from gateway.edge.wire.chat import (
    AnswerMessage,
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    Choice,
    ChunkChoice,
    ChunkDelta,
)
from gateway.edge.wire.common import TASK_HEADER
from gateway.edge.wire.decode import decode
from gateway.edge.wire.errors import openai_error
from gateway.edge.wire.usage import chat_usage
from gateway.generation.events import Outcome
from gateway.generation.generation import Generation, start_generation
from inference.types import FinishReason

_DONE = b"data: [DONE]\n\n"


async def chat_completions(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one chat, whole or as a stream."""
    require_method(scope, "POST")
    principal = await principal_of(scope)
    request = decode(ChatRequest, await read_body(scope, receive, principal.tenant))
    note_model(scope, request.model)
    intent = request.intent(header_of(scope, TASK_HEADER))
    async with watching(scope, receive) as client:
        generation = await start_generation(runtime_of(scope), principal, intent, request_id_of(scope))
        told = ChatFormat(generation, with_usage=request.wants_usage)
        await answer(generation, told, client, send, stream=intent.stream)


class ChatFormat:
    """A generation in the format of Chat Completions: one message, in chunks or whole."""

    def __init__(self, generation: Generation, *, with_usage: bool) -> None:
        self._generation = generation
        self._with_usage = with_usage
        self._id = f"chatcmpl-{generation.id.hex}"
        self._before = self._after = b""

    def opening(self) -> bytes:
        """The chunk with the role."""
        # Chunks of text differ in nothing but the text, so they are encoded once. An unescaped quote can't be part of
        # any other value.
        self._before, _, self._after = self._choice(ChunkDelta(content="")).partition(b'"content":""')
        return self._choice(ChunkDelta(role="assistant", content=""))

    def delta(self, text: str) -> bytes:
        """One chunk of the message's text."""
        return b'%b"content":%b%b' % (self._before, encode(text), self._after)

    def closing(self, outcome: Outcome) -> bytes:
        """The finish reason, usage if asked for, and the end mark; or the error with the usage, without an end mark."""
        usage = chat_usage(outcome.usage, outcome.charge)
        failure = failure_of(outcome)
        if failure is not None:
            return event(encode({**openai_error(failure, self._generation.id), "usage": usage}))
        last = self._choice(ChunkDelta(), _finish_of(outcome), outcome.sluice_reason)
        return last + (self._chunk([], usage) if self._with_usage else b"") + _DONE

    def whole(self, output: Output, outcome: Outcome) -> ChatCompletion:
        """The completion."""
        reason = outcome.sluice_reason or UNSET
        return ChatCompletion(
            id=self._id,
            created=self._generation.created,
            model=self._generation.route.model,
            choices=[Choice(0, AnswerMessage(output.text), _finish_of(outcome), sluice_reason=reason)],
            usage=chat_usage(outcome.usage, outcome.charge),
        )

    def _choice(self, delta: ChunkDelta, finish: str | None = None, sluice_reason: str | None = None) -> bytes:
        choice = ChunkChoice(0, delta, finish, sluice_reason=sluice_reason or UNSET)
        return self._chunk([choice], None if self._with_usage else UNSET)

    def _chunk(self, choices: list[ChunkChoice], usage: object) -> bytes:
        chunk = ChatChunk(
            id=self._id,
            created=self._generation.created,
            model=self._generation.route.model,
            choices=choices,
            usage=usage,  # type: ignore[arg-type]
        )
        return event(encode(chunk))


def _finish_of(outcome: Outcome) -> str:
    return "stop" if outcome.reason is FinishReason.STOP else "length"
