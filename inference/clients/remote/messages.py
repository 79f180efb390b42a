"""The messages of a chat as OpenAI's API has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from inference.messages import Image, Message, Reasoning, ToolCall, ToolResult, text_of
from inference.tools import Function
from inference.types import GenerationRequest


def api_messages(messages: Sequence[Message], *, with_images: bool, with_reasoning: bool) -> list[dict[str, Any]]:
    """Return `messages` as a request has them; images and reasoning are left out unless wanted."""
    told: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "tool":
            for part in message.parts:
                if isinstance(part, ToolResult):
                    content = _content(part.content, with_images=with_images)
                    told.append({"role": "tool", "tool_call_id": part.call_id, "content": content})
        else:
            told.append(_message(message, with_images=with_images, with_reasoning=with_reasoning))
    return told


def api_tools(functions: Iterable[Function]) -> list[dict[str, Any]]:
    """Return the functions as a request has them."""
    told: list[dict[str, Any]] = []
    for function in functions:
        declared: dict[str, Any] = {"name": function.name}
        if function.description:
            declared["description"] = function.description
        if function.parameters:
            declared["parameters"] = msgspec.json.decode(function.parameters)
        if function.strict:
            declared["strict"] = True
        told.append({"type": "function", "function": declared})
    return told


def prompt_texts(request: GenerationRequest) -> list[str]:
    """Return all text of each message, and of the tools."""
    texts = ["\n".join(message.texts) for message in request.messages]
    return texts if request.tools is None else ["\n".join(request.tools.texts), *texts]


def _message(message: Message, *, with_images: bool, with_reasoning: bool) -> dict[str, Any]:
    said = tuple(part for part in message.parts if isinstance(part, str | Image))
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    thought = [part.text for part in message.parts if isinstance(part, Reasoning)]
    content = _content(said, with_images=with_images) if said or not calls else None
    told: dict[str, Any] = {"role": message.role, "content": content}
    if thought and with_reasoning:
        told["reasoning_content"] = "\n".join(thought)
    if calls:
        told["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return told


def _content(content: tuple[str | Image, ...], *, with_images: bool) -> str | list[dict[str, Any]]:
    if not with_images or not any(isinstance(part, Image) for part in content):
        return text_of(content)
    return [{"type": "text", "text": part} if isinstance(part, str) else _image(part) for part in content]


def _image(image: Image) -> dict[str, Any]:
    detail = {"detail": image.detail} if image.detail else {}
    return {"type": "image_url", "image_url": {"url": image.url, **detail}}
