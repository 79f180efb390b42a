"""``POST /v1/chat/completions``."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from base.http import encode, event
from gateway.apis.chat.wire import (
    AnswerMessage,
    CalledFunction,
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    Choice,
    ChunkChoice,
    ChunkDelta,
    ChunkFunction,
    ChunkToolCall,
    MessageToolCall,
)
from gateway.apis.shared.answer import QUESTION, failure_of, generate
from gateway.apis.shared.quote import quoting
from gateway.durable.delivery import Outcome
from gateway.errors.refusal import openai_error
from gateway.generation.generation import Generation
from gateway.generation.intent import Intent
from gateway.generation.items import Answer, Change, ItemKind, Narrator, What
from gateway.http.endpoint import Call, Work, endpoint
from gateway.wire.logprobs import ChatLogprobs, prompt_logprobs, token_logprobs
from gateway.wire.usage import ChatUsage, chat_usage
from inference.types import Delta, FinishReason, Vector

_DONE = b"data: [DONE]\n\n"


@endpoint(
    "POST",
    "/v1/chat/completions",
    scope="chat",
    summary="Create a chat completion",
    takes=ChatRequest,
    gives=ChatCompletion,
    streams=ChatChunk,
    work=Work.GENERATES,
    example={"model": "auto", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64},
)
async def chat_completions(call: Call[ChatRequest]) -> None:
    """Answers a conversation; with `stream` in chunks that end with `data: [DONE]`."""
    await generate(call, await _intent(call), ChatFormat)


async def _intent(call: Call[ChatRequest]) -> Intent:
    return call.request.intent(call.task_header, leaves_out_hosted=call.principal.leaves_out_hosted)


chat_completions_quote = quoting(chat_completions, _intent)


class ChatFormat:
    """A generation in the format of Chat Completions: a message of each answer, in chunks or whole."""

    def __init__(self, generation: Generation, request: ChatRequest) -> None:
        self._generation = generation
        self._with_usage = request.wants_usage
        self._with_usage_so_far = request.wants_usage_so_far
        self._usage: ChatUsage | UnsetType | None = None if self._with_usage else UNSET  # of the chunks before the last
        self._with_reasoning = request.include_reasoning is not False
        self._id = f"chatcmpl-{generation.id.hex}"
        self._sampling = generation.intent.sampling
        self._narrator = Narrator(self._sampling.n, in_turn=False)
        self._before = self._after = b""

    def opening(self) -> bytes:
        """The chunk with the role, for each answer, which may have no content but calls."""
        # Chunks of text differ in nothing but the text, so they are encoded once. An unescaped quote can't be part of
        # any other value.
        self._before, _, self._after = self._choice(0, ChunkDelta(content="")).partition(b'"content":""')
        answers = self._narrator.answers
        return b"".join(self._choice(answer.index, ChunkDelta(role="assistant")) for answer in answers)

    def delta(self, delta: Delta) -> bytes:
        """The chunks of a piece of a message: its text, what was thought before, or calls of functions."""
        if self._with_usage_so_far:
            self._usage = chat_usage(delta.usage, self._generation.charge_so_far(delta.usage))
        if self._narrator.extend(delta):
            return self._text(delta.text) if delta.text else b""
        return b"".join([self._told(change) for change in self._narrator.take(delta)])

    def closing(self, outcome: Outcome) -> bytes:
        """The finish reasons, usage if asked for, and the end mark; or the error with the usage and no end mark."""
        usage = chat_usage(outcome.usage, outcome.charge)
        failure = failure_of(outcome)
        if failure is not None:
            return event(encode({**openai_error(failure, self._generation.id), "usage": usage}))
        if self._with_usage_so_far:
            self._usage = usage
        last = b"".join(
            self._choice(answer.index, ChunkDelta(), _finish_of(answer, outcome), outcome.sluice_reason)
            for answer in self._narrator.answers
        )
        return last + (self._chunk([], usage) if self._with_usage else b"") + _DONE

    def collect(self, event: Delta | Vector) -> None:
        """Take a piece of the answer."""
        if isinstance(event, Delta) and not self._narrator.extend(event):
            self._narrator.take(event)

    def whole(self, outcome: Outcome) -> ChatCompletion:
        """The completion."""
        return ChatCompletion(
            id=self._id,
            created=self._generation.created,
            model=self._generation.route.model,
            service_tier=self._generation.intent.tier,
            choices=[self._whole_choice(answer, outcome) for answer in self._narrator.answers],
            usage=chat_usage(outcome.usage, outcome.charge),
            prompt_logprobs=prompt_logprobs(self._sampling, self._narrator.answers[0].prompt_logprobs),
        )

    def _whole_choice(self, answer: Answer, outcome: Outcome) -> Choice:
        calls = [MessageToolCall(call.call_id, CalledFunction(call.name, call.text)) for call in answer.calls]
        text, thought = answer.text, answer.reasoning if self._with_reasoning else ""
        message = AnswerMessage(
            text if text or not calls else None, reasoning_content=thought or UNSET, tool_calls=calls or UNSET
        )
        return Choice(
            answer.index,
            message,
            _finish_of(answer, outcome),
            logprobs=ChatLogprobs(token_logprobs(answer.logprobs)) if self._sampling.logprobs is not None else None,
            sluice_reason=outcome.sluice_reason or UNSET,
        )

    def _text(self, text: str) -> bytes:
        if self._with_usage_so_far:
            return self._choice(0, ChunkDelta(content=text))
        return b'%b"content":%b%b' % (self._before, encode(text), self._after)

    def _told(self, change: Change) -> bytes:
        item = change.item
        if item.kind is ItemKind.MESSAGE:
            if change.what is not What.GREW:
                return b""
            if not change.logprobs and not item.answer:
                return self._text(change.text)
            logprobs = ChatLogprobs(token_logprobs(change.logprobs)) if change.logprobs else None
            return self._choice(item.answer, ChunkDelta(content=change.text), logprobs=logprobs)
        if item.kind is ItemKind.REASONING:
            if change.what is not What.GREW or not self._with_reasoning:
                return b""
            return self._choice(item.answer, ChunkDelta(reasoning_content=change.text))
        return self._told_call(change)

    def _told_call(self, change: Change) -> bytes:
        item = change.item
        match change.what:
            case What.BEGAN:
                call = ChunkToolCall(item.place, item.call_id, "function", ChunkFunction(item.name, ""))
            case _:
                call = ChunkToolCall(item.place, function=ChunkFunction(arguments=change.text))
        return self._choice(item.answer, ChunkDelta(tool_calls=[call]))

    def _choice(
        self,
        index: int,
        delta: ChunkDelta,
        finish: str | None = None,
        sluice_reason: str | None = None,
        logprobs: ChatLogprobs | None = None,
    ) -> bytes:
        choice = ChunkChoice(index, delta, finish, logprobs, sluice_reason=sluice_reason or UNSET)
        return self._chunk([choice], self._usage)

    def _chunk(self, choices: list[ChunkChoice], usage: ChatUsage | UnsetType | None) -> bytes:
        chunk = ChatChunk(
            id=self._id,
            created=self._generation.created,
            model=self._generation.route.model,
            service_tier=self._generation.intent.tier,
            choices=choices,
            usage=usage,
        )
        return event(encode(chunk))


def _finish_of(answer: Answer, outcome: Outcome) -> str:
    if (answer.ended or outcome.reason) is not FinishReason.STOP:
        return "length"
    return "tool_calls" if answer.calls else "stop"
