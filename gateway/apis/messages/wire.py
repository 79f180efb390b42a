"""Anthropic's Messages API: its requests. Every field that asks for less than it could is taken; `message_object` has
the answers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from gateway.apis.messages.blocks import CacheControl, TextBlock, TurnMessage, messages_of, system_message
from gateway.apis.messages.tools import MessageToolChoice, MessageTools, tools_of
from gateway.generation.intent import Intent
from gateway.wire.common import (
    EFFORTS,
    TASK_FIELD,
    Fraction,
    ModelName,
    OutputTokens,
    Sampling,
    ShortText,
    StopText,
    ThinkingTokens,
    check_model,
    continuing,
    task_of,
)
from gateway.wire.decode import MAX_MESSAGES, MAX_PARTS, MAX_TOKEN_ID, invalid
from gateway.wire.demands import Anything, Only, Tried, Wish
from gateway.wire.guidance import JSONSchema
from gateway.wire.parts import Reading
from inference.types import Asked, Guidance, GuidanceKind, Kind, SamplingParams

Display = Literal["summarized", "omitted"]
StopSequences = Annotated[list[StopText], Meta(max_length=16)]
MessageEffort = Literal["low", "medium", "high", "xhigh", "max"]
MessageMetadata = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=64)], ShortText | None], Meta(max_length=16)
]


class ThinkingEnabled(msgspec.Struct, tag_field="type", tag="enabled", forbid_unknown_fields=True):
    """The model may think, for so many tokens; one that doesn't think answers without."""

    budget_tokens: ThinkingTokens
    display: Display | None = None


class ThinkingAdaptive(msgspec.Struct, tag_field="type", tag="adaptive", forbid_unknown_fields=True):
    """The model may think as it likes, or as long as `output_config.effort` means."""

    display: Display | None = None


class ThinkingDisabled(msgspec.Struct, tag_field="type", tag="disabled", forbid_unknown_fields=True):
    """The model doesn't think, as where nothing is said."""


class ThinkingBetweenTools(msgspec.Struct, tag_field="type", tag="between_tools", forbid_unknown_fields=True):
    """The model doesn't think; what it says between calls is text."""


Thinking = ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | ThinkingBetweenTools


class JSONOutputFormat(msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """The answer is JSON by a schema."""

    schema: JSONSchema


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the answer."""

    effort: Annotated[MessageEffort | None, Tried()] = None
    format: JSONOutputFormat | None = None
    task_budget: Annotated[Anything, Wish()] = UNSET


class CountTokensRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/messages/count_tokens``: what stands in the prompt of ``POST /v1/messages``."""

    model: ModelName
    messages: Annotated[list[TurnMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | Annotated[list[TextBlock], Meta(max_length=MAX_PARTS)] | None = None
    tools: MessageTools | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Annotated[Thinking | None, Tried()] = None
    output_config: OutputConfig | None = None
    output_format: JSONOutputFormat | None = None  # as `output_config.format` was called
    cache_control: CacheControl = None
    context_management: Annotated[dict[str, Any] | None, Wish()] = None  # nothing is edited, and the answer says so
    diagnostics: Annotated[dict[str, Any] | None, Wish()] = None  # there are none
    fallbacks: Annotated[str | list[dict[str, Any]] | None, Wish()] = None  # for models that decline: none does
    # SDKs send the whole conversation upon that code.
    thread: Annotated[
        Anything, Only(instead="send the whole conversation in 'messages'", code="thread_unsupported_request")
    ] = UNSET
    billing_policy: Annotated[Anything, Only({"type": "billing_policy", "bill_to": "self"})] = UNSET
    compaction: Annotated[Anything, Only()] = UNSET
    speed: Annotated[Anything, Wish("standard")] = UNSET
    container: Annotated[Anything, Only(why="no code runs here")] = UNSET
    inference_geo: Annotated[Anything, Only("global")] = UNSET
    mcp_servers: Annotated[Anything, Only([], why="no MCP servers are called from here")] = UNSET

    def intent(self, task_header: str | None = None, *, leaves_out_hosted: bool = False) -> Intent:
        """The request after all its checks; refuses demands that can't be held, naming the field."""
        return self._intent(task_of(None, task_header), Reading(leaves_out_hosted=leaves_out_hosted))

    def _intent(self, task: str | None, reading: Reading, **more: Any) -> Intent:
        reading.check(self)
        if self.output_config is not None and self.output_config.effort and not self._has_effort:
            reading.wish("output_config.effort")
        check_model(self.model)
        system = (system_message(self.system, reading, "system"),) if self.system else ()
        intent = Intent(
            endpoint="messages",
            kind=Kind.CHAT,
            model=self.model,
            messages=(*system, *messages_of(self.messages, reading)),
            tools=tools_of(self.tools, self.tool_choice, reading),
            images=reading.images,
            image_at=reading.image_at,
            not_enforced=reading.not_enforced,
            task=task,
            **{"sampling": self._sampling(None, Sampling()), **more},
        )
        is_begun = self.messages[-1].__struct_config__.tag == "assistant"
        return continuing(intent, f"messages[{len(self.messages) - 1}]") if is_begun else intent

    def _sampling(self, max_tokens: int | None, sampling: Sampling) -> SamplingParams:
        """Return the engine's sampling of these fields and those of `sampling`."""
        return sampling.sampling(
            max_tokens,
            self._guidance(),
            thinking_asked=Asked.NOT if self.thinking is None else Asked.WISH,
            thinking_param="thinking",
            **self._thinking(),
        )

    @property
    def _has_effort(self) -> bool:
        """Whether how long the model thinks is left to an effort."""
        return isinstance(self.thinking, ThinkingAdaptive)

    def _thinking(self) -> dict[str, Any]:
        if isinstance(self.thinking, ThinkingEnabled):
            return {"thinking_tokens": self.thinking.budget_tokens}
        if not self._has_effort:
            return {"thinking_tokens": 0}
        effort = None if self.output_config is None else self.output_config.effort
        return {"thinking_tokens": EFFORTS["xhigh" if effort == "max" else effort], "effort": effort or ""}

    def _guidance(self) -> Guidance | None:
        wanted, at = self.output_format, "output_format"
        if self.output_config is not None and self.output_config.format is not None:
            if wanted is not None:
                raise invalid(at, f"'{at}' and 'output_config.format' can't be given together.")
            wanted, at = self.output_config.format, "output_config.format"
        if wanted is None:
            return None
        source = msgspec.json.encode(wanted.schema).decode()
        return Guidance(GuidanceKind.JSON_SCHEMA, source, param=at, schema_at=f"{at}.schema")


class MessageRequest(CountTokensRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/messages``."""

    max_tokens: OutputTokens
    stream: bool | None = None
    stop_sequences: StopSequences | None = None
    temperature: Fraction | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)] | None = None
    metadata: MessageMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    @property
    def shows_thinking(self) -> bool:
        """Whether the answer has the texts of what the model thought."""
        return not isinstance(self.thinking, ThinkingEnabled | ThinkingAdaptive) or self.thinking.display != "omitted"

    def intent(self, task_header: str | None = None, *, leaves_out_hosted: bool = False) -> Intent:
        """The request after all its checks; refuses demands that can't be held, naming the field."""
        sampling = Sampling(
            temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, stop=self.stop_sequences or None
        )
        metadata = self.metadata or {}
        task = metadata.get(TASK_FIELD)
        return self._intent(
            task_of({TASK_FIELD: task} if task else None, task_header),
            Reading(leaves_out_hosted=leaves_out_hosted),
            sampling=self._sampling(self.max_tokens, sampling),
            end_user=metadata.get("user_id"),
            stream=bool(self.stream),
        )
