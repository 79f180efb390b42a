"""Parts of several endpoints' requests: bounded fields, sampling, fields that are accepted at neutral values only."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.edge.wire.decode import invalid, unsupported
from gateway.edge.wire.guidance import StructuredOutputs
from gateway.edge.wire.limits import MAX_OUTPUT_TOKENS, MAX_TASK, MAX_TOKEN_ID
from inference.types import Guidance, SamplingParams

Anything = Any | UnsetType


class Only:
    """Annotation of a field that isn't supported: the values that mean the default. Null is always one; others are
    refused.

    `docs/fields.md` lists these fields for each API.
    """

    def __init__(self, *values: Any, why: str = "") -> None:
        self.values = values
        self.why = why


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
Priority = Annotated[int, Meta(ge=-1000, le=1000)]
StopText = Annotated[str, Meta(min_length=1, max_length=256)]
StopTexts = Annotated[list[StopText], Meta(max_length=16)]
StopIds = Annotated[list[Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]], Meta(max_length=64)]

TASK_HEADER = b"x-sluice-task"
TASK_FIELD = "sluice_task"  # key in a request's metadata; keys without our prefix are the tenant's

_OPEN = ("temperature", "top_p", "top_k", "min_p")  # what a model may recommend
_SMALLEST_TOP_P = 1e-9  # top_p 0 means only the likeliest token


class Sampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Sampling parameters: OpenAI's fields and, through `extra_body`, the engine's own."""

    temperature: Temperature | None = None
    top_p: Fraction | None = None
    seed: Seed | None = None
    stop: StopText | StopTexts | None = None
    top_k: TopK | None = None
    min_p: Fraction | None = None
    stop_token_ids: StopIds | None = None
    ignore_eos: bool | None = None
    priority: Priority | None = None
    structured_outputs: StructuredOutputs | None = None

    allowed_token_ids: Annotated[Anything, Only()] = UNSET
    bad_words: Annotated[Anything, Only([])] = UNSET
    best_of: Annotated[Anything, Only(1)] = UNSET
    cache_salt: Annotated[Anything, Only(why="a tenant's prefix cache is its own already")] = UNSET
    frequency_penalty: Annotated[Anything, Only(0)] = UNSET
    include_stop_str_in_output: Annotated[Anything, Only(False)] = UNSET
    kv_transfer_params: Annotated[Anything, Only()] = UNSET
    length_penalty: Annotated[Anything, Only(1)] = UNSET
    logits_processors: Annotated[Anything, Only([])] = UNSET
    min_tokens: Annotated[Anything, Only(0)] = UNSET
    mm_processor_kwargs: Annotated[Anything, Only({})] = UNSET
    presence_penalty: Annotated[Anything, Only(0)] = UNSET
    prompt_logprobs: Annotated[Anything, Only()] = UNSET
    repetition_penalty: Annotated[Anything, Only(1)] = UNSET
    request_id: Annotated[Anything, Only(why="ids are ours")] = UNSET
    return_token_ids: Annotated[Anything, Only(False)] = UNSET
    return_tokens_as_token_ids: Annotated[Anything, Only(False)] = UNSET
    skip_special_tokens: Annotated[Anything, Only(True)] = UNSET
    spaces_between_special_tokens: Annotated[Anything, Only(True)] = UNSET
    truncate_prompt_tokens: Annotated[Anything, Only()] = UNSET
    use_beam_search: Annotated[Anything, Only(False)] = UNSET
    vllm_xargs: Annotated[Anything, Only({})] = UNSET

    def sampling(self, max_tokens: int | None, guidance: Guidance | None = None) -> SamplingParams:
        """These fields as the engine takes them; what wasn't given gets the model's own default, else the API's."""
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
        )


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream carries beside the text."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[Anything, Only(False)] = UNSET
    continuous_usage_stats: Annotated[Anything, Only(False)] = UNSET


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
        if not isinstance(note, Only):
            refuse_unless_neutral(given, f"{at}{name}.")
        elif not any(_equal(given, value) for value in note.values):
            raise unsupported(at + name, note.why)


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
