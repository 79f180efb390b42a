"""More models for a plan: a new version that differs in them alone, and its subscribers moved to that."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from django.db import transaction

from billing.models import Plan, PlanVersion, Subscription
from billing.services.plans import TERMS, change_plan, latest_version, publish_version
from billing.services.wallets import lock, open_wallet


@transaction.atomic
def include_models(slug: str, models: Collection[str]) -> PlanVersion:
    """Publish a version of the plan that includes `models` too, and return it; the latest where that does already.

    No subscription changes. Raise PlanError for an unknown plan.
    """
    latest_version(slug)  # refuses an unknown plan
    Plan.objects.filter(slug=slug).update(slug=slug)  # the row's lock: nobody publishes between reading and writing
    last = latest_version(slug)
    added = [model for model in dict.fromkeys(models) if model not in last.allowed_models]
    if not last.allowed_models or not added:
        return last
    return publish_version(last.plan, allowed_models=[*last.allowed_models, *added])


def move_subscribers(slug: str) -> tuple[int, int]:
    """Move the plan's subscribers to its latest version where that only adds models to what they have; return how many
    moved, and how many stay with an older version: its other terms differ, or a change of plan is scheduled.
    """
    older = Subscription.objects.filter(state=Subscription.State.ACTIVE, version__plan__slug=slug)
    older = older.exclude(version=latest_version(slug))
    told = [moved(tenant, slug) for tenant in list(older.order_by("pk").values_list("tenant_id", flat=True))]
    return told.count(True), told.count(False)


@transaction.atomic
def moved(tenant_id: UUID, slug: str) -> bool | None:
    """Move the tenant if its subscription as it is now may be moved, and return whether; None where it has the plan no
    more, or its latest version: others go on changing plans meanwhile.
    """
    lock(open_wallet(tenant_id=tenant_id).pk)  # as every change of a plan does
    Plan.objects.select_for_update(no_key=True).get(slug=slug)  # and as every publication does
    active = Subscription.objects.filter(tenant_id=tenant_id, state=Subscription.State.ACTIVE, version__plan__slug=slug)
    present, latest = active.select_related("version").first(), latest_version(slug)
    if present is None or present.version_id == latest.pk:
        return None
    if present.is_ending or present.next_version_id is not None or not _only_adds(latest, present.version):
        return False
    change_plan(tenant_id, slug)
    return True


def _only_adds(latest: PlanVersion, version: PlanVersion) -> bool:
    others = (name for name in TERMS if name != "allowed_models")
    is_same = all(getattr(latest, name) == getattr(version, name) for name in others)
    return (
        is_same
        and bool(version.allowed_models)
        and (not latest.allowed_models or set(version.allowed_models) <= set(latest.allowed_models))
    )
