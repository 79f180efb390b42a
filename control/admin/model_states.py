"""Whether models answer now, and why not, as this gateway sees their engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.utils.safestring import SafeString

from billing.admin.base import state_mark, two_lines
from billing.models import Subscription
from fleet.adapters import own_terms
from gateway.runtime.data_plane import DeploymentState, Live
from gateway.runtime.engines import AdapterPlace
from routing.models import Adapter, PublicModel

_TONES = {"ready": "good", "loading": "warn", "refused": "bad", "not ready": "bad"}
_RANKED = ("ready", "refused", "loading", "not ready")  # of several replicas the first of these is the model's state
NO_GATEWAY = "no gateway runs in this process"


def columns_of(live: Live) -> list[Callable[[PublicModel], Any]]:
    """Return the columns of models that tell their state and what serves them, with the reason where there is one."""
    states = live.deployment_states()

    @admin.display(description="State")
    def state(model: PublicModel) -> SafeString:
        word = _state_of(live, states, model)[0]
        return state_mark(word, _TONES.get(word, "quiet"))

    @admin.display(description="Served by", ordering="active_count")
    def serving(model: PublicModel) -> SafeString:
        return two_lines(served_by(model), _state_of(live, states, model)[1])

    return [state, serving]


def state_field(live: Live) -> Callable[[PublicModel], str]:
    """Return the field of a model's page that tells its state, with the reason where there is one."""
    states = live.deployment_states()

    @admin.display(description="State")
    def state(model: PublicModel) -> str:
        return ": ".join(filter(None, _state_of(live, states, model)))

    return state


@admin.display(description="Served by")
def served_by(model: PublicModel) -> str:
    """How many active deployments serve it; of an adapter its base, and whose it is."""
    adapter = _adapter_of(model)
    if adapter is None:
        count: int = model.active_count  # type: ignore[attr-defined] # annotated by the admin
        return f"{count} deployment{'s' * (count != 1)}"
    whose = f", only {model.project or model.tenant}" if model.tenant is not None else ""
    return f"adapter of {adapter.base.name}{whose}"


def _state_of(live: Live, states: Mapping[UUID, DeploymentState] | None, model: PublicModel) -> tuple[str, str]:
    if not model.is_active:
        return "off", ""
    if states is None:
        return "unknown", NO_GATEWAY
    adapter = _adapter_of(model)
    if adapter is not None:
        if obstacle := _plan_obstacle(live, model):
            return "not served", obstacle
        known = live.adapter(adapter.base.name, str(adapter.id))
        return _adapter_state([] if known is None else known.places, adapter)
    found = [states[one.pk] for one in model.deployments.all() if one.is_active and one.pk in states]
    reasons = "; ".join(dict.fromkeys(one.reason for one in found if one.reason))
    return "ready" if any(one.is_ready for one in found) else "not ready", reasons


def _plan_obstacle(live: Live, model: PublicModel) -> str:
    """Return why the plan of the tenant whose own model it is doesn't serve it; "" where it does."""
    entry = live.catalogue().models.get(model.name)
    if entry is None or model.tenant is None:
        return ""
    active = [one.version for one in model.tenant.subscriptions.all() if one.state == Subscription.State.ACTIVE]
    return entry.own_obstacle(own_terms(active[0] if active else None, model.tenant_id))


def _adapter_state(places: Sequence[AdapterPlace], adapter: Adapter) -> tuple[str, str]:
    """Return the adapter's best state, and how it is at each replica of its base."""
    if not places:
        return "not ready", f"no engine of {adapter.base.name} runs"
    told = [": ".join(filter(None, (place.node if len(places) > 1 else "", _told(place)))) for place in places]
    return min((place.state for place in places), key=_RANKED.index), "; ".join(told)


def _told(place: AdapterPlace) -> str:
    if place.state == "ready":
        return "in memory" if place.in_memory else "not in memory, read when the next request wants it"
    if place.state == "loading":
        return "its worker hasn't read it yet"
    return place.reason


def _adapter_of(model: PublicModel) -> Adapter | None:
    found: Adapter | None = getattr(model, "adapter", None)
    return found
