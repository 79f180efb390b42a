"""The tenant of a page: its head with state, credit and actions, its tabs, and the parts that tabs are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import NoReverseMatch, reverse

from billing.models import Subscription
from billing.selectors.balances import Balance, balance_of
from control.operate.base import Desk
from control.operate.tenants import state_of
from control.screens import viewing
from control.screens.charts import Chart, Tile
from control.screens.figures import amount, day, show_credits
from control.screens.tables import Button, Table
from tenancy.models import Tenant

PAGE = 50
_TABS = (
    ("Overview", "operate-tenant", ""),
    ("Requests", "operate-requests", "billing.view_usagerecord"),
    ("People", "operate-tenant-people", "gateway.view_membership"),
    ("Keys", "operate-tenant-keys", "gateway.view_apikey"),
    ("Projects", "operate-tenant-projects", "gateway.view_project"),
    ("Wallet", "operate-tenant-wallet", "billing.view_wallet"),
    ("Limits", "operate-tenant-limits", "billing.view_subscription"),
    ("Audit", "operate-tenant-audit", "gateway.view_auditevent"),
)

SETTINGS = ("Change settings", "settings", "gateway.change_tenant")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a tab: any of a text, facts, a chart, a table, buttons, and actions with what follows from each."""

    title: str
    text: str = ""
    facts: Sequence[tuple[str, Any]] = ()
    chart: Chart | None = None
    table: Table | None = None
    buttons: Sequence[Button] = ()
    choices: Sequence[tuple[Button, str]] = ()


def open_tenant(slug: str) -> Tenant:
    """Return the tenant; 404 for one that was erased, with which nothing can be done."""
    return get_object_or_404(Tenant, slug=slug, erased_at=None)


def page_of(tenant: Tenant, tab: str = "") -> str:
    """Return the address of a tab of the tenant."""
    return reverse(f"operate-tenant-{tab}" if tab else "operate-tenant", args=[tenant.slug])


@dataclass(frozen=True, slots=True)
class Subject:
    """The tenant of a page, with what its head shows."""

    tenant: Tenant
    desk: Desk
    subscription: Subscription | None
    balance: Balance | None

    @classmethod
    def of(cls, desk: Desk, slug: str) -> Subject:
        """Return the tenant named `slug`; 404 where there is none."""
        tenant = get_object_or_404(Tenant, slug=slug)
        sees_credit = desk.may("billing.view_wallet")
        active = Subscription.objects.filter(tenant=tenant, state=Subscription.State.ACTIVE)
        subscription = active.select_related("version__plan", "next_version__plan").first()
        return cls(tenant, desk, subscription, balance_of(tenant.pk) if sees_credit else None)

    def address(self, name: str = "", *args: Any) -> str:
        """Return the address of a page or action of the tenant."""
        return reverse(f"operate-tenant-{name}" if name else "operate-tenant", args=[self.tenant.slug, *args])

    def buttons(self, *wanted: tuple[str, str, str], tone: str = "quiet", **options: Any) -> list[Button]:
        """Return those of (name, action, permission) that the operator may do; none of an erased tenant."""
        if self.tenant.erased_at is not None:
            return []
        return [
            Button(name, self.address(action), tone=tone, **options)
            for name, action, permission in wanted
            if self.desk.may(permission)
        ]

    def actions(self) -> list[Button]:
        """Return the buttons of the head."""
        found = self.buttons(("Grant credit", "grant", "billing.add_creditgrant"), tone="")
        plan = ("Change plan", "plan", "billing.change_subscription")
        if self.subscription is None:
            plan = ("Choose a plan", "plan", "billing.add_subscription")
        found += self.buttons(
            plan, ("Invite", "invite", "gateway.add_invitation"), ("New key", "key-new", "gateway.add_apikey")
        )
        if viewing.may_view(self.desk.user, self.tenant):
            found.append(Button("See as owner", self.address("view")))
        ends = ("Suspend", "suspend") if self.tenant.is_active else ("Activate", "activate")
        tone = "danger" if self.tenant.is_active else "quiet"
        return found + self.buttons((*ends, "gateway.change_tenant"), tone=tone)

    def tabs(self, current: str) -> list[tuple[str, str, bool]]:
        """Return the tabs that the operator's role sees: name, address, and whether it is open."""
        found = []
        for title, name, needs in _TABS:
            if needs and not self.desk.may(needs):
                continue
            if name == "operate-requests":
                try:
                    found.append((title, f"{reverse(name)}?{urlencode({'tenant': self.tenant.slug})}", False))
                except NoReverseMatch:
                    continue
            else:
                found.append((title, reverse(name, args=[self.tenant.slug]), name == current))
        return found

    def tiles(self) -> list[Tile]:
        """Return the figures of its credit."""
        if self.balance is None:
            return []
        one, href = self.balance, self.address("wallet")
        note = f"{show_credits(one.overdraft_limit)} of it overdraft" if one.overdraft_limit else "can be spent now"
        if one.for_some:
            note += f"; {show_credits(one.for_some)} more for some models"
        return [
            Tile("Available", amount(one.available, is_charge=False), note, href),
            Tile("Held", amount(one.held), "for requests that run", href),
            Tile(
                "Expires next",
                amount(one.expiring, is_charge=False),
                day(one.expires_at and one.expires_at.date(), "nothing"),
                href,
            ),
        ]

    def plan_in_words(self) -> str:
        """Return the plan, and its end or successor with its month."""
        one = self.subscription
        if self.tenant.erased_at is not None or not self.desk.may("billing.view_subscription"):
            return ""
        if one is None:
            return "no plan: its requests are refused"
        ends = day(one.granted_until and one.granted_until.date())
        if one.is_ending:
            return f"plan {one.version}, ends on {ends}"
        return f"plan {one.version}" + (f", {one.next_version} from {ends} on" if one.next_version else "")

    def page(self, request: HttpRequest, tab: str, sections: Sequence[Section], **more: Any) -> HttpResponse:
        """Answer with a tab."""
        context = self.desk.context(
            page="tenants",
            subject=self,
            state=state_of(self.tenant, is_frozen=bool(self.balance and self.balance.is_frozen)),
            sections=sections,
            tab=tab,
            shown_tabs=self.tabs(tab),
            tiles=self.tiles(),
            **more,
        )
        return render(request, "operate/tenant.html", context)
