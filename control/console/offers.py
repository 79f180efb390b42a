"""What a tenant's plan offers now: its models with their prices, as pages show them."""

from __future__ import annotations

from dataclasses import dataclass

from billing.models import Subscription
from fleet.adapters import own_terms
from gateway.apis.models.wire import ModelCard, model_card
from gateway.runtime.live import Live
from routing.catalogue import Catalogue, ModelEntry
from tenancy.models import Tenant


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that the plan includes, its card with the plan's prices, and whether it answers now."""

    entry: ModelEntry
    card: ModelCard
    is_ready: bool


def active_subscription(tenant: Tenant) -> Subscription | None:
    """Return the tenant's subscription with its terms, and those that follow."""
    active = Subscription.objects.filter(tenant=tenant, state=Subscription.State.ACTIVE)
    return active.select_related("version__plan", "next_version").first()


def offers_of(live: Live, catalogue: Catalogue, subscription: Subscription | None) -> list[Offer]:
    """Return the models that the plan includes, by name."""
    if subscription is None:
        return []
    version = subscription.version
    own = own_terms(version, subscription.tenant_id)
    prices = live.prices()
    return [
        Offer(
            entry,
            model_card(entry, prices.get(entry.rate_card), version.multiplier_bp),
            any(not live.usable(replica.id) for replica in catalogue.replicas_of(name)),
        )
        for name, entry in sorted(catalogue.models.items())
        if (not version.allowed_models or name in version.allowed_models or entry.tenant is not None)
        and not entry.is_hidden_from(own)
        and not entry.own_obstacle(own)
    ]
