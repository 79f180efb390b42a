"""The answers of Anthropic's Messages API: a message, and the events of a stream."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.wire.common import any_of
from gateway.wire.usage import MessageUsage

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class MessageText(msgspec.Struct):
    """The model's text."""

    text: str
    type: Literal["text"] = "text"


class MessageThinking(msgspec.Struct):
    """The model's thought. The `signature` is the same for all: nothing is proved by giving one back."""

    thinking: str
    signature: str
    type: Literal["thinking"] = "thinking"


class MessageToolUse(msgspec.Struct):
    """The model's call of a tool."""

    id: str
    name: str
    input: dict[str, Any]
    type: Literal["tool_use"] = "tool_use"


MessageBlock = MessageText | MessageThinking | MessageToolUse
# Described, but never decoded: its structs have their `type` where their readers expect it, at the end.
_BLOCKS = any_of(MessageText, MessageThinking, MessageToolUse)
MessageBlocks = Annotated[list[Any], Meta(extra_json_schema={"items": _BLOCKS})]


class ContextManagement(msgspec.Struct):
    """Edits of the context that were applied: none."""

    applied_edits: list[Any] = []


class AnsweredMessage(msgspec.Struct, kw_only=True):
    """The model's message. `sluice_reason` says more where `stop_reason` can't."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: MessageBlocks
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    context_management: ContextManagement | UnsetType = UNSET
    sluice_reason: str | UnsetType = UNSET


class MessageEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One event of a stream: what a block or the message begins with, grows by and ends with."""

    type: Literal[
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    message: AnsweredMessage | None = None
    index: int | None = None
    content_block: Annotated[Any, Meta(extra_json_schema=_BLOCKS)] = None
    delta: dict[str, Any] | None = None
    usage: MessageUsage | None = None
    context_management: ContextManagement | None = None


class TokenCount(msgspec.Struct):
    """How many tokens a prompt has."""

    input_tokens: int
