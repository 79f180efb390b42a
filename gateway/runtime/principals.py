"""Principals, with all terms of plan and key: found by API key or session, cached while nothing of theirs changes."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from django.db.models import FilteredRelation, Q, QuerySet
from django.utils import timezone

from base.database.threads import DatabaseThreads
from base.errors import DatabaseBusyError
from billing.limits.types import Bucket, Limited, RateStore, Take, Taken
from billing.models import Subscription
from billing.promises import Promise
from billing.rating import WHOLE_BP, CardPrices, batch_multiplier, tier_multiplier
from billing.services.budgets import OF_SOME, bearing_on
from billing.writer.operations import NO_BUDGETS, Bearing
from gateway.errors.faults import access_changed, catalogue_unavailable
from gateway.errors.refusal import Refusal
from gateway.runtime.epoch import UNKNOWN, Epoch, EpochStaleError, Stamp
from routing.catalogue import ModelEntry
from routing.hook import NONE_OF_ITS_OWN, OwnTerms
from tenancy.models import APIKey, Membership, Project, Tenant
from tenancy.services.keys import digest_of, find_key
from tenancy.services.networks import Network, parsed_networks
from tenancy.services.scopes import ALL, expanded

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
    token_bucket: Bucket | None = None  # None: its plan limits no tokens
    flex_bp: int = WHOLE_BP
    priority_bp: int = WHOLE_BP
    promise: Promise | None = None  # None: its plan makes none
    key_token_bucket: Bucket | None = None
    key_concurrency: int | None = None
    budgets: Bearing = NO_BUDGETS  # that bear on its requests, those of some end users and models alone too
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

    @property
    def token_buckets(self) -> tuple[Bucket, ...]:
        """The buckets of which a request takes its tokens, likewise; mostly none."""
        if self.batch is not None:
            return ()
        return tuple([bucket for bucket in (self.token_bucket, self.key_token_bucket) if bucket is not None])

    def multiplier_at(self, card: CardPrices, tier: str) -> int:
        """The multiplier of the prices of `card` in a service tier, in basis points; a batch's lines have the batch's
        alone.
        """
        if self.batch is not None:
            return batch_multiplier(self.multiplier_bp, card)
        tier_bp = {"flex": self.flex_bp, "priority": self.priority_bp}.get(tier, WHOLE_BP)
        return tier_multiplier(self.multiplier_bp, tier_bp)

    @property
    def most_at_once(self) -> int:
        """The µcr that a request may take at once."""
        return min(bucket.burst for bucket in (self.credit_bucket, *self.credit_buckets))

    @property
    def most_tokens(self) -> int | None:
        """The tokens that a request may take at once; None: as many as it likes."""
        return min((bucket.burst for bucket in self.token_buckets), default=None)

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


MOST_ENTRIES = 10_000
_MINUTE = 60_000_000  # µs
GUESSES = 600  # keys that are none, which one network may try in a minute
LAST_USED_EVERY = timedelta(minutes=1)
INFERENCE_ROLES = (Membership.Role.OWNER, Membership.Role.ADMIN, Membership.Role.MEMBER)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Denied:
    """A cached refusal, as data: a cached exception would keep its traceback.

    `tenant` is None where it isn't known whose it is, `api_key` for sessions.
    """

    status: int
    code: str
    message: str
    tenant: UUID | None = None
    api_key: UUID | None = None

    def refusal(self) -> Refusal:
        return Refusal(self.status, self.code, self.message, tenant=self.tenant, api_key=self.api_key)


_INVALID = _Denied(401, "invalid_api_key", "This API key is not valid.")
_REVOKED = _Denied(401, "api_key_revoked", "This API key was revoked.")
_EXPIRED = _Denied(401, "api_key_expired", "This API key has expired.")
_INACTIVE = _Denied(403, "tenant_inactive", "This account is not active.")
_NO_MODEL = _Denied(403, "model_not_allowed", "Your plan has none of the models that this key is for.")
_NO_PROJECT = _Denied(403, "project_inactive", "This project is not active.")
_NO_PLAN = _Denied(403, "no_subscription", "This account has no plan.")
_NO_MEMBER = _Denied(403, "not_a_member", "You have no access to this project.")

_Answer = Principal | _Denied


class Principals:
    """Answers by key or session from memory; what isn't there is read once for all who wait for it.

    An entry is valid only while its tenant has not changed, nor what all tenants share, since the stamp that was read
    before its query. Unknown keys are kept apart, so that guessing can't push real ones out; each takes from the
    `rates` of its network, and once that is used up the database isn't asked about keys that nobody knows.
    """

    def __init__(self, epoch: Epoch, threads: DatabaseThreads, rates: RateStore, most: int = MOST_ENTRIES) -> None:
        self._epoch = epoch
        self._threads = threads
        self._guesses = _Guesses(rates, most)
        self._known = _Cache(most, epoch)
        self._denied = _Cache(most, epoch)
        self._waiting: dict[tuple[Stamp, object], asyncio.Future[_Answer]] = {}
        self._used: set[UUID] = set()
        self._written: dict[UUID, datetime] = {}

    async def by_key(self, secret: str, network: str = "") -> Principal:
        """Return the principal of the key that was sent from `network`, noting that it was used; raise Refusal 401,
        403, 429, or 503 when nothing is known.
        """
        digest = digest_of(secret)
        is_new = not self._known.has_had(digest) and self._denied.get(digest) is None
        if is_new:
            self._guesses.check(network)
        try:
            principal = await self._resolve(digest, lambda: load_by_key(secret))
        except Refusal as refusal:
            if is_new and refusal.status == 401:
                await self._guesses.note(network)
            raise
        _check_expiry(principal)
        assert principal.api_key is not None
        self._used.add(principal.api_key)
        return principal

    async def by_session(self, user: UUID, project: UUID) -> Principal:
        """Return the user's principal in the project; raise Refusal 403 unless its role may spend, or 503."""
        return await self._resolve((user, project), lambda: load_by_session(user, project))

    async def by_id(self, key: UUID) -> Principal:
        """Return the principal of the key with that id, for work that was begun under its rights; raise as `by_key`."""
        principal = await self._resolve(key, lambda: load_key(key))
        _check_expiry(principal)
        return principal

    async def confirm(self, principal: Principal) -> None:
        """Return at once while nothing changed that `principal` rests on, else once it was read anew.

        Raise the Refusal that it would get now, and a 503 where it may be less or something else: for requests that
        waited since they came.
        """
        if not (self._epoch.is_fresh and self._epoch.stands(principal.stamp, principal.tenant)):
            key, user, project = principal.api_key, principal.user, principal.project
            if key is not None:
                now = await self._resolve(key, lambda: load_key(key))
            else:
                assert user is not None, "a principal has a key or a user"
                now = await self._resolve((user, project), lambda: load_by_session(user, project))
            if _authority(now.for_batch(principal.batch, 0) if principal.batch else now) != _authority(principal):
                raise access_changed()
        _check_expiry(principal)

    async def write_last_used(self) -> None:
        """Write when keys were last used: one statement for all, each key at most once a minute, no epoch raised."""
        now = timezone.now()
        self._written = {key: at for key, at in self._written.items() if now - at < LAST_USED_EVERY}
        due = self._used - self._written.keys()
        if not due:
            return
        await self._threads.run(lambda: APIKey.objects.unscoped().filter(id__in=due).update(last_used_at=now))
        self._used -= due
        self._written.update(dict.fromkeys(due, now))

    async def _resolve(self, name: object, load: Callable[[], _Answer]) -> Principal:
        try:
            stamp = await self._epoch.stamp()
        except EpochStaleError as error:
            raise catalogue_unavailable() from error
        answer = self._known.get(name) or self._denied.get(name)
        if answer is None:
            answer = await self._load_once(name, stamp, load)
        if isinstance(answer, _Denied):
            raise answer.refusal()
        return answer

    async def _load_once(self, name: object, stamp: Stamp, load: Callable[[], _Answer]) -> _Answer:
        waiting = self._waiting.get((stamp, name))
        if waiting is None:
            waiting = asyncio.ensure_future(self._load(name, stamp, load))
            self._waiting[stamp, name] = waiting
            waiting.add_done_callback(lambda _: self._waiting.pop((stamp, name)))
        try:
            return await asyncio.shield(waiting)
        except DatabaseBusyError:
            raise
        except Exception as error:
            log.warning("principal_unreadable", error=str(error))
            message = "Access can't be checked right now."
            raise Refusal(503, "database_unavailable", message, headers={"retry-after": "1"}) from error

    async def _load(self, name: object, stamp: Stamp, load: Callable[[], _Answer]) -> _Answer:
        answer = await self._threads.run(load)
        if isinstance(answer, Principal):
            answer = replace(answer, stamp=stamp)
        cache = self._denied if isinstance(answer, _Denied) else self._known
        cache.put(name, stamp, answer)
        return answer


class _Guesses:
    """Networks that have tried more keys in a minute than one may, in all gateways that share `rates`.

    A key counts once it is found to be none: many that come at once, as behind a proxy when a gateway starts, may all
    be good.
    """

    def __init__(self, rates: RateStore, most: int) -> None:
        self._rates = rates
        self._most = most
        self._until: dict[str, float] = {}  # by network that has to wait

    def check(self, network: str) -> None:
        """Raise a 429 Refusal while the network has to wait."""
        wait = self._until.get(network, 0.0) - time.monotonic()
        if wait > 0:
            retry = str(math.ceil(wait))
            message = f"Too many keys that are not valid came from your network: try again in {retry} s."
            raise Refusal(429, "too_many_invalid_keys", message, headers={"retry-after": retry})

    async def note(self, network: str) -> None:
        """Count a key of the network's that is none."""
        decision = await self._rates.take(
            [Take(Bucket(f"{{guesses}}:{network}", "guesses", GUESSES, _MINUTE, GUESSES), 1)]
        )
        if isinstance(decision, Taken) and decision.states[0].remaining:
            return
        now = time.monotonic()
        if len(self._until) >= self._most:
            self._until = {one: until for one, until in self._until.items() if until > now}
        wait = decision.retry_us if isinstance(decision, Limited) else _MINUTE // GUESSES
        self._until[network] = now + wait / 1e6


class _Cache:
    """The most recently used answers, each with the stamp that was current before it was read."""

    def __init__(self, most: int, epoch: Epoch) -> None:
        self._most = most
        self._epoch = epoch
        self._entries: OrderedDict[object, tuple[Stamp, _Answer]] = OrderedDict()

    def get(self, name: object) -> _Answer | None:
        entry = self._entries.get(name)
        if entry is None or not self._epoch.stands(entry[0], entry[1].tenant):
            return None
        self._entries.move_to_end(name)
        return entry[1]

    def has_had(self, name: object) -> bool:
        """Whether there is an answer, be it too old to be given."""
        return name in self._entries

    def put(self, name: object, stamp: Stamp, answer: _Answer) -> None:
        self._entries[name] = (stamp, answer)
        self._entries.move_to_end(name)
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)


def load_by_key(secret: str) -> _Answer:
    """Return the principal of the key that `secret` is. All terms are one query, which a guess isn't worth."""
    keys = find_key(secret)
    return _of_key(keys, digest_of(secret)) if keys.exists() else _INVALID


def load_key(identifier: UUID) -> _Answer:
    """Return the principal of the key with that id, by two queries."""
    return _of_key(APIKey.objects.unscoped().filter(id=identifier))


def _of_key(keys: QuerySet[APIKey], digest: str = "") -> _Answer:
    """`digest` is that of the secret that was sent: one that was rotated out ends before its key."""
    row = _first(_with_terms(keys), "project_id", "project__is_active", *_KEY)
    if row is None:
        return _INVALID
    if row["revoked_at"] is not None:
        return replace(_REVOKED, tenant=row["tenant_id"], api_key=row["id"])
    is_previous = bool(digest) and row["digest"] != digest
    ends = [end for end in (row["expires_at"], row["previous_until"] if is_previous else None) if end is not None]
    principal = _principal(
        row,
        project=row["project_id"],
        project_is_active=row["project__is_active"],
        api_key=row["id"],
        scopes=expanded(row["scopes"]),
        expires_at=min(ends, default=None),
    )
    if isinstance(principal, _Denied):
        return principal
    return _restricted(_budgeted(principal, member=row["created_by_id"]), row)


def _budgeted(principal: Principal, member: UUID | None) -> Principal:
    """The principal with the budgets that bear on its requests; what a key spends is its maker's too. One query."""
    found = bearing_on(principal.wallet, project=principal.project, key=principal.api_key, member=member)
    return replace(principal, budgets=found)


def _restricted(principal: Principal, row: dict[str, Any]) -> _Answer:
    """The principal with what its key limits beyond the plan."""
    models = frozenset(row["allowed_models"])
    has_own = any(name.startswith(f"{row['tenant__slug']}/") for name in models)
    allowed = models_of_key(models, principal.allowed_models, has_own=has_own)
    if allowed is None:
        return replace(_NO_MODEL, tenant=principal.tenant, api_key=principal.api_key)

    def bucket(name: str, limit: int | None) -> Bucket | None:
        key = f"{{{principal.tenant}}}:{name}:{principal.api_key}"  # the braces: of one tenant, one slot of Redis
        return None if limit is None else Bucket(key, name, limit, 60_000_000, limit)

    return replace(
        principal,
        allowed_models=allowed,
        key_models=models,
        networks=parsed_networks(row["networks"]),
        key_request_bucket=bucket("key_requests", row["request_limit"]),
        key_credit_bucket=bucket("key_credits", row["credit_limit"]),
        key_token_bucket=bucket("key_tokens", row["token_limit"]),
        key_concurrency=row["concurrency"],
    )


def load_by_session(user: UUID, project: UUID) -> _Answer:
    """Return the user's principal in the project, by two queries."""
    projects = Project.objects.unscoped().filter(
        id=project,
        tenant__memberships__user=user,
        tenant__memberships__user__is_active=True,
        tenant__memberships__is_active=True,
        tenant__memberships__role__in=INFERENCE_ROLES,
    )
    row = _first(_with_terms(projects), "id", "is_active")
    if row is None:
        return _NO_MEMBER
    scopes = expanded([ALL])  # what the roles above are for
    principal = _principal(row, project=row["id"], project_is_active=row["is_active"], user=user, scopes=scopes)
    return principal if isinstance(principal, _Denied) else _budgeted(principal, member=user)


def _authority(principal: Principal) -> tuple[object, ...]:
    """The terms by which a request was let in, and the budgets that all requests draw on: those of end users and models
    mostly are others'.
    """
    terms = (principal.scopes, principal.networks, principal.allowed_models, principal.key_models, principal.own)
    return *terms, [one.number for one in principal.budgets.terms if one.scope not in OF_SOME]


def _check_expiry(principal: Principal) -> None:
    if principal.expires_at is not None and principal.expires_at <= timezone.now():
        raise replace(_EXPIRED, tenant=principal.tenant, api_key=principal.api_key).refusal()


_KEY = (
    "id",
    "tenant__slug",
    "digest",
    "scopes",
    "expires_at",
    "revoked_at",
    "previous_until",
    "allowed_models",
    "networks",
    "request_limit",
    "credit_limit",
    "token_limit",
    "concurrency",
    "created_by_id",
)
_TERMS = {
    name: f"subscription__version__{name}"
    for name in (
        "multiplier_bp",
        "weight",
        "priority",
        "concurrency",
        "slice_tokens",
        "resume_s",
        "allowed_models",
        "adapters",
        "default_task",
        "request_limit",
        "request_period_s",
        "request_burst",
        "credit_limit",
        "credit_period_s",
        "credit_burst",
        "token_limit",
        "token_period_s",
        "token_burst",
        "flex_bp",
        "priority_bp",
        "promised_ttft_ms",
        "promised_ttft_per_1k_ms",
        "promised_rate",
        "promised_rate_from",
    )
}


def _with_terms(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Join the tenant's active subscription and its wallet, where it has them."""
    active = Q(tenant__subscriptions__state=Subscription.State.ACTIVE)
    joined: QuerySet[Any] = rows.annotate(
        subscription=FilteredRelation("tenant__subscriptions", condition=active),
        wallet=FilteredRelation("tenant__wallets", condition=Q(tenant__wallets__name="main")),
    )
    return joined


def _first(rows: QuerySet[Any], *columns: str) -> dict[str, Any] | None:
    terms = ("subscription__version_id", "subscription__version__plan__slug", *_TERMS.values())
    shared = ("tenant_id", "tenant__is_active", "tenant__response_storage", "tenant__hosted_tools", "wallet__id")
    row: dict[str, Any] | None = rows.order_by().values(*columns, *shared, *terms).first()
    return row


def _principal(
    row: dict[str, Any],
    *,
    project: UUID,
    project_is_active: bool,
    api_key: UUID | None = None,
    user: UUID | None = None,
    scopes: frozenset[str],
    expires_at: datetime | None = None,
) -> _Answer:
    tenant = row["tenant_id"]
    if not row["tenant__is_active"]:
        return replace(_INACTIVE, tenant=tenant, api_key=api_key)
    if not project_is_active:
        return replace(_NO_PROJECT, tenant=tenant, api_key=api_key)
    if row["subscription__version_id"] is None or row["wallet__id"] is None:
        return replace(_NO_PLAN, tenant=tenant, api_key=api_key)
    terms = {name: row[column] for name, column in _TERMS.items()}

    def bucket(name: str, prefix: str) -> Bucket:
        limit = terms[f"{prefix}_limit"]
        return Bucket(
            key=f"{{{tenant}}}:{name}",
            name=name,
            limit=limit,
            period_us=terms[f"{prefix}_period_s"] * 1_000_000,
            burst=terms[f"{prefix}_burst"] or limit,
        )

    return Principal(
        tenant=tenant,
        project=project,
        wallet=row["wallet__id"],
        api_key=api_key,
        user=user,
        scopes=scopes,
        expires_at=expires_at,
        plan=row["subscription__version__plan__slug"],
        multiplier_bp=terms["multiplier_bp"],
        weight=terms["weight"],
        priority=terms["priority"],
        concurrency=terms["concurrency"],
        slice_tokens=terms["slice_tokens"],
        resume_s=terms["resume_s"],
        allowed_models=frozenset(terms["allowed_models"]),
        own=OwnTerms(terms["adapters"], frozenset(terms["allowed_models"]), tenant, project),
        default_task=terms["default_task"],
        response_storage=row["tenant__response_storage"],
        leaves_out_hosted=row["tenant__hosted_tools"] == Tenant.HostedTools.LEAVE_OUT,
        request_bucket=bucket("requests", "request"),
        credit_bucket=bucket("credits", "credit"),
        token_bucket=None if terms["token_limit"] is None else bucket("tokens", "token"),
        flex_bp=terms["flex_bp"],
        priority_bp=terms["priority_bp"],
        promise=_promise(row["subscription__version_id"], terms),
        stamp=UNKNOWN,
    )


def _promise(version: UUID, terms: dict[str, Any]) -> Promise | None:
    ttft_ms, rate = terms["promised_ttft_ms"], terms["promised_rate"]
    if ttft_ms is None and rate is None:
        return None
    return Promise(version, ttft_ms, terms["promised_ttft_per_1k_ms"], rate, terms["promised_rate_from"])
