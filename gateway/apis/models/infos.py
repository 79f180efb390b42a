"""Models as Anthropic's clients list them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.apis.models.wire import ModelCard


class ModelsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The page of a list of models that is asked for."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    after_id: str | None = None
    before_id: str | None = None
    lifecycle: list[str] = []
    beta: str | None = None


class ModelInfo(msgspec.Struct, kw_only=True):
    """One model. Of its `capabilities` those that nothing here can are all false."""

    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int
    max_tokens: int | None
    capabilities: dict[str, Any]


class ModelInfoList(msgspec.Struct, kw_only=True):
    """A page of models."""

    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


def info_of(card: ModelCard) -> ModelInfo:
    """The model of `card`."""
    can = card.capabilities
    none = _support(has=False)
    efforts = {name: _support(has=can.reasoning) for name in ("low", "medium", "high", "xhigh", "max")}
    types = {name: _support(has=can.reasoning) for name in ("enabled", "adaptive")}
    types |= {name: _support(has=True) for name in ("disabled", "between_tools")}
    return ModelInfo(
        id=card.id,
        display_name=card.id,
        created_at=datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z"),
        max_input_tokens=card.context_length,
        max_tokens=card.max_output_tokens,
        capabilities={
            "batch": none,
            "citations": none,
            "code_execution": none,
            "context_management": none,
            "effort": {"supported": can.reasoning, **efforts},
            "image_input": _support(has=can.vision),
            "pdf_input": none,
            "server_tools": {"supported": False, "code_execution": none, "web_search": none},
            "structured_outputs": _support(has=can.structured_outputs),
            "thinking": {"supported": can.reasoning, "types": types},
        },
    )


def page_of(cards: Sequence[ModelCard], query: ModelsQuery) -> ModelInfoList:
    """The page of the models of `cards` that `query` asks for; an id that isn't among them is no bound."""
    ids = [card.id for card in cards]
    first = ids.index(query.after_id) + 1 if query.after_id in ids else 0
    last = ids.index(query.before_id) if query.before_id in ids else len(ids)
    if query.lifecycle and "active" not in query.lifecycle:
        last = first
    is_backward = query.before_id is not None and query.after_id is None
    chosen = cards[first:last]
    page = chosen[-query.limit :] if is_backward else chosen[: query.limit]
    return ModelInfoList(
        data=[info_of(card) for card in page],
        has_more=len(page) < len(chosen),
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
    )


def _support(*, has: bool) -> dict[str, bool]:
    return {"supported": has}
