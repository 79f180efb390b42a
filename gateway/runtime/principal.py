"""The principal of a request on the data plane: immutable data per API key, or per session and project."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from billing.limits.types import Bucket
from gateway.runtime.epoch import Stamp


@dataclass(frozen=True, slots=True)
class Principal:
    """A tenant's project with the terms of its plan. `api_key` is None for a signed-in user, then `user` is set.

    `stamp` was current before it was read.
    """

    tenant: UUID
    project: UUID
    wallet: UUID
    api_key: UUID | None
    user: UUID | None
    scopes: frozenset[str]  # with those that they stand for
    expires_at: datetime | None
    plan: str
    multiplier_bp: int
    weight: int
    priority: int
    concurrency: int
    slice_tokens: int
    allowed_models: frozenset[str]  # empty means all
    default_task: str
    response_storage: str  # of Tenant.Storage
    request_bucket: Bucket
    credit_bucket: Bucket
    stamp: Stamp = field(compare=False)
