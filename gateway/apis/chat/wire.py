"""Chat Completions: its request, its answer, its chunks."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.errors.refusal import Refusal
from gateway.generation.intent import Intent, Tier
from gateway.wire.common import (
    CacheKey,
    CacheOptions,
    CacheRetention,
    ChoiceSampling,
    Effort,
    Metadata,
    ModelName,
    MostLogprobs,
    OutputTokens,
    ShortText,
    StreamOptions,
    TemplateValues,
    Verbosity,
    check_model,
    continuing,
    is_continued,
    task_of,
    template_values,
    thinking_in_template,
)
from gateway.wire.decode import MAX_MESSAGES, MAX_PARTS, invalid, unsupported
from gateway.wire.demands import Anything, Only, Tried, Unread, Wish
from gateway.wire.guidance import ChatFormats, guidance_of
from gateway.wire.logprobs import ChatLogprobs, PromptLogprobs
from gateway.wire.parts import AnswerContent, CacheHint, CallId, ChatContent, FunctionName, Given, Reading
from gateway.wire.tools import HOSTED, ChatTool, ChatToolChoice, ToolList, tools_of
from gateway.wire.usage import ChatUsage
from inference.messages import Message, Reasoning, ToolCall, ToolResult
from inference.types import Kind


class _Turn(msgspec.Struct, tag_field="role", kw_only=True, forbid_unknown_fields=True):
    content: ChatContent | None = None
    name: Annotated[ShortText | None, Wish()] = None  # of who speaks; no chat template here takes it
    cache_control: CacheHint = UNSET

    engine_role: ClassVar[str] = ""

    def message(self, reading: Reading, at: str) -> Message:
        """The turn, which stands in the field `at`, as a message."""
        reading.check(self, f"{at}.")
        return Message(self.engine_role, reading.content(_required(self.content, at), f"{at}.content"))


class SystemTurn(_Turn, tag="system"):
    """Instructions."""

    engine_role: ClassVar[str] = "system"


class DeveloperTurn(_Turn, tag="developer"):
    """Instructions, as newer clients call them."""

    engine_role: ClassVar[str] = "system"


class UserTurn(_Turn, tag="user"):
    """A person's message."""

    engine_role: ClassVar[str] = "user"

    def message(self, reading: Reading, at: str) -> Message:
        reading.check(self, f"{at}.")
        return Message("user", reading.content(_required(self.content, at), f"{at}.content", sees=True))


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True):
    """The called function and its arguments: JSON as the model wrote it."""

    name: FunctionName
    arguments: str


class GivenFunction(CalledFunction, forbid_unknown_fields=True):
    """The same, given back by an SDK with what that made of the arguments."""

    parsed_arguments: Given = UNSET


class FunctionToolCall(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    """A call of a function."""

    id: CallId
    function: GivenFunction
    index: int | None = None  # in a stream, which SDKs give back with the rest


class CustomToolCall(msgspec.Struct, tag_field="type", tag="custom"):
    """Refused."""


class AssistantTurn(msgspec.Struct, tag_field="role", tag="assistant", kw_only=True, forbid_unknown_fields=True):
    """The model's message, perhaps an SDK's whole message given back."""

    content: AnswerContent | None = None
    name: Annotated[ShortText | None, Wish()] = None  # as others' turns have it
    cache_control: CacheHint = UNSET
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same, as some servers call it
    tool_calls: Annotated[list[FunctionToolCall | CustomToolCall], Meta(max_length=MAX_PARTS)] | None = None
    parsed: Given = UNSET  # what an SDK made of the content
    provider_specific_fields: Given = UNSET  # what another noted of the answer
    annotations: Annotated[Anything, Only([])] = UNSET
    audio: Annotated[Anything, Only()] = UNSET
    function_call: Annotated[Anything, Only()] = UNSET

    def message(self, reading: Reading, at: str) -> Message:
        """The turn, which stands in the field `at`, as a message."""
        reading.check(self, f"{at}.")
        content = self.refusal if self.content is None else self.content
        if not (self.tool_calls or self.reasoning_content or self.reasoning):
            return Message("assistant", reading.content(_required(content, at), f"{at}.content"))
        thought = self.reasoning_content or self.reasoning
        return Message(
            "assistant",
            (
                *((Reasoning(thought),) if thought else ()),
                *(reading.content(content, f"{at}.content") if content else ()),
                *(_call(call, f"{at}.tool_calls[{index}]") for index, call in enumerate(self.tool_calls or ())),
            ),
        )


class ToolTurn(msgspec.Struct, tag_field="role", tag="tool", forbid_unknown_fields=True):
    """A tool's result."""

    content: ChatContent
    tool_call_id: CallId
    name: Annotated[ShortText | None, Unread()] = None  # of the function, which its call says too
    cache_control: CacheHint = UNSET

    def message(self, reading: Reading, at: str) -> Message:
        """The turn, which stands in the field `at`, as a message."""
        reading.check(self, f"{at}.")
        content = reading.content(self.content, f"{at}.content", sees=True)
        return Message("tool", (ToolResult(self.tool_call_id, content),))


class FunctionTurn(msgspec.Struct, tag_field="role", tag="function"):
    """Refused."""

    def message(self, reading: Reading, at: str) -> Message:
        """Refuse the turn."""
        raise unsupported(f"{at}.role", "send a message of the role 'tool'")


Turn = SystemTurn | DeveloperTurn | UserTurn | AssistantTurn | ToolTurn | FunctionTurn


def _required(content: ChatContent | AnswerContent | None, at: str) -> ChatContent | AnswerContent:
    if content is None:
        raise Refusal(400, "missing_required_parameter", f"'{at}.content' is required.", param=f"{at}.content")
    return content


def _call(call: FunctionToolCall | CustomToolCall, at: str) -> ToolCall:
    if isinstance(call, CustomToolCall):
        raise unsupported(f"{at}.type", "only functions are called")
    return ToolCall(call.id, call.function.name, call.function.arguments)


class ChatRequest(ChoiceSampling, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/chat/completions``."""

    model: ModelName
    messages: Annotated[list[Turn], Meta(min_length=1, max_length=MAX_MESSAGES)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: OutputTokens | None = None
    max_completion_tokens: OutputTokens | None = None
    metadata: Metadata | None = None
    user: ShortText | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: CacheKey = None
    prompt_cache_retention: CacheRetention = None
    prompt_cache_options: CacheOptions = UNSET
    cache_control: CacheHint = UNSET
    verbosity: Verbosity = None
    chat_template_kwargs: TemplateValues | None = None
    response_format: ChatFormats | None = None
    include_reasoning: bool | None = None  # whether the answer has what the model thought; if left out it does
    logprobs: bool | None = None
    top_logprobs: MostLogprobs | None = None
    tools: ToolList | None = None
    tool_choice: ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[Effort | None, Tried()] = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    audio: Annotated[Anything, Only()] = UNSET
    function_call: Annotated[Anything, Only("none", "auto", why="its successor is 'tool_choice'")] = UNSET
    functions: Annotated[Anything, Only([], why="their successor is 'tools'")] = UNSET
    modalities: Annotated[Anything, Only(["text"])] = UNSET
    moderation: Annotated[Anything, Only()] = UNSET
    prediction: Annotated[Anything, Wish()] = UNSET  # makes answers faster elsewhere, and no other ones
    store: Annotated[Anything, Only(False)] = UNSET
    add_special_tokens: Annotated[Anything, Only(False)] = UNSET
    chat_template: Annotated[Anything, Only()] = UNSET
    documents: Annotated[Anything, Only([])] = UNSET
    echo: Annotated[Anything, Only(False)] = UNSET
    web_search_options: Annotated[Anything, Only(why=HOSTED)] = UNSET

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_usage_so_far(self) -> bool:
        """Whether each chunk of a stream has the usage so far."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    def intent(self, task_header: str | None = None, *, leaves_out_hosted: bool = False) -> Intent:
        """The request after all its checks; refuses demands that can't be held, naming the field."""
        reading = Reading(leaves_out_hosted=leaves_out_hosted)
        if leaves_out_hosted and self.web_search_options not in (UNSET, None):
            self.web_search_options = UNSET
            reading.wish("web_search_options")
        reading.check(self)
        check_model(self.model)
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "'stream_options' is only allowed when 'stream' is true.")
        messages = tuple(turn.message(reading, f"messages[{index}]") for index, turn in enumerate(self.messages))
        intent = Intent(
            endpoint="chat.completions",
            kind=Kind.CHAT,
            model=self.model,
            messages=messages,
            template_values=template_values(self.chat_template_kwargs),
            tools=tools_of(self.tools, ChatTool, self.tool_choice, reading, parallel=self.parallel_tool_calls),
            images=reading.images,
            image_at=reading.image_at,
            not_enforced=reading.not_enforced,
            sampling=self.sampling(
                self._max_tokens(),
                guidance_of(self.response_format, "response_format", self.structured_outputs),
                logprobs=self._logprobs(),
                **thinking_in_template(
                    self.chat_template_kwargs, self.thinking(self.reasoning_effort, "reasoning_effort")
                ),
                **self.choices(stream=bool(self.stream)),
            ),
            task=task_of(self.metadata, task_header),
            end_user=self.user or self.safety_identifier,
            priority=self.priority or 0,
            tier=self.tier,
            stream=bool(self.stream),
        )
        is_begun = is_continued(self.continue_final_message, self.add_generation_prompt)
        return continuing(intent, "continue_final_message") if is_begun else intent

    def _logprobs(self) -> int | None:
        if not self.logprobs:
            if self.top_logprobs:
                raise invalid("top_logprobs", "'top_logprobs' needs 'logprobs': true.")
            return None
        return self.top_logprobs or 0

    def _max_tokens(self) -> int | None:
        if self.max_tokens is None or self.max_completion_tokens is None:
            return self.max_completion_tokens if self.max_tokens is None else self.max_tokens
        if self.max_tokens != self.max_completion_tokens:
            raise invalid("max_tokens", "'max_tokens' and 'max_completion_tokens' contradict each other.")
        return self.max_tokens


class MessageToolCall(msgspec.Struct):
    """A call of a function."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class AnswerMessage(msgspec.Struct):
    """The model's message; its content is null where it only calls functions."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    annotations: list[Any] = []
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[MessageToolCall] | UnsetType = UNSET


class Choice(msgspec.Struct, omit_defaults=False):
    """One choice of an answer. `sluice_reason` says more where `finish_reason` can't."""

    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    sluice_reason: str | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answer without streaming."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: ChatUsage
    service_tier: Tier
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ChunkFunction(msgspec.Struct, omit_defaults=True):
    """A piece of a function call."""

    name: str | None = None
    arguments: str | None = None


class ChunkToolCall(msgspec.Struct, omit_defaults=True):
    """A piece of call number `index`; the first says its id and what is called."""

    index: int
    id: str | None = None
    type: str | None = None
    function: ChunkFunction = msgspec.field(default_factory=ChunkFunction)


class ChunkDelta(msgspec.Struct, omit_defaults=True):
    """The part of the message in a chunk."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ChunkToolCall] | None = None


class ChunkChoice(msgspec.Struct):
    """One choice of a chunk."""

    index: int
    delta: ChunkDelta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None
    sluice_reason: str | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One event of a stream. `usage` is null on all but the last where the client asked for it, else left out."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChatUsage | UnsetType | None = UNSET
    service_tier: Tier
