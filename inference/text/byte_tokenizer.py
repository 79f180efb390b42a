"""The fake model's tokenizer: one token for each byte of UTF-8."""

from __future__ import annotations

from collections.abc import Sequence

from inference.messages import Message

END_OF_TURN = 256
START_OF_TURN = 257
VOCABULARY = 258


class ByteTokenizer:
    """Ids 0 to 255 are bytes; START_OF_TURN and END_OF_TURN enclose a message, and no text produces them."""

    @property
    def end_ids(self) -> frozenset[int]:
        return frozenset({END_OF_TURN})

    def copy(self) -> ByteTokenizer:
        return self

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            ids += [START_OF_TURN, *message.role.encode(), 10, *"\n".join(message.texts).encode(), END_OF_TURN]
        return [*ids, START_OF_TURN, *b"assistant\n"]

    def encode(self, text: str, limit: int = 0) -> list[int]:
        ids = [*text.encode(), END_OF_TURN]
        return [*ids[: limit - 1], END_OF_TURN] if 0 < limit < len(ids) else ids

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < END_OF_TURN).decode("utf-8", "replace")
