"""``POST …/quote``: what the request to an endpoint would cost, beside each endpoint that generates."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal

import msgspec

from base.http import Scope, send_json
from base.units import format_credits
from gateway.generation.counting import Quoted, quote
from gateway.generation.intent import Intent
from gateway.http.access import principal_of
from gateway.http.endpoint import Call, Endpoint, Work
from gateway.runtime.principals import Principal
from gateway.wire.demands import not_enforced_header

MOST, PROBABLY = "x-sluice-credits-at-most", "x-sluice-credits-probably"


class QuotedOutput(msgspec.Struct):
    """Tokens of the answer: the most that it may have, and its usual length."""

    at_most: int
    p50: int
    p90: int
    basis: Literal["own", "model", "assumed"]
    requests: int


class QuotedTier(msgspec.Struct):
    """A context tier of the price list that begins near this prompt's length."""

    min_context: int
    credits_below: str
    credits_from: str


class Quote(msgspec.Struct, kw_only=True):
    """The cost of a request where it would run now. Nothing ran, and nothing is held or charged."""

    object: Literal["quote"] = "quote"
    model: str
    context_length: int
    input_tokens: int
    is_exact: bool
    cached_tokens: int
    output_tokens: QuotedOutput
    at_most: str
    at_most_micro: int
    probably: str
    probably_micro: int
    nine_in_ten: str
    nine_in_ten_micro: int
    rate_card_version: str
    multiplier_bp: int
    near_tier: QuotedTier | None


def quoting(
    of: Endpoint,
    intent: Callable[[Call[Any]], Awaitable[Intent]],
    *,
    caller: Callable[[Scope], Awaitable[Principal]] = principal_of,
) -> Endpoint:
    """Return the endpoint that quotes requests to `of`, which it takes; `intent` reads one."""

    async def quoted(call: Call[Any]) -> None:
        """Says what the request would cost where it would run now: at most, and as your own requests to the model
        usually do. Nothing runs, and nothing is held or charged.
        """
        wanted = await intent(call)
        found = await quote(call.runtime, call.principal, wanted, call.id)
        costs = {MOST: format_credits(found.most), PROBABLY: format_credits(found.half)}
        headers = {**found.counted.headers, **costs, **not_enforced_header(wanted.not_enforced)}
        await send_json(call.send, 200, told(found), headers)

    quoted.__name__ = f"{of.name}_quote"
    return replace(
        of,
        path=f"{of.path}/quote",
        function=quoted,
        summary=f"Quote: {of.summary[0].lower()}{of.summary[1:]}",
        gives=Quote,
        streams=None,
        work=Work.QUOTES,
        keeps=False,
        caller=caller,
    )


def told(found: Quoted) -> Quote:
    """Return a quote as clients see it."""
    prepared, lengths, cliff = found.counted.prepared, found.usual.lengths, found.cliff
    return Quote(
        model=found.counted.model,
        context_length=found.context,
        input_tokens=prepared.prompt_tokens,
        is_exact=prepared.exact,
        cached_tokens=found.cached,
        output_tokens=QuotedOutput(found.max_output, lengths.p50, lengths.p90, found.usual.basis, lengths.requests),
        at_most=format_credits(found.most),
        at_most_micro=found.most,
        probably=format_credits(found.half),
        probably_micro=found.half,
        nine_in_ten=format_credits(found.nine_in_ten),
        nine_in_ten_micro=found.nine_in_ten,
        rate_card_version=str(found.card.id),
        multiplier_bp=found.multiplier_bp,
        near_tier=None
        if cliff is None
        else QuotedTier(cliff.context, format_credits(cliff.below), format_credits(cliff.above)),
    )
