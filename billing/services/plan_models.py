"""More models for a plan: a new version that differs in them alone, and its subscribers moved to that."""

from __future__ import annotations

from collections.abc import Collection

from django.db import transaction

from billing.models import Plan, PlanVersion, Subscription
from billing.services.plans import TERMS, change_plan, latest_version, publish_version


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
    latest = latest_version(slug)
    older = Subscription.objects.filter(state=Subscription.State.ACTIVE, version__plan=latest.plan)
    moved = stay = 0
    for subscription in older.exclude(version=latest).select_related("version").order_by("pk"):
        if subscription.next_version_id is None and _only_adds(latest, subscription.version):
            change_plan(subscription.tenant_id, slug)
            moved += 1
        else:
            stay += 1
    return moved, stay


def _only_adds(latest: PlanVersion, version: PlanVersion) -> bool:
    others = (name for name in TERMS if name != "allowed_models")
    is_same = all(getattr(latest, name) == getattr(version, name) for name in others)
    return (
        is_same
        and bool(version.allowed_models)
        and (not latest.allowed_models or set(version.allowed_models) <= set(latest.allowed_models))
    )
