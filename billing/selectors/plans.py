"""Who has which plan."""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

from django.db.models import Count

from billing.models import Subscription


def tenants_by_plan() -> dict[UUID, dict[int, int]]:
    """Return how many tenants have each plan now, by plan and the number of its version."""
    active = Subscription.objects.filter(state=Subscription.State.ACTIVE)
    rows = active.order_by().values_list("version__plan", "version__number").annotate(tenants=Count("pk"))
    found: dict[UUID, dict[int, int]] = defaultdict(dict)
    for plan, number, tenants in rows:
        found[plan][number] = tenants
    return found


def tenants_with_models(models: list[str]) -> dict[UUID, int]:
    """Return how many tenants have each plan now on terms that include one of the models, by plan."""
    active = Subscription.objects.filter(state=Subscription.State.ACTIVE).order_by()
    counts = active.values_list("version__plan", "version__allowed_models").annotate(tenants=Count("pk"))
    found: dict[UUID, int] = defaultdict(int)
    for plan, allowed, tenants in counts:
        if not allowed or set(allowed) & set(models):
            found[plan] += tenants
    return found
