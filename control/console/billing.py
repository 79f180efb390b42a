"""Billing: what there is and how long it lasts, the plan's limits with their use now, grants, and the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.core import signing
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.views.decorators.http import require_POST, require_safe

from base.errors import ServiceError
from base.units import format_credits, format_money
from billing import promises
from billing.models import PlanVersion, Subscription
from billing.selectors.balances import Balance, balance_of, coming_grants_of, grants_of, running_of
from billing.selectors.ledger import ledger_of
from billing.selectors.usage import TimeSum, usage_by, used_since
from billing.services import vouchers
from control.belongings.download import sent
from control.console import budgets
from control.console.catalogue import active_subscription, next_grant
from control.console.tenancy import Place, tenant_page
from control.screens import statements
from control.screens.charts import Tile, spark
from control.screens.figures import amount, day, grouped, models_alone, share, show_credits
from control.screens.grants import WORDS, invoices_table, recurring_table
from control.screens.ledger import cursor_of, ledger_csv, ledger_table, signed
from control.screens.tables import Cell, Column, Row, State, Table
from control.throttles import check_vouchers

PAGE = 25
MOST_GRANTS = 200
SHOWN_GRANTS = 10
RATE_DAYS = 7  # of which the present rate of spending is the mean
SHOWN_DAYS = 14


@dataclass(frozen=True, slots=True)
class Spending:
    """A tenant's spending: the rows of each hour with usage in the last SHOWN_DAYS days and the month, both of UTC."""

    rows: Sequence[TimeSum]
    now: datetime

    @classmethod
    def of(cls, tenant: UUID) -> Spending:
        """Return the tenant's; one query."""
        now = timezone.now().astimezone(UTC)
        today = now.replace(hour=0, minute=0, second=0, microsecond=0)
        since = min(today - timedelta(days=SHOWN_DAYS - 1), today.replace(day=1))
        return cls(usage_by("hour", tenant, since, now), now)

    def by_day(self) -> dict[datetime, int]:
        """Return the µcr of each day, the oldest first."""
        today = self.now.replace(hour=0, minute=0, second=0, microsecond=0)
        found = {today - timedelta(days=back): 0 for back in range(SHOWN_DAYS - 1, -1, -1)}
        for row in self.rows:
            if (at := row.at.replace(hour=0)) in found:
                found[at] += row.charge
        return found

    def since(self, moment: datetime) -> tuple[int, int]:
        """Return the requests and µcr of the hours that ended after the moment."""
        late = [row for row in self.rows if row.at > moment - timedelta(hours=1)]
        return sum(row.requests for row in late), sum(row.charge for row in late)

    @property
    def a_day(self) -> int:
        """The present rate in µcr a day: the mean of the last week, or of the time since the first use in it."""
        begin = self.now - timedelta(days=RATE_DAYS)
        late = [row for row in self.rows if row.at >= begin]
        if not late:
            return 0
        hours = max(24.0, (self.now - late[0].at) / timedelta(hours=1))
        return round(sum(row.charge for row in late) * 24 / min(hours, 24 * RATE_DAYS))

    def days_left(self, available: int) -> float | None:
        """Return for how many days the credit lasts at the present rate; None where nothing is spent."""
        return max(0, available) / self.a_day if self.a_day else None

    def lasts_until(self, available: int, at: datetime | None) -> bool:
        """Return whether the credit lasts at the present rate until that moment, if there is one."""
        days = self.days_left(available)
        return at is not None and (days is None or (at - self.now) / timedelta(days=1) <= days)


def lasting_tile(spending: Spending, balance: Balance | None, subscription: Subscription | None) -> Tile:
    """Return how long the credit lasts, and whether the next month's comes before it ends."""
    available = 0 if balance is None else balance.available + balance.for_some
    days = spending.days_left(available)
    if days is None:
        return Tile("Lasts", "–", f"nothing was spent in {RATE_DAYS} days")
    shown = "over a year" if days > 365 else f"{days:.0f} days" if days >= 2 else f"{24 * days:.0f} hours"
    grant, at = next_grant(subscription)
    is_covered = grant > 0 and spending.lasts_until(available, at)
    note = "the next credit comes before" if is_covered else "at the rate of the last week"
    return Tile("Lasts", shown, note, spark=spark(list(spending.by_day().values())))


def balance_tile(balance: Balance | None, href: str = "") -> Tile:
    """Return the balance, and what is held or expires of it."""
    if balance is None:
        return Tile("Balance", "–", "no wallet yet")
    note = "credits"
    if balance.restricted:
        one = balance.restricted[0]
        whose = models_alone("\n".join(one.models)) if len(balance.restricted) == 1 else "for some models alone"
        note = format_html("credits; {} more {}", amount(balance.for_some, is_charge=False), whose)
    elif balance.held:
        note = format_html("credits; {} held for requests", amount(balance.held))
    elif balance.expiring and balance.expires_at:
        note = format_html("credits; {} expire {}", amount(balance.expiring, is_charge=False), day(balance.expires_at))
    return Tile("Balance", amount(balance.available, is_charge=False), note, href)


def grant_tile(subscription: Subscription | None) -> Tile:
    """Return the plan and the credit that its next month brings."""
    if subscription is None:
        return Tile("Plan", "None", "ask your operator")
    name = f"Plan {subscription.version.plan.name}"
    grant, at = next_grant(subscription)
    if grant and at:
        return Tile(name, format_html("+{}", amount(grant, is_charge=False)), f"credits on {day(at)}")
    if subscription.is_ending and subscription.granted_until:
        return Tile(name, "Ends", f"on {day(subscription.granted_until)}: ask your operator")
    return Tile(name, "No monthly credit", "ask your operator for more")


def used_of(used: int, limit: int) -> State:
    """Return the share of a limit that is used up, which warns from 80 of a hundred on."""
    part = used / limit if limit else 1.0
    return State(share(used, limit) if limit else "–", "bad" if part >= 1 else "warn" if part >= 0.8 else "")


def limits_table(version: PlanVersion, tenant: UUID, balance: Balance | None) -> Table:
    """Return the plan's limits, each with its use now; at most four queries."""
    running = 0 if balance is None else running_of(balance.wallet)
    columns = [Column("Limit", "name"), Column("Now", "number"), Column("Up to", "number"), Column("Used", "state")]
    return Table("The plan’s limits", columns, list(_limits(version, tenant, balance, running)), id="limits")


def _limits(version: PlanVersion, tenant: UUID, balance: Balance | None, running: int) -> Iterator[Row]:
    now = timezone.now()
    yield Row(["Requests at once", running, version.concurrency, used_of(running, version.concurrency)])
    spans = {version.request_period_s, version.credit_period_s}
    used = {seconds: used_since(tenant, now - timedelta(seconds=seconds)) for seconds in spans}
    requests, charge = used[version.request_period_s][0] + running, used[version.credit_period_s][1]
    burst = f"up to {grouped(version.request_burst)} at once"
    name = Cell(f"Requests {_each(version.request_period_s)}", detail=burst)
    yield Row([name, requests, version.request_limit, used_of(requests, version.request_limit)])
    burst = f"up to {show_credits(version.credit_burst)} at once"
    name = Cell(f"Credits {_each(version.credit_period_s)}", detail=burst)
    yield Row([name, amount(charge), amount(version.credit_limit), used_of(charge, version.credit_limit)])
    if version.token_limit is not None:
        burst = f"up to {grouped(version.token_burst or version.token_limit)} at once; cached ones don’t count"
        name = Cell(f"Tokens {_each(version.token_period_s)}", detail=burst)
        yield Row([name, None, version.token_limit, State("–")])
    if balance is not None and balance.overdraft_limit:
        over = max(0, sum(one.rest for one in balance.restricted) - balance.posted)
        yield Row(["Overdraft", amount(over), amount(balance.overdraft_limit), used_of(over, balance.overdraft_limit)])


def _each(seconds: int) -> str:
    for size, word in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds % size == 0:
            number = seconds // size
            return f"in {number} {word}s" if number > 1 else f"an {word}" if word == "hour" else f"a {word}"
    return f"in {seconds} seconds"


def _grants_table(balance: Balance) -> Table:
    """Return the credit that is left, in the order in which it is used, and then what comes later."""
    columns = [
        Column("Credit", "name"),
        Column("Left", "balance"),
        Column("Of", "balance"),
        Column("Given", "day"),
        Column("Expires", "text"),
        Column("State", "state"),
    ]
    found, now = grants_of(balance.wallet, MOST_GRANTS), timezone.now()
    rows = []
    firsts = {one.restriction: one.pk for one in reversed(found)}
    for one in found[:SHOWN_GRANTS]:
        soon = one.expires_at is not None and one.expires_at - now < timedelta(days=7)
        state = (
            State("expires soon", "warn")
            if soon
            else State("used first", "good")
            if one.pk == firsts[one.restriction]
            else State("waits")
        )
        name = Cell(WORDS[one.kind], detail=models_alone(one.restriction))
        rows.append(Row([name, one.remaining, one.amount, one.effective_at, day(one.expires_at, "never"), state]))
    for later in coming_grants_of(balance.wallet, SHOWN_GRANTS):
        ends = day(later.expires_at, "never")
        name = Cell(WORDS[later.kind], detail=models_alone(later.restriction))
        rows.append(Row([name, None, later.amount, later.begins_at, ends, State("comes")], is_over=True))
    rest = found[SHOWN_GRANTS:]
    left = amount(sum(one.remaining for one in rest), is_charge=False)
    note = format_html("and {} more, with {} credits", len(rest), left) if rest else ""
    return Table("Credit", columns, rows, "No credit is left, and none is coming.", note=note, id="grants")


@require_safe
@tenant_page
def billing(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the tenant's credit; `before` is where the ledger's page before ended."""
    _only_for_who_may(place)
    context = place.context(page="billing")
    balance, subscription = context["balance"], active_subscription(place.tenant)
    spending = Spending.of(place.tenant.id)
    month = spending.now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    spent = sum(row.charge for row in spending.rows if row.at >= month)
    usage = f"{reverse('console-usage')}?from={month.date()}&to={spending.now.date()}"
    usage += "".join(f"&{name}={value}" for name, value in place.name.items())
    tiles = [
        balance_tile(balance),
        lasting_tile(spending, balance, subscription),
        Tile("Spent this month", amount(spent), "credits, by UTC", usage),
        grant_tile(subscription),
    ]
    version = None if subscription is None else subscription.version
    told = {
        "tiles": tiles,
        "subscription": subscription,
        "version": version,
        "promise": "" if version is None else promises.terms_in_words(version),
        "limits": None if version is None else limits_table(version, place.tenant.id, balance),
        "budgets": None if balance is None else budgets.table_of(place),
        "may_change_budgets": budgets.may_change(place),
        "grants": None if balance is None else _grants_table(balance),
        "recurring": None if balance is None else recurring_table(balance.wallet),
        "invoices": None if balance is None else invoices_table(balance.wallet),
        "ledger": None if balance is None else _ledger(request, place, balance),
        "may_pay": place.access.may("pay"),
        "packs": _packs() if settings.SLUICE_STRIPE_SECRET_KEY else [],
        "is_bought": "bought" in request.GET,
        "statements": statements.list_of(place.tenant, *_addresses(place)),
    }
    return render(request, "console/billing.html", {**context, **told})


def _packs() -> list[tuple[str, str]]:
    """Return credits and price of each pack, in the order of the setting."""
    sold: list[tuple[int, int, str]] = settings.SLUICE_CREDIT_PACKS
    return [(format_credits(micro, separator=","), format_money(price, name)) for micro, price, name in sold]


@require_POST
@tenant_page
def redeem(request: HttpRequest, place: Place) -> HttpResponse:
    """Redeem a voucher's code."""
    if not place.access.may("pay"):
        raise Http404
    try:
        check_vouchers(place.access)
        actor = str(place.access.user or "")
        grant = vouchers.redeem(tenant_id=place.tenant.pk, code=request.POST.get("code", ""), actor=actor)
    except (ServiceError, ValueError) as refused:
        messages.error(request, str(refused))
    else:
        until = f", until {day(grant.expires_at)}" if grant.expires_at else ""
        messages.success(request, f"{format_credits(grant.amount, separator=',')} credits are yours{until}.")
    return redirect(reverse("console-billing") + place.query)


def _ledger(request: HttpRequest, place: Place, balance: Balance) -> Table:
    text = request.GET.get("before", "")
    try:
        before = cursor_of(text) if text else None
    except (signing.BadSignature, ValueError):
        raise Http404 from None
    page = ledger_of(balance.wallet, limit=PAGE, before=before)
    path = reverse("console-billing") + (place.query or "?")
    older = "" if page.next is None else f"{path}{'&' if place.query else ''}before={signed(page.next)}#ledger"
    newest = f"{reverse('console-billing')}{place.query}#ledger" if before else ""
    return ledger_table(page, lambda one: f"/requests/{one}/{place.query}", older=older, newest=newest)


def _addresses(place: Place) -> tuple[Callable[[str], str], Callable[[str, str], str]]:
    """Return the address of a month's page, and that of one of its files."""

    def page(month: str) -> str:
        return reverse("console-statement", args=[month]) + place.query

    def file(month: str, form: str) -> str:
        return reverse("console-statement-file", args=[month, form]) + place.query

    return page, file


@require_safe
@tenant_page
def statement(request: HttpRequest, place: Place, month: str) -> HttpResponse:
    """Show a month's statement, a draft while it runs."""
    _only_for_who_may(place)
    found = statements.month_named(place.tenant, month)
    files = statements.files_of(_addresses(place)[1], found)
    told = {"statement": statements.shown(place.tenant, found), "files": files}
    return render(request, "console/statement.html", {**place.context(page="billing"), **told})


@require_safe
@tenant_page
def statement_file(request: HttpRequest, place: Place, month: str, form: str) -> StreamingHttpResponse:
    """Send a month's statement in one of its forms, made while it is sent."""
    _only_for_who_may(place)
    assert request.user.pk is not None, "a page is for who is signed in"
    return statements.download(request.user.pk, place.tenant, statements.month_named(place.tenant, month), form)


@require_safe
@tenant_page
def export(request: HttpRequest, place: Place) -> StreamingHttpResponse:
    """Send the ledger as CSV, made while it is sent."""
    _only_for_who_may(place)
    balance = balance_of(place.tenant.id)
    if balance is None:
        raise Http404
    response = StreamingHttpResponse(sent(place.tenant.pk, ledger_csv(balance.wallet)), content_type="text/csv")
    name = f"ledger-{place.tenant.slug}-{timezone.now():%Y-%m-%d}.csv"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    response.headers["Cache-Control"] = "no-store"
    return response


def _only_for_who_may(place: Place) -> None:
    if not place.access.may("wallet"):
        raise Http404
