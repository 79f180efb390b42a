"""A request's credit: its prices, its hold, and the meter of what it has used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec
import structlog
from django.utils.crypto import salted_hmac

from billing import rating
from billing.limits.types import Waiting
from billing.rating import CardPrices
from billing.services.budgets import bearing
from billing.writer.entry import WriterError
from billing.writer.operations import Answer, BudgetTerms, Extend, Held, Refused, Repin, RequestFacts, Reserve, Stale
from gateway.concurrency import credit_key
from gateway.durable.delivery import delivering
from gateway.errors.faults import ledger_unavailable, reason_of_hold, refusal_of_hold
from gateway.errors.refusal import Refusal
from gateway.generation.placement import Placement
from gateway.runtime.principals import Principal
from gateway.runtime.runtime import Ledger, Runtime
from inference.types import Prepared, Usage

LARGEST_SLICE = 4096
CREDIT = "credit_exhausted"


class HoldRequest(msgspec.Struct, frozen=True):
    """A hold to ask for: `amount` µcr wanted, `least` acceptable; both absolute.

    `is_final` when the allowance is used up: a refusal then means that the credit is.
    """

    amount: int
    least: int
    is_final: bool = False


class Meter:
    """Prices one request with a pinned card version.

    `allowance` is the output that the hold pays for after the prompt: at the most expensive classes until `started`
    says what the prompt really is, at the actual classes from then on. No token beyond it may be generated. `restart`
    goes back to the most expensive classes. Output of the cheaper class makes it grow, and the engine knows nothing of
    that: it generates no more than `permit` told last, so that decides when more is told or asked for.

    Where the engine can't extend a running request, the first hold is the only one: for all of `max_output`, or what
    the credit allows. Such an engine counts by itself, and a prompt that it counts shorter may have dearer rates.
    """

    def __init__(
        self,
        card: CardPrices,
        multiplier_bp: int,
        *,
        prompt_tokens: int,
        max_output: int,
        slice_tokens: int,
        can_extend: bool = True,
    ) -> None:
        self.card = card
        self.multiplier_bp = multiplier_bp
        self.max_output = max_output
        self.held = 0
        self.short_of: str | None = None  # why no more can be held though more could be generated
        self.usage = Usage()
        self._allowance: int | None = None  # true until `held` or the usage changes
        self._told = (0, False)  # the allowance that the engine has, which is never above the meter's, and is it final
        self._refused_at: int | None = None  # what the engine had been told when no more credit could be held
        self._prompt_tokens = prompt_tokens
        self._holding = card if can_extend else card.dearest_up_to(prompt_tokens)
        self._dearest = rating.dearest_input(prompt_tokens, self._holding)
        self._classes: dict[str, int] | None = self._dearest  # None: those of `usage`
        self._output_class = rating.dearest_output_class(prompt_tokens, self._holding)
        self._slice = min(slice_tokens, max_output) if can_extend else max_output
        self._largest_slice = max(slice_tokens, LARGEST_SLICE)
        self.can_extend = can_extend
        self._is_early = False

    def first_hold(self, most: int) -> HoldRequest:
        """Return the first hold: the prompt and a slice of output, but at most `most` µcr if one token fits in that.

        Where nothing can be held later, what `most` doesn't pay for is taken off `max_output`.
        """
        least = self._cost(min(1, self.max_output))
        if not self.can_extend and self.max_output:
            affordable = rating.output_tokens_for(most, self._paid(), self._holding, self.multiplier_bp)
            self.max_output = self._slice = min(self.max_output, max(affordable, 1))
            self._allowance = None
        return HoldRequest(amount=max(least, min(self._cost(self._slice), most)), least=least)

    def first_tokens(self, most: int | None) -> int:
        """Return the tokens of the prompt and the first slice of output, but at most `most` if one token of output fits
        in that: what the rate of tokens is asked for.
        """
        tokens = self._prompt_tokens + self._slice
        return tokens if most is None else min(tokens, max(most, self._prompt_tokens + min(1, self.max_output)))

    @property
    def most(self) -> int:
        """The µcr that the request may cost, before anything of it ran: all of `max_output` at the dearest classes."""
        return self._cost(self.max_output)

    @property
    def allowance(self) -> int:
        """Output tokens permitted in all."""
        if self._allowance is None:
            more = rating.output_tokens_for(self.held, self._paid(), self._holding, self.multiplier_bp)
            self._allowance = min(self.max_output, self.usage.completion + more)
        return self._allowance

    @property
    def allowed(self) -> tuple[int, bool]:
        """The allowance and whether it is final, as the engine takes them."""
        allowance = self.allowance
        return allowance, self.short_of is not None or allowance >= self.max_output or not self.can_extend

    def permit(self) -> tuple[int, bool]:
        """Return what is allowed, which the engine is told now."""
        self._told = self.allowed
        return self._told

    @property
    def is_short(self) -> bool:
        """Whether the engine has nearly generated what it was told, so that it is to be told or to ask for more.

        Asked at every token, so it works nothing out.
        """
        return self.can_extend and not self._told[1] and self._told[0] - self.usage.completion <= self._reach

    @property
    def has_more(self) -> bool:
        """Whether the engine is to be told more: all there is, or at least as much as it has left.

        Each time it hears of half of what is left or more, so it hears of the last tokens in a few steps.
        """
        told, allowed = self._told[0], self.allowed
        return allowed != self._told and (allowed[1] or allowed[0] - told >= told - self.usage.completion)

    def granted(self, total: int) -> None:
        """Note that `total` µcr are held."""
        self.held = max(self.held, total)
        self._allowance = None
        if not self.can_extend and self.allowance < self.max_output:
            self.short_of = CREDIT

    def ask_early(self) -> None:
        """Ask for more when less than a whole slice is left, not half: answers take long."""
        self._is_early = True

    def started(self, cached_tokens: int) -> None:
        """Note how many prompt tokens were cached."""
        cached = {"cache_read": cached_tokens} if cached_tokens else {}
        uncached = self._prompt_tokens - cached_tokens
        classes = ({"input": uncached} if uncached > 0 else {}) | cached
        if classes != self._classes:  # else it is the prompt that the hold was for, as without a cache
            self._classes, self._allowance = classes, None

    def restart(self) -> None:
        """Note that another engine begins the request anew: until it has started, its prompt may cost the most.

        What was cached and told at the engine before it says nothing of this one.
        """
        self._classes, self._allowance, self._told = self._dearest, None, (0, False)

    def used(self, usage: Usage) -> None:
        """Note the usage so far."""
        self.usage, self._classes, self._allowance = usage, None, None

    def next_hold(self) -> HoldRequest | None:
        """Return the next hold to ask for, twice the slice, when less than half a slice is left; else None.

        Since slices double, each answer may take twice as long as the one before it. After a refusal nothing is asked
        until the engine has used up what it was told: others may have given credit back by then.
        """
        if not self.is_short:
            return None
        allowance = self.allowance
        left = allowance - self.usage.completion
        if self.short_of is not None or allowance >= self.max_output or left > self._reach:
            return None
        if left and self._refused_at == self._told[0]:
            return None
        wanted = min(self._slice * 2, self._largest_slice, self.max_output - allowance)
        return HoldRequest(amount=self._cost(left + wanted), least=self._cost(left + 1), is_final=not left)

    def extended(self, request: HoldRequest, total: int) -> None:
        """Take note of an extension's answer; a short one leaves the slice as it is."""
        self.granted(total)
        if total >= request.amount:
            self._slice = min(self._slice * 2, self._largest_slice)

    def refused(self, request: HoldRequest, why: str = CREDIT) -> None:
        """Note that the hold could not be extended by even one token, and `why`."""
        self._refused_at = self._told[0]
        if request.is_final:
            self.short_of = why

    def charge(self, usage: Usage) -> int:
        """Return the µcr that `usage` costs."""
        return rating.charge(usage.classes(), self.card, self.multiplier_bp)

    @property
    def _reach(self) -> int:
        return self._slice if self._is_early else self._slice // 2

    def _paid(self) -> dict[str, int]:
        """Return the classes that are paid for before any more output."""
        return self.usage.classes() if self._classes is None else self._classes

    def _cost(self, more: int) -> int:
        """Return the charge of what was used (or of the prompt) and `more` output tokens at the dearest class."""
        classes = dict(self._paid())
        classes[self._output_class] = classes.get(self._output_class, 0) + more
        return rating.charge(classes, self._holding, self.multiplier_bp)


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
        principal.multiplier_at(card, placement.intent.tier),
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
    principal, model, facts = placement.principal, placement.route.model, facts_of(placement)
    end_user = facts.end_user
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
        model=model,
        multiplier_bp=price.meter.multiplier_bp,
        user=principal.user,
        facts=facts,
        budgets=bearing(principal.budgets, model=model, end_user=end_user),
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

    # Who waits for a budget keeps nobody waiting on whom it doesn't bear.
    wallet = credit_key(reserve.wallet)
    budgets = {terms.number: credit_key(reserve.wallet, terms.number) for terms in reserve.budgets.terms}

    def short_of(answer: Answer) -> str | None:
        if not isinstance(answer, Refused) or answer.freed < reserve.least:
            return None
        return budgets.get(answer.budget, wallet)

    keys = (*budgets.values(), wallet)
    try:
        answer = await runtime.requests.turns.take(keys, ask, short_of, since=since, until=until)
    except WriterError as error:
        log.warning("reserve_failed", error=str(error))
        raise ledger_unavailable() from error
    if isinstance(answer, Refused):
        raise refusal_of_hold(answer, reserve.least, reserve.budgets.terms)
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
        whole = msgspec.structs.replace(answer, available=held + answer.available)
        raise refusal_of_hold(whole, operation.least, placement.principal.budgets.terms)
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


RETRY_SECONDS = 0.2
HELD_SECONDS = 1.5  # less than an engine waits for a higher allowance


class Hold:
    """The hold of `request` and its `meter`, until it is closed: extended as it is used, and pinned anew, at other
    prices, where the request moves before its first token. The meter says when to ask for more; the engine is told its
    allowance whenever that changes.

    `tell` tells the engine an allowance and whether it is final; `lost` is called when the hold turns out not to be
    ours any more; `supervise` runs work to its end.
    """

    def __init__(
        self,
        request: UUID,
        wallet: UUID,
        meter: Meter,
        ledger: Ledger,
        budgets: Sequence[BudgetTerms],
        *,
        tell: Callable[[int, bool], Awaitable[None]],
        lost: Callable[[], None],
        supervise: Callable[[Coroutine[Any, Any, Any]], object],
    ) -> None:
        self.meter = meter
        self.is_closed = False
        self.was_short = False  # credit that it asked for was refused, at least for a while
        self._request = request
        self._wallet = wallet
        self._ledger = ledger
        self._budgets = budgets
        self._tell: Callable[[int, bool], Awaitable[None]] | None = tell  # None once it is closed
        self._lost: Callable[[], None] | None = lost
        self._supervise = supervise
        self._extending: Meter | None = None  # the one for which more is asked

    def permit(self) -> tuple[int, bool]:
        """Return what the engine may generate, as that which it is told."""
        return self.meter.permit()

    def started(self, cached_tokens: int) -> None:
        """Note how much of the prompt was cached."""
        self.meter.started(cached_tokens)
        self._follow()

    def restart(self) -> None:
        """Note that the engine that has it delivered nothing: the next one may have none of the prompt cached."""
        self.meter.restart()

    def used(self, usage: Usage) -> None:
        """Note the usage so far."""
        self.meter.used(usage)
        self._follow()

    async def pin(self, placement: Placement, prepared: Prepared) -> Prepared:
        """Pin the hold to where its placement is now and meter by the price there; see `pinned_anew`."""
        price = await pinned_anew(self._ledger, self._request, placement, prepared, held=self.meter.held)
        self.meter = price.meter
        return price.prepared

    def close(self) -> None:
        """Ask for nothing any more: the request has ended."""
        self.is_closed = True
        self._tell = self._lost = None  # they refer to the generation: both would stay until the collector finds them

    def _follow(self) -> None:
        """Tell the engine of more, or ask for more credit, where it has nearly generated what it was told."""
        meter = self.meter
        if not meter.is_short:
            return
        if meter.has_more:
            self._supervise(self._allow())
        more = None if self._extending is meter else meter.next_hold()
        if more is not None:
            self._extending = meter
            self._supervise(self._extend(meter, more))

    async def _allow(self) -> None:
        """Tell the engine what it may generate, where that is more than it knows."""
        if self._tell is not None and self.meter.has_more:
            await self._tell(*self.permit())

    async def _extend(self, meter: Meter, more: HoldRequest | None) -> None:
        """Hold more credit and raise the engine's allowance, for as long as the meter in use asks for more.

        What other requests hold is waited for, while the engine waits with this one.
        """
        patience = asyncio.get_running_loop().time() + HELD_SECONDS
        try:
            while more is not None and not self.is_closed and meter is self.meter:
                operation = Extend(request=self._request, wallet=self._wallet, amount=more.amount, least=more.least)
                try:
                    answer = await self._ledger.submit(operation)
                except WriterError as error:
                    log.warning("extend_failed", error=str(error))
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if isinstance(answer, Held):
                    meter.extended(more, answer.total)
                elif isinstance(answer, Refused):
                    self.was_short = True
                    is_held = answer.freed >= more.least
                    if is_held and more.is_final and asyncio.get_running_loop().time() < patience:
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    meter.refused(more, reason_of_hold(answer, self._budgets))
                elif self._lost is not None:
                    self._lost()
                    return
                await self._allow()
                more = meter.next_hold()
        finally:
            if self._extending is meter:
                self._extending = None
