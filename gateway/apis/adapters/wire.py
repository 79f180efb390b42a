"""Adapters: the request that makes one of a file, the object that clients see, and lists of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.apis.files.wire import Identifier
from routing.models import Adapter


class AdapterRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/adapters``: `config` is adapter_config.json, `file_id` an uploaded adapter_model.safetensors."""

    base: Annotated[str, Meta(min_length=1, max_length=120)]
    name: Annotated[str, Meta(min_length=1, max_length=60)]
    file_id: Identifier
    config: dict[str, Any]
    description: Annotated[str, Meta(max_length=300)] = ""


class AdapterObject(msgspec.Struct, kw_only=True):
    """One adapter; `id` is the name of its model. `status` is ready, loading, refused by its base's workers, or
    not_served by the plan; the latter two have a `reason`.
    """

    id: str
    object: Literal["adapter"] = "adapter"
    base: str
    rank: int
    bytes: int
    created_at: int
    status: str
    reason: str | None


class AdapterList(msgspec.Struct, kw_only=True):
    """All adapters that a project may use."""

    object: Literal["list"] = "list"
    data: list[AdapterObject]


class AdapterDeleted(msgspec.Struct, kw_only=True):
    """An adapter that was deleted."""

    id: str
    object: Literal["adapter"] = "adapter"
    deleted: bool = True


def adapter_object(adapter: Adapter, refusal: str | None, obstacle: str) -> AdapterObject:
    """Return the adapter as clients see it; `refusal` is why no worker can serve it, "" where one can, None if unknown,
    and `obstacle` why its tenant's plan doesn't, "" where it does.
    """
    status = "not_served" if obstacle else "loading" if refusal is None else "refused" if refusal else "ready"
    return AdapterObject(
        id=adapter.model.name,
        base=adapter.base.name,
        rank=adapter.rank,
        bytes=adapter.bytes,
        created_at=int(adapter.created_at.timestamp()),
        status=status,
        reason=obstacle or refusal or None,
    )
