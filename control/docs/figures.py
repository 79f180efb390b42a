"""An installation's own figures beside a concept: a tenant's from its usage, the operator's from the engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median

from django.http import HttpRequest

from base.units import format_credits
from billing.selectors.usage import UsageSum, recent_usage, usage_by_day, usage_of_all
from control.console.catalogue import active_subscription, offers_of
from control.console.tenancy import Place
from control.operate.base import Desk
from control.screens.figures import show_charge
from gateway.runtime.data_plane import DeploymentState, live_of
from inference.types import Work
from tenancy.models import User

DAYS = 7
_SEES_ENGINES = "routing.view_deployment"
LATEST = 200
"""So many of the latest requests have a say in medians."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its name and what it says."""

    name: str
    value: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """Figures of one owner; `empty` says what would make some where there are none."""

    whose: str
    figures: tuple[Figure, ...]
    empty: str = ""


@dataclass(frozen=True, slots=True)
class _Sums:
    requests: int
    computed: int
    cached: int
    generated: int
    charge: int

    @classmethod
    def of(cls, rows: Iterable[UsageSum]) -> _Sums:
        every = [(r.requests, r.input_tokens, r.cache_read_tokens, r.output_tokens, r.charge) for r in rows]
        return cls(*(sum(column) for column in zip(*every, strict=True))) if every else cls(0, 0, 0, 0, 0)

    @property
    def prompt(self) -> int:
        return self.computed + self.cached


def panels_of(request: HttpRequest, place: Place | None, name: str) -> list[Panel]:
    """Return the panels of that name that the reader may see."""
    panels = []
    if place is not None:
        found = tuple(_OF_TENANT[name](request, place))
        hint = "Send a first request, in the chat or by a key: its figures stand here a moment later."
        panels.append(Panel(place.tenant.name, found, "" if found else hint))
    if isinstance(request.user, User) and request.user.is_staff and Desk(request.user).may(_SEES_ENGINES):
        found = tuple(_of_engines(request, name))
        panels.append(Panel("All tenants", found, "" if found else "No engine of this installation tells figures now."))
    return panels


def _recent_sums(place: Place) -> _Sums:
    today = datetime.now(tz=UTC).date()
    return _Sums.of(usage_by_day(place.tenant.id, today - timedelta(days=DAYS - 1), today))


def _metering(request: HttpRequest, place: Place) -> Iterable[Figure]:
    sums = _recent_sums(place)
    if sums.requests:
        yield Figure("Spent", f"{show_charge(sums.charge)} credits", f"in {DAYS} days, by {sums.requests:,} requests")
        yield Figure("A request", f"{show_charge(sums.charge // sums.requests)} credits", "on average")
        yield Figure(
            "Tokens", f"{sums.prompt + sums.generated:,}", f"{_share(sums.cached, sums.prompt)} of prompts cached"
        )


def _speed(request: HttpRequest, place: Place) -> Iterable[Figure]:
    latest = recent_usage(place.tenant.id, limit=LATEST)
    firsts = [one.ttft_ms for one in latest if one.ttft_ms is not None]
    if firsts:
        yield Figure("First token", f"{median(firsts):,.0f} ms", f"after a request, the median of {len(firsts)}")
    speeds = [
        (one.completion_tokens - 1) * 1000 / (one.duration_ms - one.ttft_ms)
        for one in latest
        if one.ttft_ms is not None and one.duration_ms is not None and one.duration_ms > one.ttft_ms
        if one.completion_tokens > 1
    ]
    if speeds:
        yield Figure("Then", f"{median(speeds):,.0f} tokens/s", "of one answer, the median")


def _memory(request: HttpRequest, place: Place) -> Iterable[Figure]:
    prompts = [one.input_tokens + one.cache_read_tokens for one in recent_usage(place.tenant.id, limit=LATEST)]
    if prompts:
        yield Figure("A prompt", f"{median(prompts):,.0f} tokens", f"the median of your latest {len(prompts)}")
        yield Figure("The longest", f"{max(prompts):,} tokens", "of those")


def _caching(request: HttpRequest, place: Place) -> Iterable[Figure]:
    sums = _recent_sums(place)
    if sums.prompt:
        yield Figure("Cached", _share(sums.cached, sums.prompt), f"of your prompts' tokens in {DAYS} days")
        yield Figure("Not computed again", f"{sums.cached:,} tokens", f"of {sums.prompt:,}")


def _models(request: HttpRequest, place: Place) -> Iterable[Figure]:
    live = live_of(request)
    for offer in offers_of(live, live.catalogue(), active_subscription(place.tenant)):
        about = f"{offer.card.context_length:,} tokens of context"
        yield Figure(offer.entry.name, "ready" if offer.is_ready else "not ready", about)


def _limits(request: HttpRequest, place: Place) -> Iterable[Figure]:
    subscription = active_subscription(place.tenant)
    if subscription is None:
        return
    terms = subscription.version
    yield Figure("Plan", terms.plan.name)
    yield Figure(
        "Requests", f"{terms.request_limit:,}", f"in {terms.request_period_s} s, {terms.request_burst:,} at once"
    )
    yield Figure("Credits", format_credits(terms.credit_limit), f"in {terms.credit_period_s} s")
    if terms.token_limit is not None:
        yield Figure("Tokens", f"{terms.token_limit:,}", f"in {terms.token_period_s} s")
    yield Figure("At the same time", f"{terms.concurrency:,} requests", "further ones wait in your own queue")


_OF_TENANT: dict[str, Callable[[HttpRequest, Place], Iterable[Figure]]] = {
    "metering": _metering,
    "speed": _speed,
    "memory": _memory,
    "caching": _caching,
    "batching": _speed,
    "models": _models,
    "limits": _limits,
}


def _of_engines(request: HttpRequest, name: str) -> Iterable[Figure]:
    """Yield figures of all engines together, since they were loaded."""
    states = list((live_of(request).deployment_states() or {}).values())
    works = [state.work for state in states if state.work is not None and state.work.steps]
    work = sum(works[1:], works[0]) if works else None
    if name == "metering":
        today = datetime.now(tz=UTC).date()
        sums = _Sums.of(usage_of_all(today - timedelta(days=DAYS - 1), today))
        if sums.requests:
            yield Figure("Burnt", f"{show_charge(sums.charge)} credits", f"in {DAYS} days, {sums.requests:,} requests")
    elif name == "limits" or not states:
        return
    elif name == "models":
        yield from _precisions(states)
    elif name == "memory":
        fullest = max(states, key=lambda state: state.kv_used)
        yield Figure("In use", f"{fullest.kv_used:.0%}", "of the fullest engine's blocks")
        yield Figure("Kept prefixes", f"{fullest.kv_cached:.0%}", "of them, given up when room is needed")
    elif name == "batching":
        yield Figure("Now", f"{sum(state.running for state in states):,} running", _waiting(states))
    if work is not None:
        yield from _of_work(name, work)


def _of_work(name: str, work: Work) -> Iterable[Figure]:
    if name == "speed":
        decoding = work.seconds - work.prefill_seconds
        if work.prefill_seconds > 0:
            yield Figure("Prefill", f"{work.prompt_tokens / work.prefill_seconds:,.0f} tokens/s", "of prompts computed")
        if decoding > 0:
            yield Figure("Decode", f"{work.output_tokens / decoding:,.0f} tokens/s", "of all answers together")
    elif name == "caching" and work.prompt_tokens + work.cached_tokens:
        share = _share(work.cached_tokens, work.prompt_tokens + work.cached_tokens)
        yield Figure("Cached", share, "of all prompts' tokens since the engines were loaded")
    elif name == "batching":
        yield Figure("In a step", f"{work.rows / work.steps:.1f} rows", f"on average of {work.steps:,} steps")


def _precisions(states: Sequence[DeploymentState]) -> Iterable[Figure]:
    for state in states:
        details = state.details
        if precision := details.get("quantization") or details.get("dtype"):
            yield Figure("Weights", precision, details.get("architecture", ""))


def _waiting(states: Sequence[DeploymentState]) -> str:
    return f"{sum(state.waiting for state in states):,} waiting"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "0%"
