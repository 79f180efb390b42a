"""By what a request shows which conversation it goes on with, so that it gets the model that the one before it got.

The messages before its last answer are the request that the answer was for. What that was given is kept in this
gateway's memory only: after a restart, or at another gateway, the next request is decided anew, by the same rules,
unless it goes on from a stored response, which tells its model itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from uuid import UUID

from inference.messages import Image, Message, Reasoning, ToolCall, ToolResult

MOST_CONVERSATIONS = 16_384

Key = bytes


def keys_of(project: UUID, messages: Sequence[Message]) -> tuple[Key | None, Key]:
    """Return the key of the request that this one goes on from, None for a first one, and its own, in that project.

    What the system says doesn't count, nor what a model thought: clients may leave either out of the next request.
    """
    said = [message for message in messages if message.role != "system"]
    answers = [index for index, message in enumerate(said) if message.role == "assistant"]
    last = answers[-1] if answers else 0
    digest = blake2b(project.bytes, digest_size=16)
    before: Key | None = None
    for index, message in enumerate(said):
        if index == last and last:
            before = digest.digest()
        _add(digest, message)
    return before, digest.digest()


def _add(digest: blake2b, message: Message) -> None:
    fields = [message.role]
    for part in message.parts:
        match part:
            case str():
                fields += ("text", part)
            case Image():
                fields += ("image", part.url)
            case ToolCall():
                fields += ("call", part.name, part.arguments)
            case ToolResult():
                fields += ("result", *(item if isinstance(item, str) else item.url for item in part.content))
            case Reasoning():
                pass
    for field in fields:
        data = field.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8))
        digest.update(data)
