"""The tenant's first page: what there is, how long it lasts, what fails, and the step that is due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from billing.models import Subscription
from billing.selectors.balances import Balance, running_of
from billing.selectors.usage import recent_usage
from control.console.billing import Spending, balance_tile, grant_tile, lasting_tile, used_of
from control.console.catalogue import active_subscription, next_grant
from control.console.people import roles_table
from control.console.refusals import RefusalLine, Span, error_rate, refusals_of
from control.console.tenancy import Place, tenant_page
from control.screens.charts import Chart, Tile, stacked
from control.screens.figures import amount, grouped, moment, show_charge, show_credits
from control.screens.tables import Cell, Column, Row, State, Table
from tenancy.models import APIKey, Invitation, Membership, Project
from tenancy.services.restrictions import spending_of, with_spending

RECENT = 6
MOST_KEYS = 200
MOST_BUDGETS = 6
LOW_DAYS = 3
SOON = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Step:
    """A step that is due: its title, why, and either where it leads or the form that does it (``key``, ``invite``,
    ``request``).
    """

    title: str
    text: str
    form: str = ""
    action: str = ""
    href: str = ""


@require_safe
@tenant_page
def home(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the tenant at a glance; whoever may not see something doesn't."""
    tenant, now = place.tenant, timezone.now()
    context = place.context(page="home")
    balance, subscription = context["balance"], active_subscription(tenant)
    spending = Spending.of(tenant.id)
    refusals = refusals_of(Span(tenant, now - timedelta(days=1), now))
    keys = with_spending(APIKey.objects.of(tenant).filter(revoked_at=None).order_by("-id")[:MOST_KEYS])
    recent = recent_usage(tenant.id, limit=RECENT)
    is_new = not recent
    steps = [
        *_first_steps(place, keys, is_new=is_new),
        *_money_steps(place, spending, balance, subscription),
        *_key_steps(place, keys, now),
    ]
    wallet = reverse("console-billing") + place.query if place.access.may("wallet") else ""
    told: dict[str, Any] = {
        "tiles": [
            balance_tile(balance, wallet),
            lasting_tile(spending, balance, subscription),
            *_use_tiles(place, spending, refusals, now),
            grant_tile(subscription),
        ],
        "steps": steps,
        "chart": None if is_new else _chart(place, spending),
        "limits": _limits(place, subscription, balance, keys),
        "refusals": _refusals(place, refusals),
        "recent": _recent(place, keys, recent),
        "requests": "/requests/" + place.query,
        "roles": roles_table(place.access.role),
        "base_url": request.build_absolute_uri("/v1"),
        "projects": list(Project.objects.of(tenant).filter(is_active=True).order_by("created_at", "id")[:50])
        if any(step.form == "key" for step in steps)
        else [],
        "roles_to_give": [role for role in Membership.Role.values if place.access.may_give_role(role)],
    }
    return render(request, "console/home.html", {**context, **told})


def _requests(place: Place, **query: object) -> str:
    given = {**place.name, **query}
    return "/requests/?" + "&".join(f"{name}={value}" for name, value in given.items())


def _first_steps(place: Place, keys: Sequence[APIKey], *, is_new: bool) -> Iterator[Step]:
    may = place.access.may
    if not keys and may("keys"):
        text = "A key lets a program ask models in the name of a project."
        yield Step("Make the first key", text, form="key")
    elif is_new and may("chat"):
        text = "Put the key in the place of $SLUICE_API_KEY, or ask something in the chat."
        yield Step("Send the first request", text, form="request")
    if may("members") and _is_alone(place):
        yield Step("Invite somebody", "They get a mail with a link that works once, for 14 days.", form="invite")


def _is_alone(place: Place) -> bool:
    """Return whether the tenant has one member, and nobody was asked; two queries."""
    if Membership.objects.of(place.tenant).filter(is_active=True)[:2].count() > 1:
        return False
    return not Invitation.objects.of(place.tenant).filter(accepted_at=None, expires_at__gt=timezone.now()).exists()


def _money_steps(
    place: Place, spending: Spending, balance: Balance | None, subscription: Subscription | None
) -> Iterator[Step]:
    if subscription is None:
        yield Step("There is no plan", "Without one no request is let in: ask your operator for one.")
        return
    available = 0 if balance is None else balance.available + balance.for_some
    days = spending.days_left(available)
    is_for_all = balance is not None and balance.available > 0
    if is_for_all and (days is None or days >= LOW_DAYS):
        return
    grant, at = next_grant(subscription)
    if is_for_all and grant and spending.lasts_until(available, at):
        return
    coming = f"The next {show_credits(grant)} come on {at:%-d %b}. " if grant and at else ""
    title = "Credit runs out soon" if available > 0 else "There is no credit left"
    if available > 0 and not is_for_all:
        title = "Credit is left for some models alone"
    href = reverse("console-billing") + place.query if place.access.may("wallet") else ""
    text = f"{coming}Ask your operator for more, or spend less: the keys’ budgets bound each program."
    yield Step(title, text, action="Billing" if href else "", href=href)


def _key_steps(place: Place, keys: Sequence[APIKey], now: datetime) -> Iterator[Step]:
    soon = [key for key in keys if key.expires_at is not None and now < key.expires_at < now + SOON]
    for key in [key for key in soon if place.access.may_revoke(key)][:3]:
        href = reverse("console-key-change", args=[key.id]) + place.query
        text = f"On {key.expires_at:%-d %b, %H:%M} UTC whatever uses it is refused."
        yield Step(f"The key “{key.name}” expires", text, action="Change it", href=href)


def _use_tiles(place: Place, spending: Spending, refusals: Sequence[RefusalLine], now: datetime) -> Iterator[Tile]:
    requests, charge = spending.since(now - timedelta(days=1))
    refused = sum(line.count for line in refusals)
    usage = f"{reverse('console-usage')}?days=1" + "".join(f"&{name}={value}" for name, value in place.name.items())
    yield Tile("Spent in 24 h", amount(charge), f"credits for {grouped(requests)} requests", usage)
    note = f"error rate {error_rate(refused, requests)}"
    yield Tile("Refused in 24 h", grouped(refused), note, _requests(place, hours=24, state="refused"))


def _chart(place: Place, spending: Spending) -> Chart:
    names = {f"{at.day} {at:%b}": at for at in spending.by_day()}
    cells = {(f"{at.day} {at:%b}", ""): charge for at, charge in spending.by_day().items()}

    def leads_to(name: str) -> str:
        at = names[name]
        end = at + timedelta(days=1)
        return _requests(place, since=f"{at:%Y-%m-%dT%H:%M:%SZ}", until=f"{end:%Y-%m-%dT%H:%M:%SZ}")

    return stacked(cells, list(names), show=show_charge, axis=show_credits, href=leads_to, unit="Day (UTC)")


_PERIODS = {"day": "a day", "month": "a month", "total": "in all"}


def _limits(place: Place, subscription: Subscription | None, balance: Balance | None, keys: Sequence[APIKey]) -> Table:
    """Return the plan's concurrency and the keys' budgets that are nearest to their end, with their use now."""
    columns = [Column("Limit", "name"), Column("Now", "number"), Column("Up to", "number"), Column("Used", "state")]
    rows = []
    if subscription is not None and balance is not None:
        most, running = subscription.version.concurrency, running_of(balance.wallet)
        name = Cell("Requests at once", detail=f"plan {subscription.version.plan.name}")
        rows.append(Row([name, running, most, used_of(running, most)]))
    budgets = []
    for key in keys:
        spent = spending_of(key)
        for period, words in _PERIODS.items():
            most, used = getattr(spent.limits, f"{period}_limit"), getattr(spent, period)
            if most is not None and used is not None:
                address = reverse("console-key-change", args=[key.id]) + place.query
                name = Cell(key.name, address if place.access.may_revoke(key) else "", f"credits {words}")
                part = used / most if most else 1.0
                budgets.append((part, Row([name, amount(used), amount(most), used_of(used, most)])))
    budgets.sort(key=lambda one: -one[0])
    return Table("Limits", columns, rows + [row for _, row in budgets[:MOST_BUDGETS]], "No limit is set.", id="limits")


def _refusals(place: Place, refusals: Sequence[RefusalLine]) -> Table:
    columns = [Column("Reason", "wraps"), Column("Times", "number"), Column("Last", "time")]
    rows = [
        Row(
            [
                Cell(line.reason, _requests(place, hours=24, state="refused")),
                line.count,
                Cell(moment(line.last_at), f"/requests/{line.last_request}/{place.query}"),
            ]
        )
        for line in refusals[:5]
    ]
    return Table("Refused in 24 hours", columns, rows, "Nothing was refused.", id="refusals")


def _recent(place: Place, keys: Sequence[APIKey], records: Sequence[Any]) -> Table:
    names = {key.id: key.name for key in keys}
    columns = [
        Column("When", "time"),
        Column("Model", "name"),
        Column("End", "state"),
        Column("Tokens", "number"),
        Column("Credits", "credits"),
    ]
    rows = []
    for one in records:
        address = f"/requests/{one.request}/{place.query}"
        sender = names.get(one.api_key, "a key") if one.api_key else "chat"
        is_well = one.finish in {"", "stop", "length", "tool_calls"}
        state = State((one.finish or "done").replace("_", " "), "good" if is_well and not one.waived else "warn")
        tokens = one.input_tokens + one.cache_read_tokens + one.completion_tokens
        model = Cell(one.model, address, sender)
        rows.append(Row([one.reserved_at, model, state, tokens, one.charge], sheet=True))
    return Table("Recent requests", columns, rows, "No request yet.", id="recent")
