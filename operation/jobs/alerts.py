"""The troubles that alerts tell of: what checks find, tenants whose credit ends, budgets' thresholds, open invoices,
and keys that are refused again and again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import Count, F, Max, OuterRef, Q, Subquery, Sum
from django.urls import reverse

from base import clock
from base.checks import Severity
from base.units import format_credits
from billing.models import CreditGrant, Invoice, Wallet
from billing.periods import minute_of
from billing.services.budgets import reached
from billing.writer.view import free_of
from gateway.runtime.models import RefusalCount, in_words
from gateway.runtime.observed import noted_results
from tenancy.models import APIKey, Tenant
from tenancy.services.alerts import Trouble, observe

LOW_SHARE = 10
"""Credit is low once no more than so many of a hundred are left of what was granted in the last month."""
MONTH = timedelta(days=35)
ALL_OF_IT = 100
LATELY = timedelta(minutes=10)
MINUTES = 5
MOST_INVOICES = 500
TIMES = 20
"""A key fails that was refused so often within ten minutes, in so many of them."""


def look() -> bool:
    """Look at all sources, once."""
    observe("check", list(_checks()))
    observe("credit", list(_credit()))
    observe("budget", list(_budgets()))
    observe("invoice", list(_invoices()))
    observe("key", list(_keys()))
    return False


def _checks() -> Iterator[Trouble]:
    for result in noted_results():
        for finding in result.findings:
            if finding.mend:
                about = f" {finding.subject}" if finding.subject else ""
                yield Trouble(
                    key=f"check:{result.name}:{finding.subject}",
                    kind=f"check.{result.name}",
                    severity=str(result.severity),
                    title=f"{result.name}{about}",
                    text=finding.text,
                    remedy=finding.mend,
                    path=reverse("operate-now"),
                )


def _credit() -> Iterator[Trouble]:
    """Yield the tenants that have little left of what every model may use; who never had any, or may go without, isn't
    told.
    """
    month = Q(wallet=OuterRef("pk"), voided_at=None, created_at__gt=clock.now() - MONTH)
    lately = CreditGrant.objects.filter(month, restriction="")
    lately = lately.exclude(kind=CreditGrant.Kind.ROLLOVER)  # it was granted before
    wallets = Wallet.objects.filter(name="main", tenant__is_active=True).annotate(
        granted=Subquery(lately.order_by().values("wallet").annotate(all=Sum("amount")).values("all")),
        rest=F("posted") - F("held") + F("overdraft_limit"),
    )
    low = wallets.filter(~Q(pools="") | Q(rest__lte=F("granted") * LOW_SHARE / 100), granted__gt=0)
    for tenant, slug, granted, posted, pools in low.values_list(
        "tenant_id", "tenant__slug", "granted", "rest", "pools"
    ):
        rest = posted - free_of(pools)
        if rest > granted * LOW_SHARE / 100:
            continue
        is_out = rest <= 0
        left, given = (format_credits(max(micro, 0), separator=",") for micro in (rest, granted))
        words = f"{left} credits are left of {given}."
        of, others = (" for every model", " of models without credit of their own") if free_of(pools) else ("", "")
        yield Trouble(
            key=f"credit:{tenant}",
            kind="credit.low",
            severity=Severity.CRITICAL if is_out else Severity.WARNING,
            title=f"Credit{of} is used up" if is_out else f"Credit{of} is low",
            text=f"{words} Requests{others} are refused." if is_out else words,
            remedy="Ask your operator for credit, or spend less: the usage page shows on what.",
            path=f"{reverse('console-usage')}?tenant={slug}",
            tenant=tenant,
        )


def _budgets() -> Iterator[Trouble]:
    """Yield each threshold that a budget's window of now has reached: with the next window it is over."""
    found = list(reached())
    slugs = dict(Tenant.objects.filter(pk__in={one.budget.tenant for one, _ in found}).values_list("pk", "slug"))
    for one, percent in found:
        budget, is_over = one.budget, percent >= ALL_OF_IT
        spent, limit = (format_credits(micro, separator=",") for micro in (one.spent, budget.amount or 0))
        ends = "" if one.resets_at is None else f" It resets at {one.resets_at:%Y-%m-%d %H:%M} UTC."
        follows = " Requests are refused." if is_over and budget.is_hard else ""
        words: dict[str, Any] = {
            "kind": "budget.threshold",
            "severity": Severity.CRITICAL if is_over and budget.is_hard else Severity.WARNING,
            "title": f"{percent} % of the budget “{budget}” are spent",
            "text": f"{spent} credits are spent of {limit}.{follows}{ends}",
            "remedy": "Raise the budget, or spend less: the usage page shows on what.",
        }
        key = f"budget:{budget.pk}:{minute_of(one.period.start)}:{percent}"
        slug = slugs[budget.tenant]
        path = f"{reverse('console-billing')}?tenant={slug}"
        yield Trouble(key=key, path=path, tenant=budget.tenant, **words)
        if budget.by_operator:
            yield Trouble(key=f"{key}:operator", path=reverse("operate-tenant-wallet", args=[slug]), **words)


def _invoices() -> Iterator[Trouble]:
    """Yield the open invoices, for their tenant and for the operators, until they are paid or void."""
    found = Invoice.objects.filter(state=Invoice.State.OPEN).select_related("wallet__tenant").order_by("-number")
    for one in found[:MOST_INVOICES]:
        tenant = one.wallet.tenant
        asked = format_credits(one.amount, separator=",")
        overdrawn = f"what was overdrawn at {one.ends_at:%Y-%m-%d %H:%M} UTC, less what earlier open invoices ask for"
        words: dict[str, Any] = {
            "kind": "invoice.open",
            "severity": Severity.WARNING,
            "title": f"{one} is open",
            "text": f"It asks for {asked} credits: {overdrawn}.",
        }
        path = f"{reverse('console-billing')}?tenant={tenant.slug}#invoices"
        remedy = "Pay it as your operator says."
        yield Trouble(key=f"invoice:{one.pk}", path=path, remedy=remedy, tenant=tenant.pk, **words)
        words["text"] += f" It is {tenant.name}’s."
        path = f"{reverse('operate-tenant-wallet', args=[tenant.slug])}#invoices"
        remedy = "Send it, and note its payment on the tenant's page, or void it."
        yield Trouble(key=f"invoice:{one.pk}:operator", path=path, remedy=remedy, **words)


def _keys() -> Iterator[Trouble]:
    lately = RefusalCount.objects.unscoped().filter(minute__gte=clock.now() - LATELY, api_key__isnull=False)
    often = (
        lately.order_by()
        .values("api_key")
        .annotate(times=Sum("count"), minutes=Count("minute", distinct=True), last=Max("last_at"))
        .filter(times__gte=TIMES, minutes__gte=MINUTES)
    )
    found = {row["api_key"]: row["times"] for row in often}
    reasons: dict[UUID, Counter[str]] = defaultdict(Counter)
    for pk, code, times in lately.filter(api_key__in=found).values_list("api_key", "code", "count"):
        reasons[pk][code] += times
    for key in APIKey.objects.unscoped().filter(pk__in=found, revoked_at=None).select_related("tenant"):
        [(code, _)] = reasons[key.pk].most_common(1)
        yield Trouble(
            key=f"key:{key.pk}",
            kind="key.failing",
            severity=Severity.WARNING,
            title=f"Key {key.name} is refused",
            text=f"{found[key.pk]:,} requests in ten minutes, most often: {in_words(code)}.",
            remedy="The requests’ pages say what each asked and why it was refused.",
            path=f"{reverse('console-usage')}?tenant={key.tenant.slug}&key={key.pk}",
            tenant=key.tenant_id,
        )
