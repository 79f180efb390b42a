"""Parts of several endpoints' requests: bounded fields, sampling, fields that are accepted at neutral values only."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.errors.refusal import Refusal
from gateway.generation.intent import Tier
from gateway.wire.decode import invalid
from gateway.wire.guidance import StructuredOutputs
from gateway.wire.limits import MAX_CHOICES, MAX_LOGPROBS, MAX_OUTPUT_TOKENS, MAX_TASK, MAX_TOKEN_ID
from inference.types import Guidance, SamplingParams

Anything = Any | UnsetType


class Only:
    """Annotation of a field that isn't supported: the values that mean the default. Null is always one; others are
    refused. `why` says why, where there is more to say than that it doesn't exist yet.
    """

    def __init__(self, *values: Any, why: str = "") -> None:
        self.values = values
        self.why = why

    @property
    def shown(self) -> list[str]:
        """Its values as JSON."""
        return [json.dumps(value) for value in self.values]

    def refusal(self, param: str) -> Refusal:
        """The 400 for another value, with the way out."""
        why = f" ({self.why})" if self.why else ""
        way_out = f"leave it out or send {' or '.join(self.shown)}" if self.values else "leave it out"
        message = f"'{param}' is not supported{why}: {way_out}."
        return Refusal(400, "unsupported_parameter", message, param=param)


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
Verbosity = Literal["low", "medium", "high"]  # a wish, for which no model here was trained
CacheRetention = Literal["in_memory", "in-memory", "24h"]  # a hint; prefixes stay cached as long as there is room
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


class Sampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Sampling parameters of every API of text: OpenAI's fields and, through `extra_body`, the engine's own.

    A new field that means the same in all of them stands here, once, with its type, its bounds and what the engine gets
    of it (`sampling`); one that only some APIs have, or that each calls otherwise, stands in their structs, which pass
    what it means on to `sampling`. A field that isn't supported is an `Only` with its neutral values. The refusals, the
    OpenAPI document and docs/fields.md are made from these structs (`gateway.wire.fields`).
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

    @property
    def tier(self) -> Tier:
        """How soon it is to be served."""
        return Tier.DEFAULT if self.service_tier in (None, "auto") else Tier(self.service_tier)

    def thinking(self, effort: Effort | None) -> int | None:
        """The most tokens of thought: the client's budget, else what its `effort` means; None for no bound."""
        return EFFORTS[effort] if self.thinking_token_budget is None else self.thinking_token_budget

    def thinking_field(self, effort: str) -> str:
        """The field that bounds the thought: the client's budget, else that which the API calls `effort`."""
        return effort if self.thinking_token_budget is None else "thinking_token_budget"

    def sampling(self, max_tokens: int | None, guidance: Guidance | None = None, **more: Any) -> SamplingParams:
        """These fields as the engine takes them, with `more` of the API's own; what wasn't given gets the model's own
        default, else the API's.
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
        """These fields as the engine takes them; refuses those that contradict each other."""
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
    """What a stream carries beside the text."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[Anything, Only(False)] = UNSET
    continuous_usage_stats: bool | None = None  # whether each chunk of the answer has the usage so far


@functools.cache
def neutral_fields(kind: type[msgspec.Struct]) -> dict[str, Only | type[msgspec.Struct]]:
    """Return the fields of `kind` that are annotated `Only`, and those whose values may have such fields."""
    found: dict[str, Only | type[msgspec.Struct]] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for note in (*getattr(hint, "__metadata__", ()), *get_args(hint)):
            if isinstance(note, Only) or (isinstance(note, type) and issubclass(note, msgspec.Struct)):
                found[name] = note
    return found


@functools.cache
def _reading_of(kind: type[msgspec.Struct]) -> tuple[Callable[[msgspec.Struct], tuple[Any, ...]], tuple[Any, ...]]:
    """Return what reads the values of the neutral fields of `kind`, and their values where none is given."""
    names = list(neutral_fields(kind))
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
    left_out = tuple(defaults[name] for name in names)
    if len(names) > 1:
        return operator.attrgetter(*names), left_out  # one call for all: a request has dozens of these fields
    return lambda request: tuple(getattr(request, name) for name in names), left_out


def refuse_unless_neutral(request: msgspec.Struct, at: str = "") -> None:
    """Raise a 400 Refusal for a field of `request` (or below it) that isn't supported and has no neutral value."""
    kind = type(request)
    read, left_out = _reading_of(kind)
    values = read(request)
    if values == left_out:
        return
    for given, (name, note) in zip(values, neutral_fields(kind).items(), strict=True):
        if given is UNSET or given is None:  # which mean the same
            continue
        if isinstance(given, msgspec.Struct):
            refuse_unless_neutral(given, f"{at}{name}.")
        elif isinstance(note, Only) and not any(_equal(given, value) for value in note.values):
            raise note.refusal(at + name)


def _equal(given: object, value: object) -> bool:
    if isinstance(given, bool) or isinstance(value, bool):
        return given is value  # true is not 1 here
    return given == value


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
