"""Stored responses as clients ask for them and see them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from gateway.wire.common import ShortText
from gateway.wire.demands import Anything, Only

Included = Annotated[list[ShortText], Meta(max_length=16)]


class RetrieveQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query of ``GET /v1/responses/{id}``. What was asked for when the response was made is always included."""

    include: Included = msgspec.field(default_factory=list)
    stream: bool = False
    starting_after: Annotated[int, Meta(ge=0)] | None = None
    include_obfuscation: Annotated[Anything, Only("false")] = UNSET


class ItemsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query of ``GET /v1/responses/{id}/input_items``."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: ShortText | None = None
    include: Included = msgspec.field(default_factory=list)


class InputItems(msgspec.Struct, kw_only=True):
    """A page of the items that a response was made from."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(msgspec.Struct):
    """Says that a response is gone."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(msgspec.Struct):
    """How many tokens a response's input has where it would run."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"
