"""``GET /v1/usage/{request_id}``: what any request of the key's project used and cost, cut streams included; and
``GET /v1/key``: what the key has spent and may still spend.
"""

from __future__ import annotations

from functools import partial
from typing import Literal
from uuid import UUID

import msgspec

from base.ids import request_id_in
from base.units import MICRO, format_credits
from billing import promises
from billing.models import Hold, SpendBudget, UsageRecord
from billing.seals.archived import ArchiveMissingError
from billing.seals.leaves import Cards
from billing.seals.proofs import proof_of
from billing.selectors.prices import bill_of
from billing.selectors.promises import miss_of
from billing.selectors.usage import charges_of_key, hold_of, record_of
from billing.services.budgets import Standing, standings
from gateway.errors.refusal import Refusal
from gateway.http.endpoint import Call, endpoint
from gateway.runtime.principals import Principal
from gateway.wire.usage import (
    BillLine,
    CompletionDetails,
    InputDetails,
    KeyBudget,
    KeyData,
    KeyLimit,
    KeyShown,
    PriceCard,
    PriceTier,
    RequestPromise,
    RequestUsage,
    ResponseUsage,
    UsageProof,
    credits_text,
)
from tenancy.models import APIKey


@endpoint("GET", "/v1/usage/{id}", scope="usage.read", summary="Show a request's usage", gives=RequestUsage)
async def usage_of_request(call: Call[None]) -> RequestUsage:
    """Usage and cost of a request of the project, a cut stream included. The id is the request's `x-request-id`, or its
    answer's (`chatcmpl-…`, `resp_…`).
    """
    request, principal = request_id_in(call.named), call.principal
    found = None
    if request is not None:
        try:
            found = await call.in_database(partial(usage_of, principal.tenant, principal.project, request))
        except ArchiveMissingError as error:
            raise Refusal(503, "usage_archived", error.told, param="request_id") from error
    if found is None:
        text = f"No request '{call.named[:100]}' of this project is known."
        raise Refusal(404, "usage_not_found", text, param="request_id")
    return found


def usage_of(tenant: UUID, project: UUID, request: UUID) -> RequestUsage | None:
    """Return the usage of the project's `request`: settled, or pending while its hold is open; None if there is none.

    The hold is read first, so that a request settled between the two queries is found settled.
    """
    hold = hold_of(request, tenant)
    record = record_of(request, tenant)
    if record is not None:
        return _settled(record) if record.project == project else None
    return _pending(hold) if hold is not None and hold.project == project else None


def _settled(record: UsageRecord) -> RequestUsage:
    written = record.cache_write_short_tokens + record.cache_write_long_tokens
    prompt = record.input_tokens + record.cache_read_tokens + written
    return RequestUsage(
        request_id=str(record.request),
        status="settled",
        endpoint=record.endpoint,
        model=record.model,
        task=record.task,
        finish_reason=record.finish,
        usage=ResponseUsage(
            input_tokens=prompt,
            input_tokens_details=InputDetails(record.cache_read_tokens, written),
            output_tokens=record.completion_tokens,
            output_tokens_details=CompletionDetails(record.reasoning_tokens),
            total_tokens=prompt + record.completion_tokens,
            credits=credits_text(record.charge),
            credits_micro=record.charge,
        ),
        is_exact=record.exact,
        waived=record.waived,
        revision=record.revision,
        rate_card_version=str(record.card_version),
        multiplier_bp=record.multiplier_bp,
        refunded=format_credits(record.refunded),
        refunded_micro=record.refunded,
        bill=[
            BillLine(line.usage_class, line.tokens, format_credits(line.rate), format_credits(line.amount))
            for line in bill_of(record)
        ],
        card=_card(record),
        proof=None if (proof := proof_of(record)) is None else msgspec.convert(msgspec.to_builtins(proof), UsageProof),
        route=record.route,
        project=str(record.project),
        api_key=None if record.api_key is None else str(record.api_key),
        ttft_ms=record.ttft_ms,
        duration_ms=record.duration_ms,
        promise=_promise(record),
        reserved_at=record.reserved_at.isoformat(),
        settled_at=record.settled_at.isoformat(),
    )


def _promise(record: UsageRecord) -> RequestPromise | None:
    if record.promise is None:
        return None
    one = promises.read(record.promise)
    miss = miss_of(record.request) if one.missed else None
    credited = None if miss is None else miss.credited
    return RequestPromise(
        kept=None if one.not_counted else not one.missed,
        missed=list(one.missed),
        not_counted=one.not_counted or None,
        own_queue_ms=one.waited_ms,
        uncached_tokens=one.uncached,
        ttft_ms=one.ttft_ms,
        promised_ttft_ms=one.ttft_most_ms,
        tokens_per_second=one.rate,
        promised_tokens_per_second=one.rate_least,
        credited=None if credited is None else format_credits(credited),
        credited_micro=credited,
    )


def _card(record: UsageRecord) -> PriceCard | None:
    cards = Cards()
    card = cards.of(record.card_version)
    if card is None:
        return None
    tiers = [PriceTier(tier.min_context, dict(tier.rates)) for tier in card.tiers]
    return PriceCard(str(card.id), cards.digest(card.id), card.request_fee, card.batch_bp, tiers)


def _pending(hold: Hold) -> RequestUsage:
    return RequestUsage(
        request_id=str(hold.id),
        status="pending",
        endpoint=hold.facts.get("endpoint", ""),
        model=hold.model,
        task=hold.facts.get("task", ""),
        usage=None,
        held=format_credits(hold.amount),
        held_micro=hold.amount,
        route=hold.facts.get("route", {}),
        project=str(hold.project),
        api_key=None if hold.api_key is None else str(hold.api_key),
        reserved_at=hold.reserved_at.isoformat(),
    )


_RESETS: dict[str, Literal["daily", "weekly", "monthly"]] = {"day": "daily", "week": "weekly", "month": "monthly"}


@endpoint("GET", "/v1/key", scope="usage.read", summary="Show the key's limits and spending", gives=KeyShown)
async def key_show(call: Call[None]) -> KeyShown:
    """What the key has spent and may still spend, and when its budgets reset, in the shape of OpenRouter's `/key`."""
    if call.principal.api_key is None:
        raise Refusal(404, "not_found", "A session has no key: send one to hear of its limits.")
    return KeyShown(await call.in_database(partial(key_of, call.principal)))


def key_of(principal: Principal) -> KeyData:
    """Return the spending of a principal's key, and the budgets that bear on its requests; five queries."""
    assert principal.api_key is not None, "a session has no key"
    key = APIKey.objects.unscoped().get(pk=principal.api_key)
    numbers = [terms.number for terms in principal.budgets.terms if terms.scope != SpendBudget.Scope.END_USER]
    found = SpendBudget.objects.filter(wallet=principal.wallet, number__in=numbers, removed_at=None)
    present = standings(found)
    own = [one for one in present if one.budget.scope == SpendBudget.Scope.KEY and one.budget.is_hard]
    narrowest = min(own, key=lambda one: one.rest or 0, default=None)
    in_all, today, week, month = charges_of_key(principal.tenant, key.pk)
    return KeyData(
        label=f"{key.prefix}…{key.last_four}",
        limit=None if narrowest is None else _number(narrowest.budget.amount or 0),
        limit_remaining=None if narrowest is None else _number(narrowest.rest or 0),
        limit_reset=None if narrowest is None else _RESETS.get(narrowest.budget.window),
        limit_resets_at=None if narrowest is None else _moment(narrowest),
        usage=_number(in_all),
        usage_daily=_number(today),
        usage_weekly=_number(week),
        usage_monthly=_number(month),
        expires_at=None if key.expires_at is None else key.expires_at.isoformat(),
        rate_limit=rate_limit_of(principal),
        budgets=[
            KeyBudget(
                id=str(one.budget.pk),
                name=str(one.budget),
                scope=one.budget.scope,
                window=one.budget.window,  # type: ignore[arg-type] # one of its choices
                hard=one.budget.is_hard,
                limit=format_credits(one.budget.amount or 0),
                spent=format_credits(one.spent),
                held=format_credits(one.held),
                remaining=format_credits(one.rest or 0),
                resets_at=_moment(one),
            )
            for one in present
        ],
    )


def rate_limit_of(principal: Principal) -> KeyLimit:
    """Return the rate of requests that is the lower one: the key's own or the plan's."""
    buckets = [one for one in (principal.key_request_bucket, principal.request_bucket) if one is not None]
    bucket = min(buckets, key=lambda one: one.limit / one.period_us)
    return KeyLimit(requests=bucket.limit, interval=f"{bucket.period_us // MICRO}s")


def _number(micro: int) -> float:
    return micro / MICRO


def _moment(one: Standing) -> str | None:
    return None if one.resets_at is None else one.resets_at.isoformat()
