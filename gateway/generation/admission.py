"""From an intent to a held request: route, prepare, price, limit, hold (DESIGN §3, steps 3 to 6)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from uuid import UUID

import structlog
from django.utils.crypto import salted_hmac

from billing.writer.errors import WriterError
from billing.writer.operations import LEASE_SECONDS, Held, Refused, Reserve
from gateway.errors.faults import (
    draining,
    ledger_unavailable,
    lock_lost,
    refusal_of_hold,
)
from gateway.errors.refusal import Refusal
from gateway.generation.intent import Intent
from gateway.generation.limits import Limits
from gateway.generation.meter import Meter
from gateway.generation.placement import Placement
from gateway.runtime import tracing
from gateway.runtime.principal import Principal
from gateway.runtime.runtime import Ledger, Runtime
from gateway.runtime.snapshot import Snapshot
from inference.engine import Engine
from inference.types import GenerationRequest, Prepared

SLOW_SECONDS = 0.25  # a reserve that took this long: extensions will, too

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Admitted:
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
    snapshot = await runtime.current_snapshot()
    placement = Placement(runtime.engines, snapshot, principal, intent)
    try:
        return await _admit(runtime, principal, intent, request_id, arrived_at, snapshot=snapshot, placement=placement)
    except BaseException:
        placement.leave()
        raise


async def _admit(
    runtime: Runtime,
    principal: Principal,
    intent: Intent,
    request_id: UUID,
    arrived_at: float,
    *,
    snapshot: Snapshot,
    placement: Placement,
) -> Admitted:
    engine, prepared = await placement.prepare(request_of(principal, intent, request_id.hex))
    check_dimensions(engine, intent)
    route = placement.route
    card = snapshot.prices.get(route.rate_card)
    if card is None:
        log.error("route_without_card", deployment=route.deployment_name, rate_card=route.rate_card)
        raise Refusal(503, "no_ready_deployment", f"{route.model} can't be served right now.")
    meter = Meter(
        card,
        principal.multiplier_bp,
        prompt_tokens=prepared.most_prompt,
        max_output=prepared.max_output,
        slice_tokens=principal.slice_tokens,
        can_extend=engine.info is None or engine.info.can_extend,
    )
    first = meter.first_hold(principal.credit_bucket.burst)
    prepared = replace(prepared, max_output=meter.max_output)
    reserve = Reserve(
        request=request_id,
        wallet=principal.wallet,
        amount=first.amount,
        least=first.least,
        owner=runtime.incarnation,
        deployment=route.deployment,
        card_version=card.id,
        tenant=principal.tenant,
        project=principal.project,
        api_key=principal.api_key,
        model=route.model,
        multiplier_bp=principal.multiplier_bp,
        user=principal.user,
        facts={
            "endpoint": intent.endpoint,
            "task": route.task,
            "route": route.explain(),
            "streamed": intent.stream,
            "end_user": end_user_digest(principal.tenant, intent.end_user),
        },
    )
    limits = Limits(runtime.rates, runtime.turns, principal, request_id)
    await limits.take(first.amount, since=arrived_at, until=runtime.gate.waits_until(arrived_at))
    try:
        lease_from = asyncio.get_running_loop().time()
        with tracing.span("hold"):
            held = await _hold(runtime.writer, reserve)
    except BaseException:
        runtime.supervise(limits.give_back())
        raise
    meter.granted(held.total)
    if asyncio.get_running_loop().time() - lease_from > SLOW_SECONDS:
        meter.ask_early()
    return Admitted(
        id=request_id,
        principal=principal,
        intent=intent,
        placement=placement,
        prepared=prepared,
        meter=meter,
        limits=limits,
        lease_until=lease_from + LEASE_SECONDS,
    )


def check_dimensions(engine: Engine, intent: Intent) -> None:
    """Raise a Refusal (400) when the vectors that `intent` insists on aren't the model's own: they are never cut."""
    if intent.dimensions is None:
        return
    width = engine.info.vector_width if engine.info is not None else 0
    if intent.dimensions != width:
        message = f"'dimensions' is not supported: this model's vectors have {width} dimensions."
        raise Refusal(400, "unsupported_parameter", message, param="dimensions")


def request_of(principal: Principal, intent: Intent, identifier: str) -> GenerationRequest:
    """Return the request as engines take it, under that id."""
    tenant = str(principal.tenant)
    return GenerationRequest(
        id=identifier,
        tenant=tenant,
        domain=tenant,
        kind=intent.kind,
        weight=principal.weight,
        priority=principal.priority,
        messages=intent.messages,
        inputs=intent.inputs,
        truncate=intent.truncate,
        sampling=intent.sampling,
    )


async def _hold(ledger: Ledger, reserve: Reserve) -> Held:
    """Return the answer of a hold that was made, or raise a Refusal; the writer releases one that came too late."""
    try:
        answer = await ledger.submit(reserve)
    except WriterError as error:
        log.warning("reserve_failed", error=str(error))
        raise ledger_unavailable() from error
    if isinstance(answer, Refused):
        raise refusal_of_hold(answer, reserve.least)
    assert isinstance(answer, Held), answer
    return answer


def end_user_digest(tenant: UUID, end_user: str | None) -> str:
    """Return a keyed hash of a tenant's `user` field in 64 hex digits, or "" where there is none."""
    if not end_user:
        return ""
    return salted_hmac("gateway.privacy", f"{tenant}:{end_user}", algorithm="sha256").hexdigest()
