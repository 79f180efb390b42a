"""From an intent to a held request: rate, route, prepare, price, credit and lease, hold."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
from django.conf import settings

from billing.writer.operations import LEASE_SECONDS
from gateway.errors.faults import (
    draining,
    lock_lost,
)
from gateway.errors.refusal import Refusal
from gateway.generation.choosing import placed, remember
from gateway.generation.intent import Intent, Tier
from gateway.generation.limits import Limits
from gateway.generation.meter import Meter
from gateway.generation.placement import Placement
from gateway.generation.pricing import hold, priced, reserve_of
from gateway.runtime import tracing
from gateway.runtime.principal import FLEX_BAND, Principal
from gateway.runtime.runtime import Runtime
from inference.engine import Engine
from inference.types import GenerationRequest, Prepared

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
    if runtime.is_draining:
        raise draining()
    if not runtime.has_lock:
        raise lock_lost()
    limits = Limits(runtime.rates, runtime.turns, principal, request_id)
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
        runtime.supervise(limits.give_back())
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
    check_dimensions(engine, intent)
    price = priced(placement, prepared)
    reserve = reserve_of(request_id, runtime.incarnation, placement, price)
    # A line that waited for a lease would keep those of other tenants from beginning: it is sent again.
    until = runtime.gate.waits_until(arrived_at) if principal.batch is None else arrived_at
    await limits.take(reserve.amount, since=arrived_at, until=until)
    lease_from = asyncio.get_running_loop().time()
    with tracing.span("hold"):
        held = await hold(runtime, principal, reserve, price, since=arrived_at, until=until)
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
