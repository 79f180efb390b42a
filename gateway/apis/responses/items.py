"""A response's input items as they are stored and listed: each with an id, and its content in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

import msgspec

from base.ids import request_id_in
from gateway.wire.decode import decode
from inference.messages import Image, Message, Reasoning, ToolCall, ToolResult

Item = dict[str, Any]

REFERENCE = "item_reference"
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}


class Reference(msgspec.Struct):
    """An item's type and id, which say whether the item stands for a stored one."""

    type: str | None = None
    id: str | None = None


def references_in(items: str | Sequence[msgspec.Raw]) -> dict[int, str]:
    """Return the ids that stand for stored items in a request's input, by their places."""
    if isinstance(items, str):
        return {}
    may_be = ((index, item) for index, item in enumerate(items) if REFERENCE.encode() in bytes(item))
    heads = {index: decode(Reference, item, at=f"input[{index}]") for index, item in may_be}
    return {index: head.id or "" for index, head in heads.items() if head.type == REFERENCE}


def response_of(item_id: str) -> UUID | None:
    """Return the response whose item has this id; None for an id that none of ours can have."""
    prefix, _, rest = item_id.partition("_")
    return request_id_in(rest.partition("_")[0]) if prefix in _PREFIXES.values() else None


def listed(given: str | Sequence[msgspec.Raw], response: UUID, first: int = 0) -> list[Item]:
    """Return the input of the request `response` as items; those without an id get one of ours, the first that of the
    place `first`.
    """
    items: Iterable[Item] = [_said("user", given)] if isinstance(given, str) else map(msgspec.json.decode, given)
    return _named(items, response, first)


def listed_messages(messages: Sequence[Message], response: UUID) -> list[Item]:
    """Return a conversation that was held elsewhere as input items of the request `response`."""
    return _named((item for message in messages for item in _items(message)), response, 0)


def _named(items: Iterable[Item], response: UUID, first: int) -> list[Item]:
    named: list[Item] = []
    for place, item in enumerate(items, first):
        kind = item.get("type") or "message"
        identifier = item.get("id") or f"{_PREFIXES.get(kind, 'item')}_{response.hex}_i{place}"
        full = {**item, "id": identifier, "type": kind}
        if kind != "reasoning":
            full["status"] = item.get("status") or "completed"
        if kind == "message" and isinstance(item.get("content"), str):
            full["content"] = _said(item["role"], item["content"])["content"]
        named.append(full)
    return named


def _said(role: str, text: str) -> Item:
    part = {"type": "output_text", "text": text, "annotations": []} if role == "assistant" else _text(text)
    return {"type": "message", "role": role, "content": [part]}


def _items(message: Message) -> Iterator[Item]:
    seen: list[Item] = []
    for part in message.parts:
        match part:
            case str() if message.role == "assistant":
                yield _said("assistant", part)
            case str():
                seen.append(_text(part))
            case Image():
                seen.append(_image(part))
            case Reasoning():
                thought = {"type": "reasoning_text", "text": part.text}
                yield {"type": "reasoning", "summary": [], "content": [thought]}
            case ToolCall():
                yield {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": part.arguments}
            case ToolResult():
                output = [_text(piece) if isinstance(piece, str) else _image(piece) for piece in part.content]
                yield {"type": "function_call_output", "call_id": part.call_id, "output": output}
    if seen:
        yield {"type": "message", "role": message.role, "content": seen}


def _text(text: str) -> Item:
    return {"type": "input_text", "text": text}


def _image(image: Image) -> Item:
    return {"type": "input_image", "image_url": image.url, "detail": image.detail or "auto"}
