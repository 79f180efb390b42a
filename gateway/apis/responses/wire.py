"""Responses: its request, over HTTP and as a websocket's client event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from gateway.apis.responses.input_items import ITEMS, messages_of, unfinished_of
from gateway.errors.refusal import Refusal
from gateway.generation.intent import Intent
from gateway.wire.common import (
    CacheKey,
    CacheOptions,
    CacheRetention,
    Effort,
    Metadata,
    ModelName,
    MostLogprobs,
    OutputTokens,
    Sampling,
    ShortText,
    StreamOptions,
    Verbosity,
    any_of,
    check_model,
    continuing,
    task_of,
)
from gateway.wire.decode import MAX_MESSAGES, invalid, unsupported
from gateway.wire.demands import Anything, Fields, Only, Tried, Unread, Wish
from gateway.wire.guidance import ResponseFormats, guidance_of
from gateway.wire.parts import Reading
from gateway.wire.tools import ResponseTool, ResponseToolChoice, ToolList, tools_of
from inference.messages import Message
from inference.types import Kind

_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"  # thought is never encrypted here
_INCLUDED = (_LOGPROBS, _ENCRYPTED)

Item = Annotated[msgspec.Raw, Meta(extra_json_schema=any_of(*ITEMS))]  # read one by one, by its `type`
ResponseId = Annotated[str, Meta(max_length=128)]
EventId = Annotated[str, Meta(max_length=512)]  # as a client calls its event; errors about it say so


def check_included(names: Sequence[str], fields: Fields) -> None:
    """Refuse what can't be included in a response."""
    for index, name in enumerate(names):
        if name == _ENCRYPTED:
            fields.wish(f"include[].{name}")
        elif name not in _INCLUDED:
            raise unsupported(f"include[{index}]", f"only {' and '.join(_INCLUDED)} are known")


class ResponseStreamOptions(StreamOptions, kw_only=True, forbid_unknown_fields=True):
    """Options of a stream; it carries nothing but its events."""

    include_usage: Annotated[bool | None, Only(why="a response's last event always has its usage")] = None
    continuous_usage_stats: Annotated[bool | None, Only(False)] = None


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How the answer is written: as any text, or as JSON."""

    format: ResponseFormats | None = None
    verbosity: Verbosity = None


class ReasoningOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How long the model reasons."""

    effort: Annotated[Effort | None, Tried()] = None
    summary: Annotated[Anything, Wish()] = UNSET  # thought is told as it is
    generate_summary: Annotated[Anything, Wish()] = UNSET


class ResponseRequest(Sampling, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/responses``. Where `store` is left out, the tenant's setting decides."""

    model: ModelName
    input: str | Annotated[list[Item], Meta(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: OutputTokens | None = None
    metadata: Metadata | None = None
    previous_response_id: ResponseId | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    user: ShortText | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: CacheKey = None
    prompt_cache_retention: CacheRetention = None
    prompt_cache_options: CacheOptions = UNSET
    client_metadata: Annotated[dict[str, Any] | None, Unread()] = None  # what Codex notes for its own server
    include: Annotated[list[ShortText], Meta(max_length=16)] | None = None
    top_logprobs: MostLogprobs | None = None
    tools: ToolList | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    background: bool | None = None

    access_programs: Annotated[Anything, Only({})] = UNSET
    context_management: Annotated[Anything, Only([])] = UNSET
    conversation: Annotated[Anything, Only()] = UNSET
    image: Annotated[Anything, Only({})] = UNSET
    max_tool_calls: Annotated[Anything, Only()] = UNSET
    moderation: Annotated[Anything, Only()] = UNSET
    prompt: Annotated[Anything, Only()] = UNSET
    truncation: Annotated[Anything, Only("disabled", why="no part of a conversation is left out unseen")] = UNSET

    def intent(
        self,
        earlier: tuple[Message, ...] = (),
        *,
        earlier_model: str = "",
        task_header: str | None = None,
        leaves_out_hosted: bool = False,
    ) -> Intent:
        """The request, its messages after `earlier` ones, which `earlier_model` answered; refuses demands that can't
        be held, naming the field.

        Instructions come first and count for this response only.
        """
        reading = Reading(leaves_out_hosted=leaves_out_hosted)
        reading.check(self)
        check_model(self.model)
        check_included(self.include or (), reading)
        turns = self._turns(reading)
        reading.note_earlier(earlier)
        instructions = (Message("system", (self.instructions,)),) if self.instructions else ()
        if len(earlier) + len(turns) > MAX_MESSAGES:
            raise invalid("input", f"The conversation has more than {MAX_MESSAGES} messages.")
        intent = Intent(
            endpoint="responses",
            kind=Kind.CHAT,
            model=self.model,
            messages=(*instructions, *earlier, *turns),
            tools=tools_of(self.tools, ResponseTool, self.tool_choice, reading, parallel=self.parallel_tool_calls),
            images=reading.images,
            image_at=reading.image_at,
            not_enforced=reading.not_enforced,
            sampling=self.sampling(
                self.max_output_tokens,
                guidance_of(self.text_format, "text.format", self.structured_outputs),
                logprobs=self._logprobs(),
                **self.thinking(None if self.reasoning is None else self.reasoning.effort, "reasoning.effort"),
            ),
            task=task_of(self.metadata, task_header),
            earlier_model=earlier_model,
            end_user=self.user or self.safety_identifier,
            priority=self.priority or 0,
            tier=self.tier,
            stream=self.is_streamed,
        )
        if isinstance(self.input, str) or not (begun := unfinished_of(self.input)):
            return intent
        try:
            return continuing(intent, begun)
        except Refusal:  # a status alone asks for it, which the client may just have got from us: a wish
            return msgspec.structs.replace(intent, not_enforced=(*intent.not_enforced, begun))

    @property
    def text_format(self) -> ResponseFormats | None:
        """The format of the answer's text, None where the client doesn't say."""
        return None if self.text is None else self.text.format

    def _logprobs(self) -> int | None:
        if self.top_logprobs or _LOGPROBS in (self.include or ()):
            return self.top_logprobs or 0
        return None

    def without_instructions(self, intent: Intent) -> tuple[Message, ...]:
        """The messages of this request's `intent` that the next response goes on from: all but the instructions."""
        return intent.messages[1:] if self.instructions else intent.messages

    def _turns(self, reading: Reading) -> tuple[Message, ...]:
        """The messages of `input` alone."""
        if isinstance(self.input, str):
            return (Message("user", (self.input,)),)
        return messages_of(self.input, reading)

    @property
    def is_streamed(self) -> bool:
        """Whether the client reads events as they come."""
        return bool(self.stream)


class InputTokensRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/responses/input_tokens``: what of a response's request counts as its input."""

    model: ModelName = "auto"
    input: str | Annotated[list[Item], Meta(max_length=MAX_MESSAGES)] | None = None
    instructions: str | None = None
    previous_response_id: ResponseId | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: ToolList | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    conversation: Annotated[Anything, Only()] = UNSET
    personality: Annotated[Anything, Only()] = UNSET
    truncation: Annotated[Anything, Only("disabled")] = UNSET

    def response(self) -> ResponseRequest:
        """The request whose input it is; a 400 Refusal for one that has none."""
        Fields().check(self)
        if not (self.input or self.instructions or self.previous_response_id):
            raise Refusal(400, "missing_required_parameter", "'input' is required.", param="input")
        return ResponseRequest(
            model=self.model,
            input=self.input or [],
            instructions=self.instructions,
            previous_response_id=self.previous_response_id,
            text=self.text,
            reasoning=self.reasoning,
            tools=self.tools,
            tool_choice=self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls,
        )


class ResponseCreate(ResponseRequest, kw_only=True, forbid_unknown_fields=True):
    """The websocket's ``response.create``: the same fields, and the stream it is for. It always streams."""

    type: str
    event_id: EventId | None = None
    stream_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    stream: Annotated[bool | None, Only(True)] = None
    resumable: bool | None = None  # it outlives the socket for the plan's time, and another may go on with it
    generate: bool | None = None  # false: only what the next response may go on from
    background: Annotated[bool | None, Only(False, why="over a websocket")] = None

    @property
    def is_streamed(self) -> bool:
        """A socket's client always does."""
        return True


class ResponseResume(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The websocket's ``response.resume``: sends the events of a response that was made `resumable`, those behind
    number `starting_after` or all, and those to come.
    """

    type: str
    response_id: ResponseId
    starting_after: Annotated[int, Meta(ge=0)] | None = None
    metadata: Metadata | None = None
    stream_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    event_id: EventId | None = None


class ResponseCancel(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The websocket's ``response.cancel``: stops the response of that id, or whatever runs in that stream."""

    type: str
    response_id: ResponseId | None = None
    stream_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    event_id: EventId | None = None


class ClientEvent(msgspec.Struct):
    """The fields that every client event has."""

    type: Annotated[str, Meta(max_length=128)]
    stream_id: Annotated[str, Meta(max_length=128)] | None = None
    event_id: EventId | None = None
