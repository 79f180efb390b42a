"""Parts of several endpoints' requests: bounded fields, sampling, values for the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from gateway.generation.intent import Intent, Tier
from gateway.wire.decode import (
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_OUTPUT_TOKENS,
    MAX_TASK,
    MAX_TOKEN_ID,
    invalid,
    require_no_nul,
)
from gateway.wire.demands import Anything, Only, Wish
from gateway.wire.guidance import StructuredOutputs
from inference.messages import ToolCall
from inference.tools import ToolMode
from inference.types import Asked, Guidance, SamplingParams, TemplateValue

FIELD = "chat_template_kwargs"
THINKS = "enable_thinking"  # what the templates of most models that think or not call it
TEMPLATE_THINKS = f"{FIELD}.{THINKS}"
NOT_ASKED: dict[str, Any] = {"thinking_tokens": None, "thinking_asked": Asked.NOT}

# A text ends in the prompt: it is bounded, and control tokens in it are text, as in a message.
_Value = bool | Annotated[int, Meta(ge=-(2**53), le=2**53)] | float | Annotated[str, Meta(max_length=4096)] | None
TemplateValues = Annotated[
    dict[Annotated[str, Meta(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,63}\Z")], _Value], Meta(max_length=16)
]


def template_values(given: Mapping[str, TemplateValue | None] | None) -> tuple[tuple[str, TemplateValue], ...]:
    """Return what the client gives to the template, by name; null is the same as leaving a value out."""
    values = tuple((name, value) for name, value in (given or {}).items() if value is not None)
    for name, value in values:
        if isinstance(value, str):
            require_no_nul(f"{FIELD}.{name}", value)
    return values


def thinking_in_template(
    given: Mapping[str, TemplateValue | None] | None, thinking: dict[str, Any] = NOT_ASKED
) -> dict[str, Any]:
    """Return how long the model thinks, which the other fields say as `thinking`, as the template is told too.

    Refuse (400) what contradicts them.
    """
    thinks, at = (given or {}).get(THINKS), TEMPLATE_THINKS
    if thinks is None:
        return thinking
    most = thinking["thinking_tokens"]
    if not isinstance(thinks, bool):
        raise invalid(at, f"'{at}' is true or false.")
    if thinks if most == 0 else not thinks and most is not None:
        raise invalid(at, f"'{at}' contradicts what 'reasoning_effort' or 'thinking_token_budget' says: leave one out.")
    told = thinking | {"thinking_tokens": most if thinks else 0}
    if told["thinking_asked"] is Asked.NOT:
        told |= {"thinking_asked": Asked.WISH, "thinking_param": at}
    return told


SCHEMAS = "#/components/schemas/{name}"  # where the OpenAPI document has a struct


def any_of(*kinds: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON schema of a value that is one of `kinds`."""
    return {"anyOf": [{"$ref": SCHEMAS.format(name=kind.__name__)} for kind in kinds]}


ModelName = Annotated[str, Meta(min_length=1, max_length=200)]
ShortText = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
OutputTokens = Annotated[int, Meta(ge=1, le=MAX_OUTPUT_TOKENS)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=MAX_TOKEN_ID)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
ServiceTier = Literal["auto", "default", "flex", "priority"]
Priority = Annotated[int, Meta(ge=-1000, le=1000)]
MinTokens = Annotated[int, Meta(ge=0, le=MAX_OUTPUT_TOKENS)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(ge=0.01, le=10)]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
MostLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
LogitBias = Annotated[
    # Names as whole numbers are read in a tenth of the time of names that match a pattern.
    dict[Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)], Annotated[float, Meta(ge=-100, le=100)]],
    Meta(max_length=1024, extra_json_schema={"propertyNames": {"pattern": "^[0-9]{1,10}$"}}),
]
AllowedIds = Annotated[list[Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]], Meta(max_length=4096)]
# No model here was trained to be told so.
Verbosity = Annotated[Literal["low", "medium", "high"] | None, Wish("medium")]
# Every prefix is cached, for as long as there is room.
CacheKey = Annotated[ShortText | None, Wish()]
CacheRetention = Annotated[Literal["in_memory", "in-memory", "24h"] | None, Wish("in_memory", "in-memory")]
CacheOptions = Annotated[Anything, Wish({}, {"mode": "implicit"})]
StopText = Annotated[str, Meta(min_length=1, max_length=256)]
StopTexts = Annotated[list[StopText], Meta(max_length=16)]
StopIds = Annotated[list[Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]], Meta(max_length=64)]

ThinkingTokens = Annotated[int, Meta(ge=0, le=MAX_OUTPUT_TOKENS)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
EFFORTS: Mapping[str | None, int | None] = {
    None: None, "none": 0, "minimal": 256, "low": 1024, "medium": 4096, "high": 16_384, "xhigh": None
}  # fmt: skip

TASK_HEADER = b"x-sluice-task"
TASK_FIELD = "sluice_task"  # key in a request's metadata; keys without our prefix are the tenant's

_OPEN = ("temperature", "top_p", "top_k", "min_p")  # what a model may recommend
_NO_CHOICES = (None,) * 4
_SMALLEST_TOP_P = 1e-9  # top_p 0 means only the likeliest token


def _structured(name: str) -> str:
    return f"send it in 'structured_outputs', as '{name}'"


class Sampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Sampling parameters of every API of text: OpenAI's fields and, through `extra_body`, the engine's own.

    A new field that means the same in all of them stands here, once, with its type, its bounds and what the engine gets
    of it (`sampling`); one that only some APIs have, or that each calls otherwise, stands in their structs, which pass
    what it means on to `sampling`. A field that isn't supported is an `Only` or a `Wish` (`gateway.wire.demands`).
    """

    temperature: Temperature | None = None
    top_p: Fraction | None = None
    seed: Seed | None = None
    stop: StopText | StopTexts | None = None
    top_k: TopK | None = None
    min_p: Fraction | None = None
    stop_token_ids: StopIds | None = None
    ignore_eos: bool | None = None
    min_tokens: MinTokens | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    allowed_token_ids: AllowedIds | None = None
    priority: Priority | None = None
    service_tier: ServiceTier | None = None
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: ThinkingTokens | None = None

    bad_words: Annotated[Anything, Only([])] = UNSET
    cache_salt: Annotated[Anything, Only(why="a tenant's prefix cache is its own already")] = UNSET
    include_stop_str_in_output: Annotated[Anything, Only(False)] = UNSET
    kv_transfer_params: Annotated[Anything, Only()] = UNSET
    length_penalty: Annotated[Anything, Only(1)] = UNSET
    logits_processors: Annotated[Anything, Only([])] = UNSET
    mm_processor_kwargs: Annotated[Anything, Only({})] = UNSET
    request_id: Annotated[Anything, Only(why="ids are ours")] = UNSET
    return_token_ids: Annotated[Anything, Only(False)] = UNSET
    return_tokens_as_token_ids: Annotated[Anything, Only(False)] = UNSET
    skip_special_tokens: Annotated[Anything, Only(True)] = UNSET
    spaces_between_special_tokens: Annotated[Anything, Only(True)] = UNSET
    truncate_prompt_tokens: Annotated[Anything, Only()] = UNSET
    use_beam_search: Annotated[Anything, Only(False)] = UNSET
    vllm_xargs: Annotated[Anything, Only({})] = UNSET

    # As vLLM called them before it had `structured_outputs`.
    guided_json: Annotated[Anything, Only(instead=_structured("json"))] = UNSET
    guided_regex: Annotated[Anything, Only(instead=_structured("regex"))] = UNSET
    guided_choice: Annotated[Anything, Only(instead=_structured("choice"))] = UNSET
    guided_grammar: Annotated[Anything, Only(instead=_structured("grammar"))] = UNSET
    guided_whitespace_pattern: Annotated[Anything, Only(instead=_structured("whitespace_pattern"))] = UNSET
    guided_decoding_backend: Annotated[Anything, Wish()] = UNSET

    @property
    def tier(self) -> Tier:
        """The priority of the request."""
        return Tier.DEFAULT if self.service_tier in (None, "auto") else Tier(self.service_tier)

    def thinking(self, effort: Effort | None, at: str) -> dict[str, Any]:
        """How long the model thinks, as `sampling` takes it: the client's budget, which is a demand, else the `effort`
        in the field `at`, which is a wish.
        """
        if self.thinking_token_budget is not None:
            budget = {"thinking_tokens": self.thinking_token_budget, "thinking_param": "thinking_token_budget"}
            return {**budget, "thinking_asked": Asked.DEMAND, "effort": effort or ""}
        asked = Asked.NOT if effort is None else Asked.WISH
        return {
            "thinking_tokens": EFFORTS[effort],
            "thinking_param": at,
            "thinking_asked": asked,
            "effort": effort or "",
        }

    def sampling(self, max_tokens: int | None, guidance: Guidance | None = None, **more: Any) -> SamplingParams:
        """Return these fields as the engine takes them, with `more` of the API's own; fields not given get the model's
        own default, else the API's.
        """
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else max(self.top_p, _SMALLEST_TOP_P),
            top_k=max(self.top_k or 0, 0),
            min_p=self.min_p or 0.0,
            seed=None if self.seed is None else self.seed % 2**64,
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            guidance=guidance,
            unset=tuple(name for name in _OPEN if getattr(self, name) is None),
            min_tokens=self.min_tokens or 0,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            allowed_token_ids=tuple(self.allowed_token_ids or ()),
            **more,
        )


class ChoiceSampling(Sampling, kw_only=True, forbid_unknown_fields=True):
    """Sampling of the APIs whose answers are choices: Chat Completions and Completions."""

    n: Choices | None = None
    best_of: Choices | None = None
    logit_bias: LogitBias | None = None
    prompt_logprobs: MostLogprobs | None = None

    def choices(self, *, stream: bool) -> dict[str, Any]:
        """Return these fields as the engine takes them; refuse fields that contradict each other."""
        if (self.n, self.best_of, self.logit_bias, self.prompt_logprobs) == _NO_CHOICES:
            return {"n": 1, "best_of": None, "prompt_logprobs": None}
        n = 1 if self.n is None else self.n
        if self.best_of is not None and self.best_of < n:
            raise invalid("best_of", f"'best_of' must be at least 'n', which is {n}.")
        if stream and self.best_of is not None and self.best_of > n:
            raise invalid("best_of", "Which answers are best is known at their end: leave out 'stream' or 'best_of'.")
        if stream and self.prompt_logprobs is not None:
            raise invalid("prompt_logprobs", "'prompt_logprobs' are not streamed: leave out 'stream' or them.")
        return {
            "n": n,
            "best_of": self.best_of,
            "logit_bias": tuple((self.logit_bias or {}).items()),
            "prompt_logprobs": self.prompt_logprobs,
        }


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[Anything, Wish(False)] = UNSET
    continuous_usage_stats: bool | None = None  # whether each chunk of the answer has the usage so far


def is_continued(continues: bool | None, adds_header: bool | None) -> bool:
    """Whether the last message is gone on with, by vLLM's fields `continue_final_message` and `add_generation_prompt`;
    refuses those that contradict each other.
    """
    if adds_header is not None and adds_header is bool(continues):
        text = "'add_generation_prompt' is the opposite of 'continue_final_message': leave it out."
        raise invalid("add_generation_prompt", text)
    return bool(continues)


def continuing(intent: Intent, at: str) -> Intent:
    """Return `intent`, whose answer goes on with the last message, the assistant's, as the field `at` asks; refuses
    what only a whole answer can have.

    It is begun behind any thought, so a wish for one changes nothing.
    """
    last, sampling = intent.messages[-1], intent.sampling
    if last.role != "assistant":
        raise invalid(at, f"'{at}': the last message has to be the assistant's.")
    if any(isinstance(part, ToolCall) for part in last.parts) or not any(isinstance(part, str) for part in last.parts):
        raise invalid(at, f"'{at}': only a message of text is gone on with, which calls no functions.")
    whole = {
        "tool_choice": intent.tools is not None and intent.tools.mode is ToolMode.REQUIRED,
        sampling.thinking_param: sampling.demands_thought,
        **({} if sampling.guidance is None else {sampling.guidance.param: True}),
    }
    for name, is_wanted in whole.items():
        if is_wanted:
            raise invalid(
                name, f"'{name}' is about a whole answer, and '{at}' goes on with one: leave one of them out."
            )
    wishes = (sampling.thinking_param,) if sampling.wishes_thought else ()
    return msgspec.structs.replace(
        intent,
        continues=at,
        sampling=replace(sampling, thinking_tokens=0, thinking_asked=Asked.NOT, effort=""),
        not_enforced=tuple(dict.fromkeys((*intent.not_enforced, *wishes))),
    )


def task_of(metadata: Mapping[str, str] | None, header: str | None) -> str | None:
    """The task that the client names: `metadata.sluice_task`, else the ``x-sluice-task`` header."""
    where, task = f"metadata.{TASK_FIELD}", (metadata or {}).get(TASK_FIELD)
    if not task:
        where, task = TASK_HEADER.decode(), header
    if task and not is_task(task):
        raise invalid(where, f"A task's name has at most {MAX_TASK} printable characters.")
    return task or None


def is_task(name: str) -> bool:
    """Return whether `name` can be a task's name; it is stored, so it must be short and without control characters."""
    return len(name) <= MAX_TASK and name.isprintable()


def check_model(model: str) -> None:
    """Refuse a model's name that holds control characters, or names a task (``auto:…``) that can't be one."""
    if not model.isprintable() or not is_task(model.partition(":")[2] if model.startswith("auto:") else ""):
        raise invalid("model", f"'model' must be printable, and a task after 'auto:' at most {MAX_TASK} characters.")
