"""What the endpoints' requests share: bounded fields, neutral values, sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.edge.wire.decode import invalid, unsupported
from gateway.edge.wire.limits import MAX_OUTPUT_TOKENS, MAX_TASK, MAX_TOKEN_ID
from inference.types import SamplingParams

Anything = Any | UnsetType
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
StopText = Annotated[str, Meta(min_length=1, max_length=256)]
StopTexts = Annotated[list[StopText], Meta(max_length=16)]
StopIds = Annotated[list[Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]], Meta(max_length=64)]

TASK_HEADER = b"x-sluice-task"

_OPEN = ("temperature", "top_p", "top_k", "min_p")  # what a model may recommend
_SMALLEST_TOP_P = 1e-9  # top_p 0 means: the likeliest token alone


class Sampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How the next token is chosen: OpenAI's fields and, through `extra_body`, the engine's own."""

    temperature: Temperature | None = None
    top_p: Fraction | None = None
    seed: Seed | None = None
    stop: StopText | StopTexts | None = None
    top_k: TopK | None = None
    min_p: Fraction | None = None
    stop_token_ids: StopIds | None = None
    ignore_eos: bool | None = None

    def sampling(self, max_tokens: int | None) -> SamplingParams:
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
            unset=tuple(name for name in _OPEN if getattr(self, name) is None),
        )


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream carries beside the text."""

    include_usage: bool | None = None
    include_obfuscation: Anything = UNSET


def refuse_unless_neutral(request: msgspec.Struct, neutral: Mapping[str, tuple[Any, ...]], at: str = "") -> None:
    """Refuse each field of `neutral` that is set to anything but null or one of its values that change nothing."""
    for name, values in neutral.items():
        given = getattr(request, name)
        if not is_absent(given) and not any(_equal(given, value) for value in values):
            raise unsupported(at + name)


def is_absent(given: object) -> bool:
    """Whether a field was left out or is null, which mean the same."""
    return given is UNSET or given is None


def _equal(given: object, value: object) -> bool:
    if isinstance(given, bool) or isinstance(value, bool):
        return given is value  # true is not 1 here
    return given == value


def refuse_obfuscation(options: StreamOptions | None) -> None:
    """Refuse padding of stream events, which isn't done here."""
    if options is not None:
        refuse_unless_neutral(options, {"include_obfuscation": (False,)}, "stream_options.")


def task_of(metadata: Mapping[str, str] | None, header: str | None) -> str | None:
    """The task that the client names: `metadata.task`, else the ``x-sluice-task`` header."""
    task = (metadata or {}).get("task") or header
    if task and not is_task(task):
        raise invalid("metadata.task", f"A task's name has at most {MAX_TASK} printable characters.")
    return task or None


def is_task(name: str) -> bool:
    """Whether `name` can be a task's name: it is stored with the request, and no database takes just any text."""
    return len(name) <= MAX_TASK and name.isprintable()


def check_model(model: str) -> None:
    """Refuse a model's name that holds control characters, or names a task (``auto:…``) that can't be one."""
    if not model.isprintable() or not is_task(model.partition(":")[2] if model.startswith("auto:") else ""):
        raise invalid("model", f"'model' must be printable, and a task after 'auto:' at most {MAX_TASK} characters.")
