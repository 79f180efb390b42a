"""Embeddings: its request and its answer."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta

from gateway.generation.intent import Intent
from gateway.wire.common import (
    ModelName,
    Priority,
    ShortText,
    check_model,
    task_of,
)
from gateway.wire.decode import MAX_EMBEDDING_INPUTS, MAX_EMBEDDING_TOKENS, MAX_TOKEN_ID, invalid
from gateway.wire.demands import Anything, Fields, Only
from gateway.wire.usage import EmbeddingUsage
from inference.types import Kind

TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
_Items = Annotated[
    list[str | TokenId | Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_EMBEDDING_TOKENS)]],
    Meta(min_length=1, max_length=MAX_EMBEDDING_TOKENS),
]


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/embeddings``. `input` is a text, texts, one list of token ids, or lists of them."""

    model: ModelName
    input: str | _Items
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=MAX_EMBEDDING_TOKENS)] | None = None
    user: ShortText | None = None
    priority: Priority | None = None

    add_special_tokens: Annotated[Anything, Only(True)] = UNSET
    truncate_prompt_tokens: Annotated[Anything, Only()] = UNSET

    def intent(self, task_header: str | None = None) -> Intent:
        """The request after all its checks."""
        Fields().check(self)
        check_model(self.model)
        return Intent(
            endpoint="embeddings",
            kind=Kind.EMBEDDING,
            model=self.model,
            inputs=_inputs(self.input),
            dimensions=self.dimensions,
            task=task_of(None, task_header),
            end_user=self.user,
            priority=self.priority or 0,
        )


def _inputs(given: str | list[str | int | list[int]]) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(given, str):
        given = [given]
    kinds = {type(item) for item in given}
    if len(kinds) > 1:
        raise invalid("input", "'input' mixes texts and token ids.")
    if kinds == {int}:
        return (tuple(item for item in given if isinstance(item, int)),)
    if len(given) > MAX_EMBEDDING_INPUTS:
        raise invalid("input", f"'input' has more than {MAX_EMBEDDING_INPUTS} items.")
    inputs: list[str | tuple[int, ...]] = []
    for index, item in enumerate(given):
        if item == "":
            raise invalid(f"input[{index}]", "An input must not be empty.")
        inputs.append(item if isinstance(item, str) else tuple(item) if isinstance(item, list) else (item,))
    return tuple(inputs)


class EmbeddingItem(msgspec.Struct):
    """One input's vector: numbers, or base64 of little-endian float32."""

    index: int
    embedding: str | list[float]
    object: Literal["embedding"] = "embedding"


class EmbeddingAnswer(msgspec.Struct):
    """All vectors, in the order of the inputs."""

    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"
