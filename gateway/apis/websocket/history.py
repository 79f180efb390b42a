"""The conversations of a socket's latest unstored responses, so that `previous_response_id` can continue them."""

from __future__ import annotations

from collections import OrderedDict
from uuid import UUID

from inference.messages import Message

MOST_RESPONSES = 32
MOST_CHARACTERS = 1_000_000

Turns = tuple[Message, ...]


class History:
    """The conversations that this socket's latest unstored responses ended; the oldest go where there are too many."""

    def __init__(self, most_responses: int = MOST_RESPONSES, most_characters: int = MOST_CHARACTERS) -> None:
        self._most_responses = most_responses
        self._most_characters = most_characters
        self._known: OrderedDict[str, tuple[UUID, Turns, int]] = OrderedDict()
        self._characters = 0

    def keep(self, response_id: str, project: UUID, turns: Turns) -> None:
        """Remember `turns` as the conversation that `response_id` ended."""
        size = sum(turn.size for turn in turns)
        self._known[response_id] = (project, turns, size)
        self._characters += size
        while len(self._known) > self._most_responses or self._characters > self._most_characters:
            _, (_, _, gone) = self._known.popitem(last=False)
            self._characters -= gone

    def turns_of(self, response_id: str, project: UUID) -> Turns | None:
        """The conversation that `response_id` ended; None if it isn't known, or isn't this project's."""
        found = self._known.get(response_id)
        return None if found is None or found[0] != project else found[1]
