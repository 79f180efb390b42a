"""The response object of the Responses API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.apis.responses.wire import ResponseRequest
from gateway.generation.intent import Tier
from gateway.wire.common import any_of
from gateway.wire.guidance import ResponseFormats, TextFormat
from gateway.wire.tools import ResponseToolChoice
from gateway.wire.usage import ResponseUsage

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputText(msgspec.Struct):
    """The text of an output message."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []
    type: Literal["output_text"] = "output_text"


class OutputMessage(msgspec.Struct, kw_only=True):
    """The model's message."""

    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"
    type: Literal["message"] = "message"


class ReasoningText(msgspec.Struct):
    """A piece of what the model thought."""

    text: str
    type: Literal["reasoning_text"] = "reasoning_text"


class ReasoningOutput(msgspec.Struct, kw_only=True):
    """The model's thought."""

    id: str
    status: Status
    content: list[ReasoningText]
    summary: list[Any] = []
    type: Literal["reasoning"] = "reasoning"


class FunctionCallOutput(msgspec.Struct, kw_only=True):
    """The model's call of a function."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET
    type: Literal["function_call"] = "function_call"


OutputItem = OutputMessage | ReasoningOutput | FunctionCallOutput
# A union that is described but never decoded: its structs have their `type` where their readers expect it, at the end.
OutputItems = Annotated[
    list[Any], Meta(extra_json_schema={"items": any_of(OutputMessage, ReasoningOutput, FunctionCallOutput)})
]


class IncompleteDetails(msgspec.Struct):
    """Why a response ended early; `sluice_reason` says more where `reason` can't."""

    reason: str
    sluice_reason: str | UnsetType = UNSET


class ResponseFault(msgspec.Struct):
    """Why a response failed."""

    code: str
    message: str


class TextConfig(msgspec.Struct):
    """How the answer is written."""

    format: ResponseFormats = msgspec.field(default_factory=TextFormat)


class ReasoningConfig(msgspec.Struct):
    """How long the model reasons."""

    effort: str | None = None
    summary: None = None


class Account(msgspec.Struct, kw_only=True):
    """For clients that ask for it: why this model, speed, whether the charge was waived, and the available credit."""

    route: dict[str, Any]
    prompt_tokens: int
    ttft_ms: int | None = None
    duration_ms: int | None = None
    waived: bool = False
    available: str | None = None
    available_micro: int | None = None


class Response(msgspec.Struct, kw_only=True):
    """One response."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    completed_at: int | None = None
    error: ResponseFault | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    model: str
    output: OutputItems
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: ReasoningConfig = msgspec.field(default_factory=ReasoningConfig)
    service_tier: Tier = Tier.DEFAULT
    store: bool = False
    background: bool = False
    temperature: float
    text: TextConfig = msgspec.field(default_factory=TextConfig)
    tool_choice: ResponseToolChoice = "auto"
    tools: list[Any] = []
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | UnsetType = UNSET
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str]
    sluice: Account | UnsetType = UNSET
    sluice_not_enforced: tuple[str, ...] | UnsetType = UNSET  # what the header of that name says, over any transport


def begun(
    request: ResponseRequest,
    *,
    identifier: str,
    created: int,
    model: str,
    is_stored: bool = False,
    in_background: bool = False,
    not_enforced: tuple[str, ...] = (),
) -> Response:
    """The response to `request` as it begins."""
    return Response(
        id=identifier,
        created_at=created,
        status="in_progress",
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        model=model,
        output=[],
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        store=is_stored,
        background=in_background,
        text=TextConfig(request.text_format or TextFormat()),
        service_tier=request.tier,
        temperature=1.0 if request.temperature is None else request.temperature,
        tool_choice=request.tool_choice or "auto",
        tools=list(request.tools or ()),
        reasoning=ReasoningConfig(None if request.reasoning is None else request.reasoning.effort),
        top_p=1.0 if request.top_p is None else request.top_p,
        user=UNSET if request.user is None else request.user,
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
        metadata=request.metadata or {},
        sluice_not_enforced=not_enforced or UNSET,
    )
