"""Refusals of the API for the errors of other packages, and the faults that end a stream."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from base.errors import DatabaseBusyError
from base.units import format_credits
from billing.limits.types import Impossible, Limited, rate_headers, retry_after
from billing.periods import window_of
from billing.writer.operations import BudgetTerms, Refused
from gateway.errors.refusal import Refusal
from inference.errors import EngineError, InvalidRequestError, LimitedError, OverloadedError
from inference.types import EngineFault
from routing.errors import RoutingError

LEASE_LOST = EngineFault("lease_lost", "The gateway lost its claim on this request's credit.", retryable=True)
LEDGER_SLOW = EngineFault(
    "ledger_unavailable", "No more credit could be held in time, so the answer ends here.", retryable=True
)
READER_TOO_SLOW = EngineFault("reader_too_slow", "The answer was read too slowly, so it was ended.")
ENGINE_STOPPED = EngineFault("engine_stopped", "The engine stopped before the answer was complete.", retryable=True)
DRAINING = EngineFault("server_draining", "The server is stopping, so the answer was ended.", retryable=True)
INTERNAL = EngineFault("internal_error", "Something went wrong inside the server.", retryable=True)

_SOON = {"retry-after": "1"}
_ROUTING = {
    "model_wrong_kind": 400,
    "adapter_refused": 400,
    "images_not_supported": 400,
    "model_not_allowed": 403,
    "adapter_not_served": 403,
    "model_not_found": 404,
    "no_route": 404,
}


def refusal_of(error: Exception) -> Refusal | None:
    """Return what the API answers for `error`; None for an unexpected error."""
    match error:
        case Refusal():
            return error
        case RoutingError():
            return refusal_of_route(error)
        case EngineError():
            return refusal_of_engine(error)
        case DatabaseBusyError():
            return Refusal(503, "database_unavailable", str(error), headers=_SOON)
    return None


def refusal_of_route(error: RoutingError, plans: tuple[str, ...] = (), *, image_at: str = "") -> Refusal:
    """Return the refusal for a request that can't be routed; `plans` are those that include the model, if the tenant's
    doesn't, and `image_at` is the field of the request's first image.
    """
    if error.code == "beyond_ceiling":
        return Refusal(503, error.code, error.message, param="model", should_retry=False)
    status = _ROUTING.get(error.code)
    if status is None:
        return Refusal(503, error.code, error.message, headers=_SOON)
    message = error.message
    if error.code == "model_not_allowed" and plans:
        message = f"{message} It is part of {_listed(plans)}."
    at = image_at if error.code == "images_not_supported" else "model"
    return Refusal(status, error.code, message, param=at)


def refusal_of_key(model: str) -> Refusal:
    """Return the refusal for a model that the key isn't for."""
    return Refusal(403, "model_not_allowed", f"This key may not use the model '{model[:200]}'.", param="model")


def refusal_of_engine(error: EngineError) -> Refusal:
    """Return the refusal for a request that the engine refused; nothing ran."""
    if isinstance(error, InvalidRequestError):
        return Refusal(400, error.code, error.message, param=error.param)
    if isinstance(error, LimitedError):
        return Refusal(429, error.code, error.message, headers={"retry-after": str(error.seconds)})
    code = error.code if isinstance(error, OverloadedError) else "engine_unavailable"
    return Refusal(503, code, error.message, headers=_SOON)


def refusal_of_limit(decision: Limited | Impossible) -> Refusal:
    """Return the refusal (429 or 400) for a request beyond its tenant's rate limits."""
    if isinstance(decision, Impossible):
        amounts = (decision.cost, decision.burst)
        whose, what = _limit_of(decision.name)
        cost, burst = map(format_credits, amounts) if what == "credits" else map(str, amounts)
        message = f"This request needs {cost} {what} at once; {whose}'s burst is {burst}."
        return Refusal(400, "request_exceeds_burst", message, should_retry=False)
    headers = {**dict(rate_headers(decision.states)), "retry-after": retry_after(decision.retry_us)}
    if decision.name == "concurrency":
        message = "Your plan's number of requests at the same time is reached."
        return Refusal(429, "concurrency_limit_exceeded", message, headers=headers)
    if decision.name == "key_concurrency":
        message = "This key's number of requests at the same time is reached."
        return Refusal(429, "key_concurrency_limit_exceeded", message, headers=headers)
    whose, what = _limit_of(decision.name)
    message = f"{whose[0].upper()}{whose[1:]}'s rate of {what} is reached: try again in {headers['retry-after']} s."
    if what != decision.name:
        return Refusal(429, "key_rate_limit_exceeded", message, headers=headers)
    return Refusal(429, "rate_limit_exceeded", message, headers=headers)


def _limit_of(name: str) -> tuple[str, str]:
    """Return whose limit it is, and of what."""
    what = name.removeprefix("key_")
    return ("your plan" if what == name else "this key"), what


def reason_of_hold(refused: Refused, budgets: Iterable[BudgetTerms]) -> str:
    """Return what a stream is told that ends since no more could be held, by the limit that the ledger named."""
    if refused.limit == "wallet":
        return "credit_exhausted"
    if refused.limit == "wallet_frozen":
        return refused.limit
    return _code_of(_named(refused, budgets))


_A_WINDOW = {"day": "a day", "week": "a week", "month": "a month", "total": "in all"}
_WHOSE = {"tenant": "all", "project": "the project", "key": "this key", "member": "its member", "end_user": "the user"}


def _named(refused: Refused, budgets: Iterable[BudgetTerms]) -> BudgetTerms | None:
    return next((terms for terms in budgets if terms.number == refused.budget), None)


def _code_of(terms: BudgetTerms | None) -> str:
    return "key_spend_limit_exceeded" if terms is not None and terms.scope == "key" else "budget_exceeded"


def _in_words(terms: BudgetTerms) -> tuple[str, str]:
    """Return whose budget it is, and when it begins anew."""
    words = f"for {_WHOSE.get(terms.scope, 'this model')} {_A_WINDOW[terms.window]}"
    if terms.window == "total":
        return f"the budget “{terms.name}” {words}", "It doesn't reset: an owner has to raise it."
    end = window_of(terms.window, terms.anchor, terms.time_zone, datetime.now(UTC)).end
    return f"the budget “{terms.name}” {words}", f"It resets at {end:%Y-%m-%dT%H:%M:%SZ}."


def refusal_of_hold(refused: Refused, least: int, budgets: Iterable[BudgetTerms] = ()) -> Refusal:
    """Return the refusal for a request that needs `least` µcr, more than can be held now under the wallet and these
    budgets.
    """
    if refused.limit == "wallet_frozen":
        return Refusal(403, "wallet_frozen", "Your credit is frozen: ask your operator why.")
    available = format_credits(max(refused.available, 0))
    message = f"This request needs at least {format_credits(least)} credits and {available} are available."
    code, resets = "credit_balance_exhausted", ""
    if refused.limit != "wallet":
        terms = _named(refused, budgets)
        what, resets = ("a budget", "") if terms is None else _in_words(terms)
        message = f"This request needs at least {format_credits(least)} credits, and {available} are left of {what}."
        code = _code_of(terms)
    if refused.freed >= least:
        message = f"{message} Your other requests hold the rest until they end: try again then."
        return Refusal(429, "credit_held", message, headers=_SOON)
    return Refusal(402, code, f"{message} {resets}".strip(), should_retry=False)


def ledger_unavailable() -> Refusal:
    """Return the 503 for when credit can't be held since the ledger doesn't answer."""
    return Refusal(503, "ledger_unavailable", "Credit can't be held right now.", headers=_SOON)


def catalogue_unavailable() -> Refusal:
    """Return the 503 for when the current catalogue and prices can't be read."""
    return Refusal(503, "catalogue_unavailable", "The catalogue can't be read right now.", headers=_SOON)


def access_changed() -> Refusal:
    """Return the 503 for a request that was let in by terms which changed while it waited."""
    message = "What this key or account may do changed while the request waited: send it again."
    return Refusal(503, "access_changed", message, headers=_SOON)


def lock_lost() -> Refusal:
    """Return the 503 for when this gateway may have lost its lock to another one on its database."""
    return Refusal(503, "gateway_lock_lost", "This gateway has lost its claim on the database.", headers=_SOON)


def draining() -> Refusal:
    """Return the refusal of a gateway that is about to stop."""
    return Refusal(503, "server_draining", "This server is about to stop.", headers=_SOON)


def _listed(names: tuple[str, ...]) -> str:
    if len(names) == 1:
        return f"the plan {names[0]}"
    return f"the plans {', '.join(names[:-1])} and {names[-1]}"
