"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from base.http import encode, event
from gateway.apis.messages.message_object import (
    AnsweredMessage,
    ContextManagement,
    MessageBlock,
    MessageEvent,
    MessageText,
    MessageThinking,
    MessageToolUse,
    StopReason,
    TokenCount,
)
from gateway.apis.messages.wire import CountTokensRequest, MessageRequest
from gateway.apis.shared.answer import QUESTION, answer_count, failure_of, generate
from gateway.apis.shared.quote import quoting
from gateway.durable.delivery import Outcome
from gateway.errors.refusal import anthropic_error
from gateway.generation.generation import Generation
from gateway.generation.intent import Intent
from gateway.generation.items import Change, Item, ItemKind, Narrator, What
from gateway.http.endpoint import Call, Work, endpoint
from gateway.wire.usage import message_usage
from inference.types import Delta, FinishReason, Vector

SIGNATURE = "sluice"  # of every thought: clients leave one without out of the next request
NO_OBJECT = "INVALID_JSON"  # the key of a call's input that is no JSON object

_EMPTY: dict[str, Any] = {}


def _event(kind: Any, **fields: Any) -> bytes:
    return event(encode(MessageEvent(type=kind, **fields)), kind)


_PING, _END = _event("ping"), _event("message_stop")


@endpoint(
    "POST",
    "/v1/messages",
    scope="messages",
    summary="Create a message",
    takes=MessageRequest,
    gives=AnsweredMessage,
    streams=MessageEvent,
    work=Work.GENERATES,
    example={"model": "auto", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64},
    error_body=anthropic_error,
)
async def messages(call: Call[MessageRequest]) -> None:
    """Answers a conversation as Anthropic's Messages API does; with `stream` in events. The key may be sent as
    `x-api-key`; errors have that API's shape.
    """
    await generate(call, await _intent(call), MessageFormat)


async def _intent(call: Call[Any]) -> Intent:
    request: MessageRequest | CountTokensRequest = call.request
    return request.intent(call.task_header, leaves_out_hosted=call.principal.leaves_out_hosted)


messages_quote = quoting(messages, _intent)


@endpoint(
    "POST",
    "/v1/messages/count_tokens",
    scope="messages",
    summary="Count a message's tokens",
    takes=CountTokensRequest,
    gives=TokenCount,
    work=Work.COUNTS,
    example={"model": "auto", "messages": [{"role": "user", "content": QUESTION}]},
    error_body=anthropic_error,
)
async def messages_count_tokens(call: Call[CountTokensRequest]) -> None:
    """Says how many tokens a prompt has where it would run now. Nothing runs and nothing is charged."""
    await answer_count(call, await _intent(call), TokenCount)


class MessageFormat:
    """A generation in the format of Messages: one message, whose blocks are the answer's items."""

    def __init__(self, generation: Generation, request: MessageRequest) -> None:
        self._generation = generation
        self._request = request
        self._narrator = Narrator()
        self._before = b""  # the event of a piece of text, up to its text

    def opening(self) -> bytes:
        """The event that begins the message, and a ping."""
        message = self._message([], message_usage(self._generation.prompt_usage, None))
        return _event("message_start", message=message) + _PING

    def delta(self, delta: Delta) -> bytes:
        """The events of a piece of the message: its text, what was thought before, or calls of tools."""
        if self._narrator.extend(delta):
            return b"%b%b}}\n\n" % (self._before, encode(delta.text)) if delta.text else b""
        return b"".join([self._told(change) for change in self._narrator.take(delta)])

    def closing(self, outcome: Outcome) -> bytes:
        """The stop reason, the usage and the end mark; or the error, and no end mark."""
        failure = failure_of(outcome)
        if failure is not None:
            return event(encode(anthropic_error(failure, self._generation.id)), "error")
        last = b"".join([self._told(change) for change in self._narrator.close()])
        last += self._block_ended(self._items[-1]) if self._items else b""
        reason, stop = self._stop(outcome)
        told = {"stop_reason": reason, "stop_sequence": stop}
        if outcome.sluice_reason:
            told["sluice_reason"] = outcome.sluice_reason
        usage = message_usage(outcome.usage, outcome.charge)
        return last + _event("message_delta", delta=told, usage=usage, **self._edits()) + _END

    def collect(self, event: Delta | Vector) -> None:
        """Take a piece of the answer."""
        if isinstance(event, Delta) and not self._narrator.extend(event):
            self._narrator.take(event)

    def whole(self, outcome: Outcome) -> AnsweredMessage:
        """The message."""
        message = self._message(
            [self._block(item, item.text) for item in self._items], message_usage(outcome.usage, outcome.charge)
        )
        message.stop_reason, message.stop_sequence = self._stop(outcome)
        message.sluice_reason = outcome.sluice_reason or UNSET
        return message

    @property
    def _items(self) -> list[Item]:
        return self._narrator.answers[0].items

    def _message(self, content: list[MessageBlock], usage: Any) -> AnsweredMessage:
        generation = self._generation
        return AnsweredMessage(
            id=f"msg_{generation.id.hex}", model=generation.route.model, content=content, usage=usage, **self._edits()
        )

    def _edits(self) -> dict[str, Any]:
        """The field that says which edits of the context were made, where the client asked for some."""
        return {} if self._request.context_management is None else {"context_management": ContextManagement()}

    def _block(self, item: Item, text: str) -> MessageBlock:
        """Return the block of an item that has `text` so far."""
        match item.kind:
            case ItemKind.MESSAGE:
                return MessageText(text)
            case ItemKind.REASONING:
                return MessageThinking(text if self._request.shows_thinking else "", SIGNATURE)
            case ItemKind.CALL:
                return MessageToolUse(item.call_id, item.name, _input(text))

    def _told(self, change: Change) -> bytes:
        item = change.item
        match change.what:
            case What.BEGAN:
                return self._block_begun(item)
            case What.GREW:
                return self._grown(item, change.text)
            case What.ENDED:
                return self._block_ended(item)

    def _block_begun(self, item: Item) -> bytes:
        if item.kind is ItemKind.MESSAGE:
            # Events of text differ in nothing but the text, so they are encoded once.
            self._before, _, _ = self._piece(item, type="text_delta", text="").rpartition(b'""')
        block = self._block(item, "")
        if isinstance(block, MessageThinking):
            block.signature = ""  # it comes at the end
        return _event("content_block_start", index=item.number, content_block=block)

    def _grown(self, item: Item, text: str) -> bytes:
        match item.kind:
            case ItemKind.MESSAGE:
                return self._piece(item, type="text_delta", text=text)
            case ItemKind.REASONING:
                return self._piece(item, type="thinking_delta", thinking=text) if self._request.shows_thinking else b""
            case ItemKind.CALL:
                return self._piece(item, type="input_json_delta", partial_json=text)

    def _block_ended(self, item: Item) -> bytes:
        signature = b""
        if item.kind is ItemKind.REASONING:
            signature = self._piece(item, type="signature_delta", signature=SIGNATURE)
        return signature + _event("content_block_stop", index=item.number)

    def _piece(self, item: Item, **delta: str) -> bytes:
        return _event("content_block_delta", index=item.number, delta=delta)

    def _stop(self, outcome: Outcome) -> tuple[StopReason, str | None]:
        """Return why the message ended, and the stop sequence that ended it."""
        if outcome.reason is not FinishReason.STOP:
            is_cut = outcome.sluice_reason or outcome.usage.completion >= self._request.max_tokens
            return ("max_tokens" if is_cut else "model_context_window_exceeded"), None
        if isinstance(outcome.stop, str):
            return "stop_sequence", outcome.stop
        return ("tool_use" if self._narrator.answers[0].calls else "end_turn"), None


def _input(written: str) -> dict[str, Any]:
    """Return the arguments of a call as an object; what is none stands in one, as it was written."""
    if not written:
        return _EMPTY
    try:
        return msgspec.json.decode(written, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {NO_OBJECT: written}
