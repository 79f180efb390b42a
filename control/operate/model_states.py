"""Whether models answer now, and why not, as a gateway sees their engines; how much they are used, at which price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone

from billing.models import PlanVersion, Subscription
from billing.rating import CardPrices, charge
from billing.selectors.usage import usage_of_all
from control.screens.tables import State
from fleet.adapters import own_terms
from gateway.runtime.data_plane import DeploymentState, Live
from gateway.runtime.engines import AdapterPlace
from routing.models import Adapter, PublicModel

TONES = {"ready": "good", "loading": "warn", "refused": "bad", "not ready": "bad", "no price": "warn"}
_RANKED = ("ready", "refused", "loading", "not ready")  # of several replicas the first of these is the model's state
NO_GATEWAY = "no gateway answers"
DAYS = 30
MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Standing:
    """A model's state in a word, with the reason, and how many of its replicas are ready."""

    word: str
    reason: str = ""
    ready: int = 0
    replicas: int = 0

    @property
    def state(self) -> State:
        """The state with its icon and colour."""
        return State(self.word, TONES.get(self.word, ""))

    @property
    def count(self) -> str:
        """The replicas in words; empty where there are none."""
        return f"{self.ready} of {self.replicas} ready" if self.replicas else ""


def standing_of(
    live: Live, states: Mapping[UUID, DeploymentState] | None, prices: Mapping[str, CardPrices], model: PublicModel
) -> Standing:
    """Return how the model is; its deployments and adapter are prefetched."""
    if not model.is_active:
        return Standing("withdrawn")
    adapter = adapter_of(model)
    if adapter is not None:
        return _adapter_standing(live, model, adapter, is_seen=states is not None)
    if card_of(model) not in prices:
        return Standing("no price", "Nobody is served until it has one.")
    if states is None:
        return Standing("unknown", NO_GATEWAY)
    found = [states[one.pk] for one in model.deployments.all() if one.is_active and one.pk in states]
    reasons = "; ".join(dict.fromkeys(one.reason for one in found if one.reason))
    replicas = [replica for one in found for replica in one.replicas]
    ready = sum(not replica.obstacle for replica in replicas)
    word = "ready" if any(one.is_ready for one in found) else "not ready"
    return Standing(word, reasons or ("" if found else "no deployment of it is open"), ready, len(replicas))


def _adapter_standing(live: Live, model: PublicModel, adapter: Adapter, *, is_seen: bool) -> Standing:
    if not is_seen:
        return Standing("unknown", NO_GATEWAY)
    if obstacle := _plan_obstacle(live, model):
        return Standing("not served", obstacle)
    known = live.adapter(adapter.base.name, str(adapter.id))
    places: Sequence[AdapterPlace] = [] if known is None else known.places
    if not places:
        return Standing("not ready", f"no engine of {adapter.base.name} runs")
    told = [": ".join(filter(None, (place.node if len(places) > 1 else "", _told(place)))) for place in places]
    word = min((place.state for place in places), key=_RANKED.index)
    return Standing(word, "; ".join(told), sum(place.state == "ready" for place in places), len(places))


def _plan_obstacle(live: Live, model: PublicModel) -> str:
    """Return why the plan of the tenant whose own model it is doesn't serve it; "" where it does."""
    entry = live.catalogue().models.get(model.name) if model.tenant is not None else None
    if entry is None or model.tenant is None:
        return ""
    active = [one.version for one in model.tenant.subscriptions.all() if one.state == Subscription.State.ACTIVE]
    return entry.own_obstacle(own_terms(active[0] if active else None, model.tenant_id))


def _told(place: AdapterPlace) -> str:
    if place.state == "ready":
        return "in memory" if place.in_memory else "not in memory, read when the next request wants it"
    if place.state == "loading":
        return "its worker hasn't read it yet"
    return place.reason


def adapter_of(model: PublicModel) -> Adapter | None:
    """Return what makes the model out of its base, None for a model with weights of its own."""
    found: Adapter | None = getattr(model, "adapter", None)
    return found


def card_of(model: PublicModel) -> str:
    """Return the name of the price list that prices the model; an adapter without one has its base's."""
    adapter = adapter_of(model)
    return model.rate_card or (adapter.base.rate_card if adapter is not None else "")


# -- plans, traffic, money ---------------------------------------------------------------------------------------------


def plans_with(name: str, versions: Sequence[PlanVersion]) -> list[PlanVersion]:
    """Return the plans whose newest terms include the model."""
    return [one for one in versions if not one.allowed_models or name in one.allowed_models]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of some days for one model, and what they were charged; of those whose deployment was calibrated the
    operator's `cost` and their charge, `costed`.
    """

    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    charge: int = 0
    cost: int = 0
    costed: int = 0


def traffic() -> dict[str, Traffic]:
    """Return the traffic of the last DAYS days by model."""
    last = timezone.now().date()
    found: dict[str, Traffic] = {}
    for one in usage_of_all(last - timedelta(days=DAYS - 1), last):
        had = found.get(one.model or "", Traffic())
        found[one.model or ""] = Traffic(
            had.requests + one.requests,
            had.input_tokens + one.input_tokens,
            had.cached_tokens + one.cache_read_tokens,
            had.output_tokens + one.output_tokens,
            had.charge + one.charge,
            had.cost + one.cost,
            had.costed + one.costed,
        )
    return found


def thousand(card: CardPrices | None, usage_class: str) -> int | None:
    """Return what a thousand tokens of the class cost, without the fee of their request."""
    return None if card is None else charge({usage_class: 1_000}, card, 10_000) - card.request_fee


@dataclass(frozen=True, slots=True)
class Cost:
    """The operator's cost of traffic in µcr, and the charge of that traffic."""

    amount: int
    charge: int
    source: str  # "measured" or "entered"

    @property
    def margin(self) -> str:
        """The share of the charge that stays; a dash where nothing was charged."""
        return margin(self.charge, self.amount) or "–"


def cost_of(model: PublicModel | None, used: Traffic) -> Cost | None:
    """Return the cost of a model's traffic: as measured where its deployment was calibrated when it came, else by the
    cost that was entered; None where neither is known.
    """
    if used.cost or used.costed:
        return measured_cost(used.cost, used.costed)
    if model is None or model.cost_input is None or model.cost_output is None:
        return None
    tokens = used.input_tokens + used.cached_tokens
    entered = (tokens * model.cost_input + used.output_tokens * model.cost_output) // MILLION
    return Cost(entered, used.charge, "entered")


def measured_cost(cost: int, costed: int) -> Cost | None:
    """Return the measured cost of traffic whose charge is `costed`; None of none."""
    return Cost(cost, costed, "measured") if cost or costed else None


def margin(price: int, cost: int | None) -> Any:
    """Return the share of the price that stays, None where the cost isn't known or nothing is paid."""
    return None if cost is None or not price else f"{100 * (price - cost) / price:.0f} %"
