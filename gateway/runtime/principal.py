"""The principal of a request on the data plane: immutable data per API key, or per session and project."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from billing.limits.types import Bucket
from billing.rating import CardPrices, batch_multiplier
from gateway.runtime.epoch import Stamp
from routing.catalogue import ModelEntry
from routing.own_models import NONE_OF_ITS_OWN, OwnTerms
from tenancy.services.networks import Network

NONE_OF_THE_PLAN = frozenset({""})
FLEX_BAND = -(2**15) - 1  # below every plan's
LOWEST_BAND = FLEX_BAND - 1
"""Below the priority of every plan."""
BATCHES = "batches"
_BATCH_WEIGHT = 100  # by what a plan's share of the engine is divided for batches, which lend their rows to all others


@dataclass(frozen=True, slots=True)
class Principal:
    """A tenant's project with the terms of its plan. `api_key` is None for a signed-in user, then `user` is set.

    `stamp` was current before it was read. `batch` is set where its requests are a batch's lines.
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
    resume_s: int
    allowed_models: frozenset[str]  # empty means all
    default_task: str
    response_storage: str  # of Tenant.Storage
    leaves_out_hosted: bool  # of a request tools that run at a provider; else they are refused
    request_bucket: Bucket
    credit_bucket: Bucket
    stamp: Stamp = field(compare=False)
    batch: UUID | None = None
    key_models: frozenset[str] = frozenset()  # what the key itself is for, of `allowed_models`; empty means all
    networks: tuple[Network, ...] = ()  # where it may come from; empty means from everywhere
    key_request_bucket: Bucket | None = None
    key_credit_bucket: Bucket | None = None
    key_concurrency: int | None = None
    budget: UUID | None = None
    own: OwnTerms = NONE_OF_ITS_OWN  # which models of the tenant's own the project has, and the plan serves
    queue: str = field(init=False, compare=False)
    """The name under which its requests wait and are counted: a tenant's batches apart from all else of it."""

    def __post_init__(self) -> None:
        queue = str(self.tenant) if self.batch is None else f"{self.tenant}:{BATCHES}"
        object.__setattr__(self, "queue", queue)  # once for a key, not several times for each of its requests

    def may_use(self, model: ModelEntry) -> bool:
        """Whether the plan, or for a tenant's own model the tenant, and the key let it use the model."""
        if model.tenant is not None:
            is_for_key = not self.key_models or model.name in self.key_models
            return is_for_key and not model.is_hidden_from(self.own) and not model.own_obstacle(self.own)
        return not self.allowed_models or model.name in self.allowed_models

    @property
    def request_buckets(self) -> tuple[Bucket, ...]:
        """The buckets of which a request takes one: the tenant's and, if it has one, the key's; for a batch none."""
        if self.batch is not None:
            return ()
        if self.key_request_bucket is None:
            return (self.request_bucket,)
        return self.request_bucket, self.key_request_bucket

    @property
    def credit_buckets(self) -> tuple[Bucket, ...]:
        """The buckets of which a request takes its credits, likewise."""
        if self.batch is not None:
            return ()
        if self.key_credit_bucket is None:
            return (self.credit_bucket,)
        return self.credit_bucket, self.key_credit_bucket

    def multiplier_at(self, card: CardPrices) -> int:
        """The multiplier of the prices of `card`, in basis points: a batch's is lower."""
        return self.multiplier_bp if self.batch is None else batch_multiplier(self.multiplier_bp, card)

    @property
    def most_at_once(self) -> int:
        """The µcr that a request may take at once."""
        return min(bucket.burst for bucket in (self.credit_bucket, *self.credit_buckets))

    def for_batch(self, batch: UUID, concurrency: int) -> Principal:
        """Return who sends the lines of a batch: with the key's rights, behind everybody's other requests.

        Where it may come from was asked when the batch was made.
        """
        weight = max(1, self.weight // _BATCH_WEIGHT)
        own = replace(self, batch=batch, networks=(), concurrency=concurrency, key_concurrency=None)
        return replace(own, weight=weight, priority=LOWEST_BAND)


def models_of_key(key: frozenset[str], plan: frozenset[str], *, has_own: bool) -> frozenset[str] | None:
    """Return what of the plan's models a key may use that is for the models `key`; empty stands for all, in each.

    None where that is none at all; where the key is for some of its tenant's own (`has_own`), then none of the plan's.
    """
    if not key:
        return plan
    return (key & plan if plan else key) or (NONE_OF_THE_PLAN if has_own else None)
