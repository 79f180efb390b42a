"""Plans and subscriptions: publishing terms, subscribing a tenant, changing its plan, granting its monthly credit.

The credit of the next month is scheduled when a month is granted, and anew when the plan changes: the ledger's writer
makes the grant of it at the moment at which the month begins.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Max, QuerySet, Sum

from base import clock
from base.units import MICRO
from billing.models import CreditGrant, Plan, PlanVersion, ScheduledGrant, Subscription, Wallet
from billing.periods import Period, month_of, zone
from billing.services import credits, invoices
from billing.services.errors import NotSubscribedError, PlanError
from billing.services.wallets import lock, open_wallet
from billing.writer.view import free_of

DEFAULT_PLANS: dict[str, dict[str, Any]] = {
    "free": {
        "name": "Free",
        "request_limit": 30,
        "request_burst": 10,
        "credit_limit": 10 * MICRO,
        "credit_burst": 20 * MICRO,
        "concurrency": 4,
        "weight": 1_000,
        "slice_tokens": 128,
        "monthly_credits": 100 * MICRO,
        "allowed_models": ["smollm2-135m-instruct", "all-minilm-l6-v2", "sluice-desk", "sluice-desk-labels"],
    },
    "business": {  # many requests at once
        "name": "Business",
        "request_limit": 600,
        "request_burst": 1_200,
        "credit_limit": 2_000 * MICRO,
        "credit_burst": 6_000 * MICRO,
        "concurrency": 64,
        "weight": 4_000,
        "slice_tokens": 256,
        "monthly_credits": 20_000 * MICRO,
        "allowed_models": [],
        "adapters": 8,
    },
    "max": {  # the allowance of five hours within minutes
        "name": "Max",
        "request_limit": 60,
        "request_burst": 60,
        "credit_limit": 20_000 * MICRO,
        "credit_period_s": 5 * 3_600,
        "credit_burst": 20_000 * MICRO,
        "concurrency": 16,
        "weight": 2_000,
        "slice_tokens": 1_024,
        "monthly_credits": 100_000 * MICRO,
        "allowed_models": [],
        "adapters": 4,
    },
}

TERMS = tuple(
    field.name
    for field in PlanVersion._meta.concrete_fields
    if field.name not in {"id", "plan", "number", "created_at"}
)


@transaction.atomic
def ensure_default_plans() -> None:
    """Make Free, Business and Max with a first version each; a plan that has a version is left as it is."""
    for slug, terms in DEFAULT_PLANS.items():
        plan, _ = Plan.objects.get_or_create(slug=slug, defaults={"name": terms["name"]})
        if not plan.versions.exists():
            publish_version(plan, **{name: value for name, value in terms.items() if name != "name"})


@transaction.atomic
def publish_version(plan: Plan, **terms: Any) -> PlanVersion:
    """Create and return a new version of the plan; terms that aren't given are the last version's.

    Subscriptions keep theirs until they are moved. Raises PlanError for an unknown term; a value that breaks a limit
    raises the field's ValidationError.
    """
    unknown = terms.keys() - set(TERMS)
    if unknown:
        raise PlanError(f"{min(unknown)}: not a term of a plan")
    Plan.objects.filter(pk=plan.pk).update(slug=plan.slug)  # the row's lock: one publication of a plan at a time
    last = plan.versions.order_by("-number").first()
    inherited = {name: getattr(last, name) for name in TERMS} if last else {}
    version = PlanVersion(plan=plan, number=last.number + 1 if last else 1, **{**inherited, **terms})
    version.full_clean()
    version.save(force_insert=True)
    return version


def latest_version(slug: str) -> PlanVersion:
    """Return the newest version of a plan; PlanError if it has none."""
    version = PlanVersion.objects.select_related("plan").filter(plan__slug=slug).order_by("-number").first()
    if version is None:
        raise PlanError(f"plan: {slug!r} is not known")
    return version


def latest_versions() -> list[PlanVersion]:
    """Return the newest version of each plan, by the plan's short name."""
    versions = PlanVersion.objects.select_related("plan").order_by("plan__slug", "-number")
    return list({version.plan_id: version for version in reversed(versions)}.values())[::-1]


@transaction.atomic
def subscribe(tenant_id: UUID, plan_slug: str, at: datetime | None = None, *, time_zone: str = "UTC") -> Subscription:
    """Subscribe the tenant to the plan's newest version and grant its first month; `at` anchors its months.

    Opens the wallet if need be. Subscribing again to the same plan changes nothing; to another one is a PlanError.
    """
    zone(time_zone)
    version = latest_version(plan_slug)
    wallet, now = lock(open_wallet(tenant_id=tenant_id).pk), clock.now()
    if (present := _present(tenant_id, now)) is not None:
        if present.version.plan_id == version.plan_id:
            return present
        raise PlanError(f"plan: already subscribed to {present.version.plan.slug}; change the plan instead")
    made = Subscription.objects.create(tenant_id=tenant_id, version=version, anchor=at or now, time_zone=time_zone)
    _apply_overdraft(wallet, version)
    grant_month(made.pk, now)
    made.refresh_from_db()
    return made


@transaction.atomic
def change_plan(tenant_id: UUID, plan_slug: str, at: datetime | None = None, *, at_once: bool = False) -> Subscription:
    """Move the tenant to the plan's newest version and return the subscription that is active now.

    With at least as much monthly credit (or `at_once`) the terms change now, and the rest of the month's difference is
    granted: the new plan's share of it minus that of the largest plan that it had this month, each rounded down.
    Otherwise it changes at the end of the month. Nothing is clawed back, so going back and forth grants nothing twice.
    """
    now = at or clock.now()
    version = latest_version(plan_slug)
    wallet = lock(open_wallet(tenant_id=tenant_id).pk)
    present = _present(tenant_id, now)
    if present is None:
        raise NotSubscribedError(tenant_id)
    is_later = version.monthly_credits < present.version.monthly_credits and not at_once
    if is_later or present.version_id == version.pk:
        present.next_version, present.is_ending = version if is_later else None, False
        present.save(update_fields=["next_version", "is_ending"])
        _schedule_next(present, wallet)
        return present
    period = month_of(present.anchor, present.time_zone, now)
    _invoice(present, wallet, now)
    made = _replace(present, version, wallet, now)
    if present.granted_until is not None and present.granted_until >= period.end:
        rest, whole = (period.end - now) // timedelta(microseconds=1), _microseconds(period)
        had = Subscription.objects.filter(tenant_id=tenant_id, granted_until__gte=period.end).exclude(pk=made.pk)
        largest = had.aggregate(most=Max("version__monthly_credits"))["most"] or 0
        extra = version.monthly_credits * rest // whole - largest * rest // whole
        if extra > 0:
            _grant(wallet, extra, period, key=f"upgrade:{made.pk}", reason=f"upgrade to {version}")
    _schedule_next(made, wallet)
    return made


@transaction.atomic
def end(tenant_id: UUID, at: datetime | None = None, *, at_once: bool = False) -> Subscription:
    """End the tenant's subscription with its month, or at once, and return it: without one no request is let in.

    Credit that was given stays as long as it would have. Choosing a plan before the month's end takes the end back.
    """
    now = at or clock.now()
    wallet = lock(open_wallet(tenant_id=tenant_id).pk)
    before = _active(tenant_id).first()
    if before is None:
        raise NotSubscribedError(tenant_id)
    present = _present(tenant_id, now)
    if present is None:  # it was to end, and its month was over
        before.refresh_from_db()
        return before
    if at_once:
        _invoice(present, wallet, now)
        _finish(present, wallet, now)
        return present
    present.next_version, present.is_ending = None, True
    present.save(update_fields=["next_version", "is_ending"])
    _schedule_next(present, wallet)
    return present


def _present(tenant_id: UUID, now: datetime) -> Subscription | None:
    """Return the tenant's subscription once its month has begun; None where there is none, or it was to end before
    that.
    """
    if (found := _active(tenant_id).first()) is not None:
        grant_month(found.pk, now)  # the writer may have begun it, and no sweep yet
    return _active(tenant_id).first()


def _active(tenant_id: UUID) -> QuerySet[Subscription]:
    return Subscription.objects.select_related("version").filter(tenant_id=tenant_id, state="active")


@transaction.atomic
def grant_month(subscription_id: UUID, now: datetime) -> CreditGrant | None:
    """Begin the month that `now` lies in, unless that was done: a scheduled change of plan or end takes effect, the
    credit is granted where the writer hasn't done it, and the next month's is scheduled.

    Months that went by unnoticed are not made up for: their credit would have expired. Safe to repeat and to overlap.
    """
    tenant_id = Subscription.objects.values_list("tenant_id", flat=True).get(pk=subscription_id)
    wallet = lock(open_wallet(tenant_id=tenant_id).pk)
    one = Subscription.objects.select_related("version__plan", "next_version__plan").get(pk=subscription_id)
    if one.state != Subscription.State.ACTIVE:
        return None
    if one.granted_until is not None and one.granted_until > now:
        _schedule_next(one, wallet)
        return None
    if one.granted_until is not None:
        _invoice(one, wallet, one.granted_until)
    if one.is_ending:
        _finish(one, wallet, one.granted_until or now)
        return None
    period = month_of(one.anchor, one.time_zone, now)
    if one.next_version is not None and one.granted_until is not None:
        one = _replace(one, one.next_version, wallet, now)
    made = None
    if one.version.monthly_credits:
        key, reason = _month(one, period)
        ScheduledGrant.objects.filter(wallet=wallet, source=key).delete()
        rollover = _rollover(one, one.version, period)
        made = _grant(wallet, one.version.monthly_credits, period, key=key, reason=reason, **rollover)
    _apply_overdraft(wallet, one.version)
    one.granted_until = period.end
    one.save(update_fields=["granted_until"])
    _schedule_next(one, wallet)
    return made


def _schedule_next(subscription: Subscription, wallet: Wallet) -> None:
    """Schedule the credit of the month after the one that was granted last, by the plan that is then in force."""
    if subscription.granted_until is None:
        return
    period = month_of(subscription.anchor, subscription.time_zone, subscription.granted_until)
    key, reason = _month(subscription, period)
    version = subscription.next_version or subscription.version
    goes_on = subscription.state == Subscription.State.ACTIVE and not subscription.is_ending
    credits.schedule(
        wallet,
        amount=version.monthly_credits if goes_on else 0,
        kind=CreditGrant.Kind.PLAN,
        begins_at=period.start,
        expires_at=period.end,
        source=key,
        reason=reason,
        **_rollover(subscription, version, period),
    )


def _rollover(subscription: Subscription, version: PlanVersion, period: Period) -> dict[str, Any]:
    """Return what rolls over of the credit of a month, and until when: the end of the month after."""
    if not version.rollover:
        return {}
    following = month_of(subscription.anchor, subscription.time_zone, period.end)
    return {"rollover": version.rollover, "rollover_until": following.end}


def _month(subscription: Subscription, period: Period) -> tuple[str, str]:
    """Return the key and the reason of a month's grant."""
    version = subscription.next_version or subscription.version
    return f"month:{subscription.tenant_id}:{period.start.isoformat()}", f"{version}, a month"


def _grant(
    wallet: Wallet, amount: int, period: Period, *, key: str, reason: str, **rollover: Any
) -> CreditGrant | None:
    """Grant plan credit until the end of the period, unless `key` did so before."""
    if CreditGrant.objects.filter(source=key, wallet=wallet).exists():
        return None
    return credits.grant(
        wallet_id=wallet.pk,
        amount=amount,
        kind=CreditGrant.Kind.PLAN,
        key=key,
        actor="sluice",
        reason=reason,
        expires_at=period.end,
        source=key,
        **rollover,
    )


def _replace(present: Subscription, version: PlanVersion, wallet: Wallet, now: datetime) -> Subscription:
    """End the subscription and return its successor, counting the same months."""
    Subscription.objects.filter(pk=present.pk).update(state=Subscription.State.ENDED, ended_at=now, next_version=None)
    _apply_overdraft(wallet, version)
    return Subscription.objects.create(
        tenant_id=present.tenant_id,
        version=version,
        anchor=present.anchor,
        time_zone=present.time_zone,
        granted_until=present.granted_until,
    )


def _finish(subscription: Subscription, wallet: Wallet, ended_at: datetime) -> None:
    """End a subscription that nothing follows."""
    subscription.state, subscription.ended_at = Subscription.State.ENDED, ended_at
    subscription.next_version, subscription.is_ending = None, False
    subscription.save(update_fields=["state", "ended_at", "next_version", "is_ending"])
    _schedule_next(subscription, wallet)
    _apply_overdraft(wallet, None)


def _invoice(subscription: Subscription, wallet: Wallet, ends_at: datetime) -> None:
    """Invoice what is overdrawn at the end of a month, or of the plan, where its version says so."""
    if subscription.version.overage == PlanVersion.Overage.INVOICE:
        invoices.issue(wallet, ends_at)


def _apply_overdraft(wallet: Wallet, version: PlanVersion | None) -> None:
    """Set the wallet's overdraft limit to the plan's (None: there is none), but not below what is overdrawn or held
    beyond zero already.

    What an earlier, higher limit allowed stands until the next month's credit comes. What is overdrawn counts even
    where grants have more left than that, as after a refund into one: they end, and it stays.
    """
    allowed = 0
    if version is not None and version.overage != PlanVersion.Overage.BLOCK:
        allowed = version.overdraft_limit
    sums = Wallet.objects.get(pk=wallet.pk)
    left = CreditGrant.objects.filter(wallet=wallet, remaining__gt=0).aggregate(sum=Sum("remaining"))["sum"] or 0
    limit = max(allowed, sums.held + free_of(sums.pools) - sums.posted, left - sums.posted)
    Wallet.objects.filter(pk=wallet.pk).update(overdraft_limit=limit)


def _microseconds(period: Period) -> int:
    return (period.end - period.start) // timedelta(microseconds=1)
