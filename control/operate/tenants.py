"""All tenants: found, filtered, made, and as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from base.units import format_credits
from billing.models import Plan, Subscription, Wallet
from billing.selectors.usage import charges_by_day, charges_of
from billing.writer.view import free_of
from control.belongings.download import csv_of
from control.operate.asks import Ask, answered, bound, to_copy
from control.operate.base import Desk, operator_page
from control.operate.lists import Listing, beyond
from control.screens.charts import spark
from control.screens.figures import cell
from control.screens.tables import Cell, Column, Row, State, Table
from tenancy.models import Tenant
from tenancy.services import members, tenants

PAGE = 50
DAYS = 30
STATES = {"active": "Active", "suspended": "Suspended", "frozen": "Wallet frozen", "erased": "Erased"}
NO_PLAN = "none"
_IN_CSV = 500  # tenants that are read at once
_COLUMNS = [
    Column("Tenant", "name"),
    Column("State", "state"),
    Column("Plan", "text"),
    Column("Available", "balance"),
    Column(f"Charged, {DAYS} days", "credits"),
    Column("By day", "text"),
]


@dataclass(frozen=True)
class Asked(Listing):
    """The filters of the list; pages begin behind slugs."""

    plan: str = ""

    @classmethod
    def of(cls, data: QueryDict) -> Asked:
        """Read the address."""
        return cls.read(data, {"state": STATES})

    def rows(self) -> QuerySet[Tenant]:
        """Return the tenants that match by name, each with plan, available credit and the wallet's state."""
        active = Subscription.objects.filter(tenant=OuterRef("pk"), state=Subscription.State.ACTIVE)
        wallet = Wallet.objects.filter(tenant=OuterRef("pk"), name="main")
        rows = Tenant.objects.order_by("name", "slug")
        if self.q:
            rows = rows.filter(Q(name__icontains=self.q) | Q(slug__icontains=self.q.lower()))
        if self.state == "frozen":
            rows = rows.filter(Exists(wallet.filter(state=Wallet.State.FROZEN)))
        elif self.state:
            rows = rows.filter(is_active=self.state == "active", erased_at__isnull=self.state != "erased")
        if self.plan == NO_PLAN:
            rows = rows.filter(~Exists(active))
        elif self.plan:
            rows = rows.filter(Exists(active.filter(version__plan__slug=self.plan)))
        return rows.annotate(
            plan_name=Subquery(active.values("version__plan__name")[:1]),
            available=Subquery(wallet.values(sum=F("posted") - F("held") + F("overdraft_limit"))[:1]),
            pools=Subquery(wallet.values("pools")[:1]),
            wallet_state=Subquery(wallet.values("state")[:1]),
        )


@require_safe
@operator_page("gateway.view_tenant")
def tenant_list(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Show the tenants by name."""
    asked = Asked.of(request.GET)
    found, previous, following = asked.turned(asked.rows(), PAGE, "name", "slug")
    empty = "No tenant matches these filters." if asked.is_filtered else "There is no tenant yet: make the first one."
    table = Table(
        "Tenants", _COLUMNS, _rows(desk, found), empty, previous, following, words=("Previous", "Next"), id="tenants"
    )
    context = desk.context(
        page="tenants",
        asked=asked,
        table=table,
        states=STATES.items(),
        plans=list(Plan.objects.order_by("name").values_list("slug", "name")),
        no_plan=NO_PLAN,
        export=reverse("operate-tenants-csv") + asked.query(after="", before=""),
        may_make=desk.may("gateway.add_tenant"),
    )
    return render(request, "operate/tenants.html", context)


def _available(one: Any) -> int | None:
    """Return what is available for every model."""
    return None if one.available is None else one.available - free_of(one.pools)


def _rows(desk: Desk, found: Sequence[Any]) -> list[Row]:
    today = timezone.now().date()
    first = today - timedelta(days=DAYS - 1)
    charges = charges_by_day([one.pk for one in found], first, today) if desk.may("billing.view_usagerecord") else {}
    sees_credit = desk.may("billing.view_wallet")
    rows = []
    for one in found:
        days = charges.get(one.pk, {})
        points = (
            spark([days.get(first + timedelta(days=number), 0) for number in range(DAYS)]) if any(days.values()) else ""
        )
        rows.append(
            Row(
                [
                    Cell(one.name, reverse("operate-tenant", args=[one.slug]), detail=one.slug),
                    state_of(one, is_frozen=one.wallet_state == Wallet.State.FROZEN),
                    one.plan_name or "–",
                    _available(one) if sees_credit else None,
                    sum(days.values()) if charges else None,
                    render_to_string("components/spark.html", {"points": points}) if points else "",
                ],
                is_over=not one.is_active,
            )
        )
    return rows


def state_of(tenant: Tenant, *, is_frozen: bool = False) -> State:
    """Return a tenant's state in a word."""
    if tenant.erased_at is not None:
        return State("Erased")
    if not tenant.is_active:
        return State("Suspended", "bad")
    return State("Wallet frozen", "warn") if is_frozen else State("Active", "good")


@require_safe
@operator_page("gateway.view_tenant", "billing.view_wallet", "billing.view_usagerecord")
def tenants_csv(request: HttpRequest, desk: Desk) -> StreamingHttpResponse:
    """Answer with all tenants that match the filters, made while they are sent; credits are exact."""
    return csv_of(desk.user.pk, "tenants", _lines(Asked.of(request.GET)))


def _lines(asked: Asked) -> Iterator[list[list[str]]]:
    yield [["slug", "name", "state", "plan", "available_credits", f"charged_{DAYS}_days_credits", "created"]]
    today = timezone.now().date()
    for some in _in_chunks(asked):
        charges = charges_of([one.pk for one in some], today - timedelta(days=DAYS - 1), today)
        yield [
            [
                one.slug,
                cell(one.name),
                state_of(one, is_frozen=one.wallet_state == Wallet.State.FROZEN).word.lower(),
                cell(one.plan_name or ""),
                "" if (available := _available(one)) is None else format_credits(available),
                format_credits(charges.get(one.pk, 0)),
                f"{one.created_at:%Y-%m-%d}",
            ]
            for one in some
        ]


def _in_chunks(asked: Asked) -> Iterator[list[Any]]:
    rows, last = asked.rows(), None
    while True:
        after = rows if last is None else rows.filter(beyond(("name", "slug"), (last.name, last.slug)))
        found = list(after[:_IN_CSV])
        if found:
            yield found
        if len(found) < _IN_CSV:
            return
        last = found[-1]


class NewTenantForm(forms.Form):
    """A new tenant, its plan and its owner."""

    name = forms.CharField(max_length=120, help_text="As people know it.")
    slug = forms.CharField(
        label="Short name",
        max_length=60,
        widget=forms.TextInput(attrs={"autocapitalize": "none", "spellcheck": "false"}),
        help_text="For addresses and commands: small letters, digits and hyphens. It stays as it is.",
    )
    plan = forms.ChoiceField(help_text="Its first month’s credit is granted at once.")
    owner_email = forms.EmailField(label="Owner’s address", help_text="Gets an invitation by mail, good for 14 days.")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        offered = Plan.objects.filter(is_offered=True, versions__isnull=False).order_by("name").distinct()
        self.fields["plan"].choices = list(offered.values_list("slug", "name"))  # type: ignore[attr-defined]


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("gateway.add_tenant")
def new_tenant(request: HttpRequest, desk: Desk) -> HttpResponseBase:
    """Ask for a new tenant, make it, and show the address by which its owner signs up."""

    def act(asked: dict[str, Any]) -> HttpResponse:
        with transaction.atomic():
            made = tenants.create_tenant(**asked)
            members.send_invitation(invitation=made.invitation, address=made.invitation_address)
        messages.success(request, f"{made.tenant.name} is made.")
        messages.info(
            request, to_copy(f"The invitation of {made.invitation.email}, also sent by mail:", made.invitation_address)
        )
        return redirect("operate-tenant", made.tenant.slug)

    ask = Ask(
        "New tenant",
        "Make the tenant",
        reverse("operate-tenants"),
        "Tenants",
        follows=["It comes with a project, a wallet and its plan’s credit, and an invitation for its owner."],
    )
    return answered(request, desk, ask, NewTenantForm(bound(request)), act, email="owner_email")
