"""The items of a response's `input`, which can't be a tagged union: the commonest has no `type`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from gateway.edge.wire.common import Anything, Only, joined, refuse_unless_neutral
from gateway.edge.wire.decode import decode, invalid, unsupported
from gateway.edge.wire.limits import MAX_PARTS
from inference.types import Message

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


class _Head(msgspec.Struct):
    type: str | None = None
    role: str | None = None


class InputText(msgspec.Struct, tag_field="type", tag="input_text", forbid_unknown_fields=True):
    """A piece of what was said to the model."""

    text: str
    prompt_cache_breakpoint: Annotated[Anything, Only()] = UNSET


class OutputText(msgspec.Struct, tag_field="type", tag="output_text", forbid_unknown_fields=True):
    """A piece of what the model said."""

    text: str
    annotations: Annotated[Anything, Only([])] = UNSET
    logprobs: Annotated[Anything, Only([])] = UNSET


class OutputRefusal(msgspec.Struct, tag_field="type", tag="refusal", forbid_unknown_fields=True):
    """A model's refusal to answer: text like any other."""

    refusal: str


class InputImage(msgspec.Struct, tag_field="type", tag="input_image"):
    """Refused."""


class InputFile(msgspec.Struct, tag_field="type", tag="input_file"):
    """Refused."""


class InputAudio(msgspec.Struct, tag_field="type", tag="input_audio"):
    """Refused."""


Part = InputText | OutputText | OutputRefusal | InputImage | InputFile | InputAudio


class MessageItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message: what a client writes, or an answer's output item given back whole."""

    role: str
    content: str | Annotated[list[Part], Meta(max_length=MAX_PARTS)]
    type: str | None = None
    id: Annotated[str, Meta(max_length=128)] | None = None
    status: str | None = None
    phase: Annotated[Anything, Only()] = UNSET


def message_of(item: msgspec.Raw, at: str) -> Message:
    """The message in an input item; refuses items and parts that aren't text."""
    head = decode(_Head, item, at=at)
    if head.type not in {None, "message"}:
        raise unsupported(f"{at}.type", "only messages are taken")
    if head.role not in _ROLES:
        raise invalid(f"{at}.role", f"'{at}.role' must be one of {', '.join(_ROLES)}.")
    given = decode(MessageItem, item, at=at)
    refuse_unless_neutral(given, f"{at}.")
    if isinstance(given.content, str):
        return Message(_ROLES[given.role], given.content)
    texts = [_text(part, f"{at}.content[{index}]") for index, part in enumerate(given.content)]
    return Message(_ROLES[given.role], joined(texts))


def _text(part: Part, at: str) -> str:
    match part:
        case InputText() | OutputText():
            refuse_unless_neutral(part, f"{at}.")
            return part.text
        case OutputRefusal():
            return part.refusal
        case _:
            raise unsupported(f"{at}.type", "only text is taken")
