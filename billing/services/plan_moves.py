"""All tenants of a plan moved to the newest version of another, or of the same: asked for at once, done in chunks."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models import F, QuerySet

from base import clock
from billing.models import Plan, PlanMove, Subscription
from billing.services.errors import CreditError, PlanError
from billing.services.plan_models import moved
from billing.services.plans import change_plan, latest_version
from billing.services.wallets import lock, open_wallet

CHUNK = 20


@transaction.atomic
def ask(plan: Plan, to: Plan, *, at_once: bool = False, only_adds: bool = False, asked_by: str = "") -> PlanMove:
    """Have all tenants of the plan moved, as `change_plan` moves one; with `only_adds` to newer terms of the same plan,
    those who just get more models. Raise PlanError where nobody would move, and while an earlier move of it goes on.
    """
    latest_version(to.slug)
    Plan.objects.filter(pk=plan.pk).update(slug=plan.slug)  # the row's lock: one move of a plan at a time
    if PlanMove.objects.filter(plan=plan, ended_at=None).exists():
        raise PlanError(f"plan: the tenants of {plan} are being moved already")
    total = movable(plan, to).count()
    if not total:
        raise PlanError(f"to: every tenant of {plan} has these terms already")
    return PlanMove.objects.create(
        plan=plan, to=to, at_once=at_once, only_adds=only_adds, total=total, asked_by=asked_by
    )


def movable(plan: Plan, to: Plan) -> QuerySet[Subscription]:
    """Return the subscriptions to the plan that haven't the newest version of `to`."""
    active = Subscription.objects.filter(state=Subscription.State.ACTIVE, version__plan=plan)
    return active.exclude(version=latest_version(to.slug))


def turn() -> bool:
    """Move a chunk of the oldest move's tenants, and return whether more are to be moved."""
    move = PlanMove.objects.select_related("plan", "to").filter(ended_at=None).order_by("created_at").first()
    if move is None:
        return False
    rows = movable(move.plan, move.to).order_by("pk")
    if move.last is not None:
        rows = rows.filter(pk__gt=move.last)
    chunk = list(rows.values_list("pk", "tenant_id")[:CHUNK])
    for subscription, tenant in chunk:
        try:
            if not move.only_adds:
                _change(subscription, tenant, move)
            elif moved(tenant, move.to.slug) is False:
                raise PlanError("its other terms differ, or a change of plan is scheduled")
        except (CreditError, ValueError) as refused:
            told = {"refused": F("refused") + 1, "error": str(refused)[:300]}
        else:
            told = {"moved": F("moved") + 1}
        PlanMove.objects.filter(pk=move.pk, last=move.last).update(last=subscription, **told)
        move.last = subscription
    if len(chunk) < CHUNK:
        PlanMove.objects.filter(pk=move.pk, ended_at=None).update(ended_at=clock.now())
    return True


@transaction.atomic
def _change(subscription: UUID, tenant: UUID, move: PlanMove) -> None:
    """Move a tenant that still has the plan; what it or its operator decided for the month's end stays."""
    lock(open_wallet(tenant_id=tenant).pk)  # as every change of a plan does
    active = Subscription.objects.filter(pk=subscription, state=Subscription.State.ACTIVE, version__plan=move.plan)
    present = active.select_related("next_version").first()
    if present is None:
        raise PlanError("it has another plan by now")
    coming = present.next_version
    if present.is_ending or (coming is not None and coming.plan_id != move.to_id):
        raise PlanError("it ends with its month, or a change to another plan is scheduled")
    change_plan(tenant, move.to.slug, at_once=move.at_once)
