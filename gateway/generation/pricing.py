"""A request's price where it is to run: its meter, its first hold, and the hold that pins the price.

A request that moves before its first token to where another price holds is priced anew, and its hold pinned to that.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import msgspec
import structlog
from django.utils.crypto import salted_hmac

from billing.limits.types import Waiting
from billing.rating import CardPrices
from billing.writer.errors import WriterError
from billing.writer.operations import Answer, Held, Refused, Repin, RequestFacts, Reserve, Stale
from gateway.concurrency.turns import credit_key
from gateway.durable.delivery import delivering
from gateway.errors.faults import ledger_unavailable, refusal_of_hold
from gateway.errors.refusal import Refusal
from gateway.generation.meter import HoldRequest, Meter
from gateway.generation.placement import Placement
from gateway.runtime.principal import Principal
from gateway.runtime.runtime import Ledger, Runtime
from inference.types import Prepared

REPIN_SECONDS = 5.0  # a request that moves waits so long for its hold's new price

log = structlog.get_logger(__name__)


class Priced(msgspec.Struct, frozen=True):
    """A request priced where its placement is: `first` is its first hold, `prepared` generates no more than that
    leaves it.
    """

    meter: Meter
    first: HoldRequest
    prepared: Prepared


def priced(placement: Placement, prepared: Prepared) -> Priced:
    """Price a request as its placement's engine prepared it; raise a Refusal: 503 when no price is in force there, 400
    when its answers' prompts have other prices together than alone.
    """
    route, flight, principal = placement.route, placement.flight, placement.principal
    assert flight is not None, "a request is priced where it is"
    card = placement.card
    if card is None:
        log.error("route_without_card", deployment=route.deployment_name, rate_card=route.rate_card)
        raise Refusal(503, "no_ready_deployment", f"{route.model} can't be served right now.")
    _check_tiers(card, prepared)
    info = flight.engine.info
    meter = Meter(
        card,
        principal.multiplier_at(card),
        prompt_tokens=prepared.most_prompt,
        max_output=prepared.max_output,
        slice_tokens=principal.slice_tokens,
        can_extend=info is None or info.can_extend,
    )
    first = meter.first_hold(principal.most_at_once)
    if meter.max_output != prepared.max_output:
        prepared = replace(prepared, max_output=meter.max_output)
    return Priced(meter, first, prepared)


def _check_tiers(card: CardPrices, prepared: Prepared) -> None:
    """Raise a Refusal (400) for prompts that are computed apart and together fall into a tier of other prices."""
    if prepared.prompts == 1:
        return
    shortest = prepared.prompt_tokens // prepared.prompts if prepared.exact else 0  # what an estimate may turn out as
    if card.rates_for(shortest) != card.rates_for(prepared.most_prompt):
        message = (
            f"'n': the prompts of {prepared.prompts} answers together are in another tier of this model's prices than "
            "one alone: send the requests apart, without 'n'."
        )
        raise Refusal(400, "invalid_value", message, param="n")


def reserve_of(request: UUID, owner: UUID, placement: Placement, price: Priced) -> Reserve:
    """Return the operation that makes the request's hold."""
    principal = placement.principal
    return Reserve(
        request=request,
        wallet=principal.wallet,
        amount=price.first.amount,
        least=price.first.least,
        owner=owner,
        deployment=placement.route.deployment,
        card_version=price.meter.card.id,
        tenant=principal.tenant,
        project=principal.project,
        api_key=principal.api_key,
        model=placement.route.model,
        multiplier_bp=price.meter.multiplier_bp,
        user=principal.user,
        facts=facts_of(placement),
        budget=principal.budget,
    )


async def hold(
    runtime: Runtime, principal: Principal, reserve: Reserve, price: Priced, *, since: float, until: float
) -> Held:
    """Return the answer of a hold that was made, or raise a Refusal, also where the principal is no more what it was;
    the writer releases one that came too late.

    A request that came at `since` waits, at most until `until` (the loop's clock), for what others hold. Where nothing
    can be held later it takes less than the whole amount only where there isn't more.
    """
    whole = reserve if price.meter.can_extend else msgspec.structs.replace(reserve, least=reserve.amount)

    async def ask(_: Waiting | None) -> Answer:
        await runtime.principals.confirm(principal)  # it may have waited: here, in queues or for its body
        answer = await runtime.writer.submit(whole)
        if isinstance(answer, Refused) and answer.freed < whole.least and whole is not reserve:
            return await runtime.writer.submit(reserve)
        return answer

    # Who waits for a key's budget keeps no other key's waiting.
    wallet, budget = credit_key(reserve.wallet), credit_key(reserve.wallet, reserve.budget)

    def short_of(answer: Answer) -> str | None:
        if not isinstance(answer, Refused) or answer.freed < reserve.least:
            return None
        return wallet if answer.limit == "wallet" else budget

    keys = (wallet,) if reserve.budget is None else (budget, wallet)
    try:
        answer = await runtime.turns.take(keys, ask, short_of, since=since, until=until)
    except WriterError as error:
        log.warning("reserve_failed", error=str(error))
        raise ledger_unavailable() from error
    if isinstance(answer, Refused):
        raise refusal_of_hold(answer, reserve.least)
    assert isinstance(answer, Held), answer
    return answer


async def pinned_anew(ledger: Ledger, request: UUID, placement: Placement, prepared: Prepared, *, held: int) -> Priced:
    """Pin the request's hold to where its placement is now, and return the request priced there, its credit granted.

    Raise a Refusal, with the hold of `held` µcr as it was, where credit is short (402, 403) or the hold is not ours any
    more (503). A 503 may also mean that nobody knows: then the request must not run on.
    """
    price = priced(placement, prepared)
    operation = Repin(
        request=request,
        wallet=placement.principal.wallet,
        amount=price.first.amount,
        least=price.first.least,
        deployment=placement.route.deployment,
        card_version=price.meter.card.id,
        model=placement.route.model,
        facts=facts_of(placement),
        multiplier_bp=price.meter.multiplier_bp,
    )
    try:
        async with asyncio.timeout(REPIN_SECONDS):
            answer = await ledger.submit(operation)
    except (WriterError, TimeoutError) as error:
        log.warning("repin_failed", request_id=str(request), error=str(error) or type(error).__name__)
        raise ledger_unavailable() from error
    if isinstance(answer, Refused):
        raise refusal_of_hold(msgspec.structs.replace(answer, available=held + answer.available), operation.least)
    if isinstance(answer, Stale):
        raise ledger_unavailable()
    assert isinstance(answer, Held), answer
    price.meter.granted(answer.total)
    return price


def facts_of(placement: Placement) -> RequestFacts:
    """Return the facts of the request that its hold keeps."""
    intent, delivery = placement.intent, delivering.get()
    return RequestFacts(
        endpoint=intent.endpoint,
        task=placement.route.task,
        route=placement.explain(),
        end_user=end_user_digest(placement.principal.tenant, intent.end_user),
        streamed=intent.stream,
        kept="" if delivery is None else delivery.run.hex,
    )


def end_user_digest(tenant: UUID, end_user: str | None) -> str:
    """Return a keyed hash of a tenant's `user` field in 64 hex digits, or "" where there is none."""
    if not end_user:
        return ""
    return salted_hmac("gateway.privacy", f"{tenant}:{end_user}", algorithm="sha256").hexdigest()
