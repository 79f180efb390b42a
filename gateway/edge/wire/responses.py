"""Responses: its request, over HTTP and as a websocket's client event."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from gateway.edge.wire.common import (
    Anything,
    Metadata,
    ModelName,
    OutputTokens,
    Sampling,
    ShortText,
    StreamOptions,
    check_model,
    refuse_obfuscation,
    refuse_unless_neutral,
    task_of,
)
from gateway.edge.wire.decode import invalid, unsupported
from gateway.edge.wire.input_items import message_of
from gateway.edge.wire.limits import MAX_MESSAGES
from gateway.generation.intent import Intent
from inference.types import Kind, Message

EventId = Annotated[str, Meta(max_length=512)]  # as a client calls its event; errors about it say so

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "access_programs": ({},),
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "image": ({},),
    "include": ([], ["reasoning.encrypted_content"]),  # no answer here has reasoning items
    "max_tool_calls": (),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prompt": (),
    "prompt_cache_options": ({}, {"mode": "implicit"}),
    "prompt_cache_retention": ("in_memory",),
    "reasoning": ({}, {"effort": None}, {"effort": "none"}, {"effort": None, "summary": None}),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "text": (
        {},
        {"format": {"type": "text"}},
        {"verbosity": "medium"},
        {"format": {"type": "text"}, "verbosity": "medium"},
    ),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}


class ResponseRequest(Sampling, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/responses``. Nothing is stored, whether `store` is false or left out; `store: true` is refused."""

    model: ModelName
    input: str | Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: OutputTokens | None = None
    metadata: Metadata | None = None
    previous_response_id: Annotated[str, Meta(max_length=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: ShortText | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None  # a hint; the prefix cache needs none

    access_programs: Anything = UNSET
    background: Anything = UNSET
    context_management: Anything = UNSET
    conversation: Anything = UNSET
    image: Anything = UNSET
    include: Anything = UNSET
    max_tool_calls: Anything = UNSET
    moderation: Anything = UNSET
    parallel_tool_calls: Anything = UNSET
    prompt: Anything = UNSET
    prompt_cache_options: Anything = UNSET
    prompt_cache_retention: Anything = UNSET
    reasoning: Anything = UNSET
    service_tier: Anything = UNSET
    store: Anything = UNSET
    text: Anything = UNSET
    tool_choice: Anything = UNSET
    tools: Anything = UNSET
    top_logprobs: Anything = UNSET
    truncation: Anything = UNSET

    def turns(self) -> tuple[Message, ...]:
        """The messages of `input` alone."""
        if isinstance(self.input, str):
            return (Message("user", self.input),)
        return tuple(message_of(item, f"input[{index}]") for index, item in enumerate(self.input))

    def intent(
        self, turns: tuple[Message, ...], earlier: tuple[Message, ...] = (), task_header: str | None = None
    ) -> Intent:
        """The request with its `turns` after `earlier` ones; refuses what can't be honoured, naming the field.

        Instructions come first and count for this response only.
        """
        self.check()
        instructions = (Message("system", self.instructions),) if self.instructions else ()
        if len(earlier) + len(turns) > MAX_MESSAGES:
            raise invalid("input", f"The conversation has more than {MAX_MESSAGES} messages.")
        return Intent(
            endpoint="responses",
            kind=Kind.CHAT,
            model=self.model,
            messages=(*instructions, *earlier, *turns),
            sampling=self.sampling(self.max_output_tokens),
            task=task_of(self.metadata, task_header),
            end_user=self.user or self.safety_identifier,
            stream=self.is_streamed,
        )

    @property
    def is_streamed(self) -> bool:
        """Whether the client reads events as they come."""
        return bool(self.stream)

    def check(self) -> None:
        """Refuse what can't be honoured over any transport."""
        refuse_unless_neutral(self, _NEUTRAL)
        check_model(self.model)
        refuse_obfuscation(self.stream_options)
        if self.stream_options is not None and self.stream_options.include_usage is not None:
            raise unsupported("stream_options.include_usage", "a response's last event always has its usage")


class ResponseCreate(ResponseRequest, kw_only=True, forbid_unknown_fields=True):
    """The websocket's ``response.create``: the same fields, and the stream it is for. It always streams."""

    type: str
    event_id: EventId | None = None
    stream_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    generate: Anything = UNSET

    @property
    def is_streamed(self) -> bool:
        """A socket's client always does."""
        return True

    def check(self) -> None:
        """Refuse what can't be honoured, a socket's own fields too."""
        super().check()
        refuse_unless_neutral(self, {"generate": (True,), "stream": (True,)})


class ResponseCancel(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The websocket's ``response.cancel``: stops the response of that id, or whatever runs in that stream."""

    type: str
    response_id: Annotated[str, Meta(max_length=128)] | None = None
    stream_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    event_id: EventId | None = None


class ClientEvent(msgspec.Struct):
    """What any client event says of itself."""

    type: Annotated[str, Meta(max_length=128)]
    stream_id: Annotated[str, Meta(max_length=128)] | None = None
    event_id: EventId | None = None
