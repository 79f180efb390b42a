"""From an intent to a held request: rate, route, prepare, price, credit and lease, hold."""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from uuid import UUID

import msgspec
from django.conf import settings

from base import leases
from billing.limits.types import BucketState, Decision, Lease, Limited, RateStore, Take, Taken
from billing.writer.operations import LEASE_SECONDS
from gateway.concurrency import Turns, lease_in_turn
from gateway.errors.faults import (
    draining,
    lock_lost,
    refusal_of_limit,
)
from gateway.errors.refusal import Refusal
from gateway.generation.credit import Meter, hold, priced, reserve_of
from gateway.generation.intent import Intent, Tier
from gateway.generation.placement import Placement, placed, remember
from gateway.runtime import tracing
from gateway.runtime.principals import BATCHES, FLEX_BAND, Principal
from gateway.runtime.requests import Stage
from gateway.runtime.runtime import Runtime
from inference.engine import Engine
from inference.types import GenerationRequest, Prepared, Usage

LEASE_US = leases.SECONDS * 1_000_000


class Rated(NamedTuple):
    """Units of the rates by cost of one request: µcr, and tokens, of which those read from a cache don't count."""

    credits: int = 0
    tokens: int = 0

    @classmethod
    def of(cls, charge: int, usage: Usage) -> Rated:
        """Return those of a request that was charged `charge` µcr for `usage`."""
        return cls(charge, usage.input + usage.completion)


class Limits:
    """The rate buckets and the concurrency leases of one request: its tenant's and, where it has some, its key's.

    Batches have leases of their own, and no buckets.
    """

    def __init__(self, store: RateStore, turns: Turns, principal: Principal, request_id: UUID) -> None:
        self._store = store
        self._turns = turns
        self._principal = principal
        self._taken = Rated()

        def lease(name: str, limit: int) -> Lease:
            return Lease(key=f"{{{principal.tenant}}}:{name}", limit=limit, holder=request_id.hex, ttl_us=LEASE_US)

        self._lease = lease("concurrency" if principal.batch is None else BATCHES, principal.concurrency)
        self._key_lease: Lease | None = None
        if principal.key_concurrency is not None:
            self._key_lease = lease(f"key_concurrency:{principal.api_key}", principal.key_concurrency)
        self.states: tuple[BucketState, ...] = ()

    @property
    def _leases(self) -> tuple[Lease, ...]:
        return (self._lease,) if self._key_lease is None else (self._lease, self._key_lease)

    async def take_request(self) -> None:
        """Take one request of the rate, or raise a 429 Refusal: before anything is computed for it."""
        takes = [Take(bucket, 1) for bucket in self._principal.request_buckets]
        if takes:
            decision = await self._store.take(takes)
            if not isinstance(decision, Taken):
                raise refusal_of_limit(decision)
            self.states = decision.states

    async def take(self, rated: Rated, *, since: float, until: float) -> None:
        """Take `rated` and a concurrency lease, or raise a 429 or 400 Refusal and take nothing more.

        A request that came at `since` waits for its turn to have a lease, at most until `until` (the loop's clock).
        """
        takes = self._takes(rated)
        if self._key_lease is not None:
            await self._lease_of_key(self._key_lease)
        decision: Decision | None = None
        try:
            decision = await lease_in_turn(self._turns, self._store, takes, self._lease, since=since, until=until)
        finally:
            if self._key_lease is not None and not isinstance(decision, Taken):
                await self._store.give_back(self._key_lease)
        if not isinstance(decision, Taken):
            raise refusal_of_limit(decision)
        self._taken = rated
        self.states += decision.states

    async def _lease_of_key(self, lease: Lease) -> None:
        """Take one of the key's places. Nobody waits for them: meanwhile it would take its tenant's from others."""
        decision = await self._store.take((), lease)
        if isinstance(decision, Limited):
            raise refusal_of_limit(msgspec.structs.replace(decision, name="key_concurrency"))

    async def renew(self) -> None:
        """Renew the concurrency leases."""
        for lease in self._leases:
            await self._store.renew(lease)

    async def give_back(self) -> None:
        """Undo what was taken: nothing ran."""
        await self._end(Rated(), [Take(bucket, -1) for bucket in self._principal.request_buckets])

    async def close(self, rated: Rated) -> None:
        """Leave exactly `rated` taken from the buckets and end the concurrency leases."""
        await self._end(rated, [])

    def _takes(self, rated: Rated) -> list[Take]:
        """Return what takes `rated`, negative units giving back."""
        principal = self._principal
        by_cost = (rated.credits, principal.credit_buckets), (rated.tokens, principal.token_buckets)
        return [Take(bucket, cost) for cost, buckets in by_cost if cost for bucket in buckets]

    async def _end(self, rated: Rated, takes: list[Take]) -> None:
        """End the leases; take what `takes` say, and by what `rated` differs from what was taken."""
        rest = Rated(rated.credits - self._taken.credits, rated.tokens - self._taken.tokens)
        await self._store.give_back(self._lease, takes + self._takes(rest))
        if self._key_lease is not None:
            await self._store.give_back(self._key_lease)
        self._turns.wake(self._lease.key)


FIRST = 2001  # more than the priorities that clients may give lie apart
SLOW_SECONDS = 0.25  # a reserve that took this long: extensions will, too


class Admitted(msgspec.Struct, frozen=True):
    """A request whose credit is held and whose rates are taken: it may run."""

    id: UUID
    principal: Principal
    intent: Intent
    placement: Placement
    prepared: Prepared
    meter: Meter
    limits: Limits
    lease_until: float  # on the loop's clock; the database's lease ends later


async def admit(
    runtime: Runtime, principal: Principal, intent: Intent, request_id: UUID, arrived_at: float
) -> Admitted:
    """Return the request, which came at `arrived_at` (the loop's clock), ready to run.

    Raise a Refusal, with everything given back, when it may not or can't.
    """
    if runtime.requests.stage is Stage.DRAINING:
        raise draining()
    if not runtime.requests.has_lock:
        raise lock_lost()
    limits = Limits(runtime.rates, runtime.requests.turns, principal, request_id)
    await limits.take_request()
    try:
        placement = await placed(runtime, principal, intent)
        try:
            return await _admit(runtime, placement, limits, request_id, arrived_at)
        except BaseException as error:
            if isinstance(error, Refusal):
                error.headers |= placement.headers
            placement.leave()
            raise
    except BaseException:
        runtime.requests.supervise(limits.give_back())
        raise


async def _admit(
    runtime: Runtime,
    placement: Placement,
    limits: Limits,
    request_id: UUID,
    arrived_at: float,
) -> Admitted:
    principal, intent = placement.principal, placement.intent
    engine, prepared = await placement.prepare(request_of(principal, intent, request_id.hex))
    try:
        check_dimensions(engine, intent)
        price = priced(placement, prepared)
        reserve = reserve_of(request_id, runtime.requests.incarnation, placement, price)
        # A line that waited for a lease would keep those of other tenants from beginning: it is sent again.
        until = runtime.requests.gate.waits_until(arrived_at) if principal.batch is None else arrived_at
        rated = Rated(reserve.amount, price.meter.first_tokens(principal.most_tokens))
        await limits.take(rated, since=arrived_at, until=until)
        lease_from = asyncio.get_running_loop().time()
        with tracing.span("hold"):
            held = await hold(runtime, principal, reserve, price, since=arrived_at, until=until)
    except Refusal as refusal:
        refusal.input_tokens = prepared.prompt_tokens
        raise
    price.meter.granted(held.total)
    remember(runtime, placement)
    if asyncio.get_running_loop().time() - lease_from > SLOW_SECONDS:
        price.meter.ask_early()
    return Admitted(
        id=request_id,
        principal=principal,
        intent=intent,
        placement=placement,
        prepared=price.prepared,
        meter=price.meter,
        limits=limits,
        lease_until=lease_from + LEASE_SECONDS,
    )


def check_dimensions(engine: Engine, intent: Intent) -> None:
    """Raise a Refusal (400) when `intent` insists on vectors that this model's can't be cut to."""
    if intent.dimensions is None:
        return
    width = engine.info.vector_width if engine.info is not None else 0
    nests = engine.info is not None and engine.info.nests_vectors
    if intent.dimensions != width and not (nests and intent.dimensions < width):
        most = "at most " if nests else ""
        message = f"'dimensions' is not supported: this model's vectors have {most}{width} dimensions."
        raise Refusal(400, "unsupported_parameter", message, param="dimensions")


def request_of(principal: Principal, intent: Intent, identifier: str) -> GenerationRequest:
    """Return the request as engines take it, under that id."""
    tenant, is_flex = str(principal.tenant), intent.tier is Tier.FLEX
    return GenerationRequest(
        id=identifier,
        # What waits for everybody else's waits apart, since a queue has one band. A batch's lines wait so in any case.
        tenant=f"{principal.queue}:flex" if is_flex and principal.batch is None else principal.queue,
        domain=tenant,
        kind=intent.kind,
        weight=principal.weight,
        band=min(principal.priority, FLEX_BAND) if is_flex else principal.priority,
        priority=-intent.priority + (FIRST if intent.tier is Tier.PRIORITY else 0),
        queue_seconds=settings.SLUICE_ENGINE_QUEUE_SECONDS,
        messages=intent.messages,
        tools=intent.tools,
        template_values=intent.template_values,
        prompt=intent.prompt,
        inputs=intent.inputs,
        queries=intent.queries,
        labels=intent.labels,
        truncate=intent.truncate,
        continues=intent.continues,
        sampling=intent.sampling,
    )
