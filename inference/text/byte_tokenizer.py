"""The fake model's tokenizer: one token for each byte of UTF-8."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from inference.messages import Message
from inference.text.tokenizer import Pair
from inference.text.turns import PLAIN, Rendering, rendered

END_OF_TURN = 256
START_OF_TURN = 257
VOCABULARY = 258

_CONTROL = {END_OF_TURN: "<|end_of_turn|>", START_OF_TURN: "<|start_of_turn|>"}


class ByteTokenizer:
    """Ids 0 to 255 are bytes; START_OF_TURN and END_OF_TURN enclose a message, and no text produces them."""

    @property
    def end_ids(self) -> frozenset[int]:
        return frozenset({END_OF_TURN})

    @property
    def template(self) -> str:
        return ""

    def copy(self) -> ByteTokenizer:
        return self

    def prompt(self, messages: Sequence[Message], rendering: Rendering = PLAIN) -> list[int]:
        ids: list[int] = []
        if rendering.tools is not None:
            turns, _ = rendered(messages, rendering, str)
            pairs = [(turn["role"], turn["content"]) for turn in turns]
        else:
            pairs = [(message.role, "\n".join(message.texts)) for message in messages]
        for role, text in pairs:
            ids += [START_OF_TURN, *role.encode(), 10, *text.encode(), END_OF_TURN]
        if rendering.continues:
            return ids[:-1]
        return [*ids, START_OF_TURN, *b"assistant\n"]

    def raw(self, text: str, *, special: bool = True) -> list[int]:
        return [*text.encode()]

    def encode(self, text: str, limit: int = 0) -> list[int]:
        ids = [*text.encode(), END_OF_TURN]
        return [*ids[: limit - 1], END_OF_TURN] if 0 < limit < len(ids) else ids

    def pair(self, first: str, second: str, limit: int = 0) -> Pair | None:
        begin, rest = [*first.encode(), END_OF_TURN], [*second.encode(), END_OF_TURN]
        if limit and len(begin) >= limit:
            return None
        ids = [*begin, *rest]
        return Pair((*ids[: limit - 1], END_OF_TURN) if 0 < limit < len(ids) else tuple(ids), len(begin))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < END_OF_TURN).decode("utf-8", "replace")

    def text(self, ids: Sequence[int]) -> str:
        written = b"".join(bytes((token,)) if token < END_OF_TURN else _CONTROL[token].encode() for token in ids)
        return written.decode("utf-8", "replace")

    def written(self, ids: Sequence[int]) -> list[str]:
        return [chr(token) if token < END_OF_TURN else _CONTROL[token] for token in ids]

    def decoding(self, marks: Sequence[str]) -> Callable[[Sequence[int]], str]:
        return self.decode

    def control_ids(self, texts: Sequence[str]) -> dict[str, int]:
        return {}

    def marker(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def longer(self, token: int) -> frozenset[int]:
        return frozenset()

    def blank(self, space: str) -> frozenset[int]:
        return frozenset(token for token in range(VOCABULARY) if not self.decode([token]).strip(space))

    def serialized(self) -> str:
        # The library's byte level writes each byte as one printable character: those that are printable already as
        # themselves, the others, in their order, from 256 on.
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in printable]
        characters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        control = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        return json.dumps(
            {
                "version": "1.0",
                "added_tokens": [{"id": token, "content": text, **control} for token, text in _CONTROL.items()],
                "pre_tokenizer": level,
                "decoder": level,
                "model": {
                    "type": "BPE",
                    "vocab": {characters[byte]: byte for byte in range(256)},
                    "merges": [],
                },
            }
        )
