"""What the requests of conversations were given, so that the next one of each gets the same.

A request shows by its messages which conversation it goes on with: those before the last answer are the request that
the answer was for. So stateless clients, `previous_response_id` and the chat page are known alike. This gateway's
memory only: after a restart, or at another gateway, the next request is decided anew, by the same rules.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from uuid import UUID

from inference.messages import Image, Message, Reasoning, ToolCall, ToolResult
from routing.types import Kept

MOST_CONVERSATIONS = 16_384

Key = bytes


class Conversations:
    """The latest conversations; the least recently used go where there are too many."""

    def __init__(self, most: int = MOST_CONVERSATIONS) -> None:
        self._most = most
        self._kept: OrderedDict[Key, Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key | None) -> Kept | None:
        """Return what the request with that key was given."""
        return None if key is None else self._kept.get(key)

    def keep(self, key: Key, kept: Kept) -> None:
        """Remember what the request with that key was given."""
        self._kept[key] = kept
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)


def keys_of(tenant: UUID, project: UUID, messages: Sequence[Message]) -> tuple[Key | None, Key]:
    """Return the key of the request that this one goes on from, None for a first one, and its own.

    What the system says doesn't count, nor what a model thought: clients may leave either out of the next request.
    """
    said = [message for message in messages if message.role != "system"]
    answers = [index for index, message in enumerate(said) if message.role == "assistant"]
    last = answers[-1] if answers else 0
    digest = blake2b(tenant.bytes + project.bytes, digest_size=16)
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
