"""Credit of all tenants over a period: sold, given, burnt, expired, waived; by model, plan and tenant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from django.db.models import BigIntegerField, Count, F, Q, Subquery, Sum
from django.db.models.functions import Coalesce, Greatest

from base import clock
from billing import rating
from billing.codes import Code
from billing.models import CreditGrant, LedgerAccount, LedgerTransfer, Subscription, UsageRecord, UsageRollup, prices_of
from billing.rating import CLASSES

LOW = 10
"""Per cent of its grants below which a tenant is low."""
GRANTED = timedelta(days=90)
"""A grant that is used up counts for so long after it was given."""
MOST_WAIVED = 1000


@dataclass(frozen=True, slots=True)
class Granted:
    """Grants of one kind: how many, their µcr, and the money paid for them less what was paid back, by currency in
    minor units.
    """

    number: int = 0
    amount: int = 0
    paid: Mapping[str, int] | None = None


def granted(since: datetime, until: datetime) -> dict[str, Granted]:
    """Return what was granted from `since` to before `until`, by kind of grant; voided grants count for nothing, and
    what rolled over was granted before.
    """
    rows = CreditGrant.objects.filter(created_at__gte=since, created_at__lt=until, voided_at=None)
    rows = rows.exclude(kind=CreditGrant.Kind.ROLLOVER)
    sums = rows.values("kind", "currency").annotate(
        number=Count("pk"), amount=Sum("amount"), paid=Sum("paid_amount"), refunded=Sum("refunded_amount")
    )
    found: dict[str, Granted] = {}
    for row in sums.order_by("kind", "currency"):
        before = found.get(row["kind"], Granted())
        paid = {**(before.paid or {})}
        if row["paid"] is not None:
            paid[row["currency"]] = row["paid"] - (row["refunded"] or 0)
        found[row["kind"]] = Granted(before.number + row["number"], before.amount + row["amount"], paid)
    return found


def expired(since: datetime, until: datetime) -> int:
    """Return the µcr that expired unused in the period: an index has what came to the account of breakage by moment."""
    breakage = LedgerAccount.objects.filter(kind=LedgerAccount.Kind.BREAKAGE, wallet=None).values("pk")[:1]
    rows = LedgerTransfer.objects.filter(
        credit=Subquery(breakage), code=Code.EXPIRY, booked_at__gte=since, booked_at__lt=until
    )
    return rows.aggregate(sum=Sum("amount"))["sum"] or 0


def expiring(now: datetime, until: datetime) -> int:
    """Return the µcr that end until then, unless they are burnt before or roll over."""
    rows = CreditGrant.objects.filter(remaining__gt=0, expires_at__gt=now, expires_at__lte=until)
    lost = Greatest(F("remaining") - Coalesce(F("rollover"), 0), 0)
    return rows.aggregate(sum=Sum(lost, output_field=BigIntegerField()))["sum"] or 0


@dataclass(frozen=True, slots=True)
class Waived:
    """Requests that we broke and that cost nothing, and the µcr that their tokens would have cost."""

    requests: int
    foregone: int


def waived(first: date, last: date) -> Waived:
    """Return what was waived on these days; `foregone` is of the newest `MOST_WAIVED` of them."""
    rows = UsageRecord.objects.filter(waived=True, day__gte=first, day__lte=last)
    columns = ("card_version", "multiplier_bp", *(f"{name}_tokens" for name in CLASSES))
    newest = list(rows.order_by("-day", "-request").values_list(*columns)[:MOST_WAIVED])
    cards = prices_of(row[0] for row in newest)
    foregone = sum(
        rating.charge(dict(zip(CLASSES, tokens, strict=True)), cards[card], multiplier)
        for card, multiplier, *tokens in newest
        if card in cards
    )
    return Waived(len(newest) if len(newest) < MOST_WAIVED else rows.count(), foregone)


@dataclass(frozen=True, slots=True)
class TenantSum:
    """A tenant's requests and µcr in a period, and its µcr in the period of the same length before; of requests whose
    deployment was calibrated the operator's `cost` and their charge, `costed`.
    """

    tenant: UUID
    requests: int
    charge: int
    before: int
    cost: int = 0
    costed: int = 0


def by_tenant(first: date, last: date) -> list[TenantSum]:
    """Return the sums of all tenants that used anything on these days or on as many before.

    A period that isn't over is compared with as much of the one before.
    """
    days = (last - first).days + 1
    start, middle, end = (_midnight(day) for day in (first - timedelta(days=days), first, last + timedelta(days=1)))
    upto = min(middle, clock.now() - timedelta(days=days))
    rows = UsageRollup.objects.filter(hour__gte=start, hour__lt=end).order_by()
    sums = rows.values_list("tenant").annotate(
        asked=Sum("requests", filter=Q(hour__gte=middle), default=0),
        now=Sum("charge", filter=Q(hour__gte=middle), default=0),
        before=Sum("charge", filter=Q(hour__lt=upto), default=0),
        cost=Sum("cost", filter=Q(hour__gte=middle), default=0),
        costed=Sum("costed", filter=Q(hour__gte=middle), default=0),
    )
    return [TenantSum(tenant, *map(int, rest)) for tenant, *rest in sums]


def plans_of_tenants() -> dict[UUID, str]:
    """Return the name of the plan that each tenant has now."""
    rows = Subscription.objects.filter(state=Subscription.State.ACTIVE)
    return dict(rows.values_list("tenant_id", "version__plan__name"))


@dataclass(frozen=True, slots=True)
class Low:
    """A tenant of whose grants little is left, in µcr."""

    tenant: UUID
    granted: int
    left: int


def low_tenants(now: datetime, limit: int | None = None) -> list[Low]:
    """Return the tenants that have less than `LOW` per cent of their grants left, the least first, at most `limit`.

    Grants count that haven't ended, and have something left or were given within `GRANTED`.
    """
    rows = CreditGrant.objects.filter(Q(expires_at=None) | Q(expires_at__gt=now), voided_at=None, effective_at__lte=now)
    rows = rows.filter(Q(remaining__gt=0) | Q(created_at__gt=now - GRANTED))
    sums = rows.values_list("wallet__tenant_id").annotate(granted=Sum("amount"), left=Sum("remaining"))
    low = sums.filter(left__lt=F("granted") * LOW / 100).order_by("left", "-granted", "wallet__tenant_id")
    return [Low(*row) for row in (low if limit is None else low[:limit])]


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
