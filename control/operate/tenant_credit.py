"""Acts on a tenant's credit and plan: grants and what ends them, corrections, the wallet, the subscription."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_http_methods

from base.errors import ServiceError
from base.units import format_credits, format_money
from billing.models import CreditGrant, Plan, SpendBudget, Subscription, Wallet
from billing.services import credits, plans, wallets
from billing.services.errors import InsufficientCreditError
from control.operate.asks import METHODS, Ask, ReasonForm, answered, bound
from control.operate.base import Desk, operator_page
from control.operate.fields import NamesField, models
from control.operate.subject import open_tenant, page_of
from control.screens.budgets import BudgetForm, NewBudgetForm, filled
from control.screens.figures import day, moment
from control.screens.forms import CreditsField, MomentField, OnceForm
from control.screens.grants import give_later
from tenancy.audit.origin import because
from tenancy.models import Tenant
from tenancy.services import budgets


def _wallet(tenant: Tenant) -> Wallet:
    return wallets.open_wallet(tenant_id=tenant.pk)


class GrantForm(OnceForm):
    """A new grant."""

    amount = CreditsField(label="Credits")
    reason = forms.CharField(max_length=200, help_text="Stands in the ledger and in the audit trail.")
    kind = forms.ChoiceField(
        choices=[
            (CreditGrant.Kind.PROMOTIONAL, "Promotional"),
            (CreditGrant.Kind.GOODWILL, "Goodwill"),
            (CreditGrant.Kind.PAID, "Paid for"),
            (CreditGrant.Kind.PLAN, "Of its plan"),
        ],
        help_text="Of two grants that end at the same time, the paid one is used last.",
    )
    begins_at = MomentField(label="Begins (UTC)", help_text="Empty: now. Until then it can be cancelled.")
    expires_at = MomentField(label="Expires (UTC)", help_text="Empty: never.")
    paid_amount = forms.IntegerField(
        required=False,
        min_value=0,
        label="Money paid",
        help_text="In the currency’s smallest unit: 4990 for 49.90 EUR.",
    )
    currency = forms.CharField(required=False, max_length=3, help_text="Its three letters, as EUR.")
    paid_reference = forms.CharField(
        required=False,
        max_length=200,
        label="Payment’s reference",
        help_text="As your bank or provider has it; the tenant reads it too.",
    )
    priority = forms.IntegerField(
        initial=50,
        min_value=0,
        max_value=100,
        label="Order",
        help_text="0 is used first, 100 last; grants begin with 50.",
    )
    models = NamesField(
        models,
        required=False,
        label="Models",
        help_text="None chosen: all. What is for some models is used before what is for all, and pays for no other.",
    )

    def clean_currency(self) -> str:
        """Return the letters in capitals."""
        currency: str = self.cleaned_data["currency"]
        return currency.upper()


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "billing.add_creditgrant")
def grant(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Give the tenant credit."""
    tenant = open_tenant(slug)

    def act(asked: dict[str, Any]) -> str:
        terms = asked | {"wallet_id": _wallet(tenant).pk, "actor": str(desk.user)}
        terms["kind"] = CreditGrant.Kind(asked["kind"])
        if (begins_at := terms.pop("begins_at")) is not None:
            give_later(tenant, begins_at=begins_at, **terms)
            begins = moment(begins_at)
            return f"{format_credits(asked['amount'], separator=',')} credits are granted from {begins} on."
        made = credits.grant(source="operator", **terms)
        ends = f", until {day(made.expires_at.date())}" if made.expires_at else ""
        return f"{format_credits(made.amount, separator=',')} credits are granted{ends}."

    ask = Ask(f"Grant credit to {tenant.name}", "Grant", page_of(tenant, "wallet"), tenant.name)
    return answered(request, desk, ask, GrantForm(bound(request)), act)


class AdjustForm(OnceForm):
    """A correction of the balance."""

    amount = CreditsField(is_signed=True, label="Credits", help_text="Below zero takes away what isn’t held, as -12.5.")
    reason = forms.CharField(max_length=200, help_text="Stands in the ledger and in the audit trail.")


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "billing.add_ledgertransfer")
def adjust(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Correct the tenant's credit, up or down."""
    tenant = open_tenant(slug)

    def act(asked: dict[str, Any]) -> str:
        try:
            credits.adjust(wallet_id=_wallet(tenant).pk, actor=str(desk.user), **asked)
        except InsufficientCreditError as few:
            free = format_credits(few.available, separator=",")
            raise ServiceError("amount", f"Only {free} credits are free: the rest is used up or held.") from None
        done = format_credits(abs(asked["amount"]), separator=",")
        return f"{done} credits were {'added' if asked['amount'] > 0 else 'taken away'}."

    follows = ["What is added is a promotional grant; what is taken comes from the grants that would be used first."]
    ask = Ask(f"Adjust the credit of {tenant.name}", "Adjust", page_of(tenant, "wallet"), tenant.name, follows=follows)
    return answered(request, desk, ask, AdjustForm(bound(request)), act)


class RefundForm(forms.Form):
    """The money paid back for the rest of a grant."""

    money = forms.IntegerField(
        required=False,
        min_value=0,
        help_text="In the currency’s smallest unit. Empty: the share that is left, rounded down.",
    )
    reference = forms.CharField(max_length=200, help_text="Of the payment, as your bank or provider has it.")
    reason = forms.CharField(max_length=200, help_text="Stands in the ledger and in the audit trail.")


def _grant_of(tenant: Tenant, pk: UUID) -> CreditGrant:
    return get_object_or_404(CreditGrant, pk=pk, wallet__tenant=tenant)


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "billing.add_creditgrant")
def refund(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Take out the rest of a paid grant, and record the money that is paid back for it."""
    tenant = open_tenant(slug)
    one = _grant_of(tenant, pk)

    def act(asked: dict[str, Any]) -> str:
        before = one.refunded_amount or 0
        taken = credits.refund(grant_id=one.pk, key=f"refund:{one.pk}", actor=str(desk.user), **asked)
        one.refresh_from_db()
        back = (one.refunded_amount or 0) - before  # nothing where it was sent twice
        money = f" for {format_money(back, one.currency)}" if back else ""
        return f"{format_credits(taken, separator=',')} credits were taken out{money} ({asked['reference']})."

    paid = "nothing" if one.paid_amount is None else format_money(one.paid_amount, one.currency)
    follows = [
        f"It gave {format_credits(one.amount, separator=',')} credits for {paid}.",
        f"{format_credits(one.remaining, separator=',')} are left: what isn’t held of them is taken out.",
        "No payment is made by this: make it where the money came in.",
    ]
    ask = Ask(
        f"Refund a grant of {tenant.name}",
        "Refund",
        page_of(tenant, "wallet"),
        tenant.name,
        follows=follows,
        is_danger=True,
    )
    return answered(request, desk, ask, RefundForm(bound(request)), act)


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "billing.add_creditgrant")
def void(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """End a grant now."""
    tenant = open_tenant(slug)
    one = _grant_of(tenant, pk)

    def act(asked: dict[str, Any]) -> str:
        taken = credits.void(grant_id=one.pk, key=f"void:{one.pk}", actor=str(desk.user), reason=asked["reason"])
        return f"{format_credits(taken, separator=',')} credits were taken back."

    follows = [
        f"{format_credits(one.remaining, separator=',')} of its {format_credits(one.amount, separator=',')} are left.",
        "They end now; what requests that run may still need of them stays until they have ended.",
    ]
    ask = Ask(
        f"Void a grant of {tenant.name}",
        "Void",
        page_of(tenant, "wallet"),
        tenant.name,
        follows=follows,
        is_danger=True,
    )
    return answered(request, desk, ask, ReasonForm(bound(request)), act)


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "billing.change_wallet")
def freeze(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Freeze the wallet, or open a frozen one."""
    tenant = open_tenant(slug)
    is_frozen = Wallet.objects.filter(tenant=tenant, name="main", state=Wallet.State.FROZEN).exists()
    state = Wallet.State.OPEN if is_frozen else Wallet.State.FROZEN

    def act(asked: dict[str, Any]) -> str:
        with because(asked["reason"]):
            wallets.set_state(_wallet(tenant).pk, state)
        return "Requests hold credit again." if is_frozen else "The wallet is frozen: new requests are refused."

    follows = (
        ["New requests hold credit again."]
        if is_frozen
        else [
            "New requests are refused (403 wallet_frozen), and answers that run end when what they hold is used up.",
            "What they used is charged. Grants can still be made.",
        ]
    )
    verb = "Unfreeze" if is_frozen else "Freeze"
    ask = Ask(
        f"{verb} the wallet of {tenant.name}", verb, page_of(tenant, "wallet"), tenant.name, follows=follows,
        is_danger=not is_frozen,
    )  # fmt: skip
    return answered(request, desk, ask, ReasonForm(bound(request)), act)


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "billing.change_wallet")
def budget(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Make a budget, which the tenant sees and can't change."""
    tenant = open_tenant(slug)
    form = NewBudgetForm(bound(request), tenant=tenant)

    def act(_: dict[str, Any]) -> str:
        made = budgets.make(tenant=tenant, by_operator=True, **form.terms())
        return f"The budget “{made}” counts from now on."

    follows = ["The tenant sees it and can’t change it. Where it tells, operators are told too."]
    ask = Ask(f"New budget of {tenant.name}", "Make budget", page_of(tenant, "wallet"), tenant.name, follows=follows)
    return answered(request, desk, ask, form, act, subject="of", scope="of", amount="limit")


def _budget_of(tenant: Tenant, pk: UUID) -> SpendBudget:
    return get_object_or_404(budgets.of_tenant(tenant), pk=pk)


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "billing.change_wallet")
def budget_change(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Change a budget."""
    tenant = open_tenant(slug)
    one = _budget_of(tenant, pk)
    form = BudgetForm(bound(request), initial=filled(one))

    def act(_: dict[str, Any]) -> str:
        changed = budgets.change(one, tenant=tenant, by_operator=True, **form.terms())
        return f"The budget “{changed}” is changed: it holds for the next request."

    follows = ["Another limit holds for the next request, and what was spent stays."]
    ask = Ask(f"Change the budget “{one}”", "Save", page_of(tenant, "wallet"), tenant.name, follows=follows)
    return answered(request, desk, ask, form, act, amount="limit")


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "billing.change_wallet")
def budget_remove(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Remove a budget."""
    tenant = open_tenant(slug)
    one = _budget_of(tenant, pk)

    def act(_: dict[str, Any]) -> str:
        budgets.remove(one, tenant=tenant, by_operator=True)
        return f"The budget “{one}” is removed."

    follows = ["Nothing is refused by it any more. Made again for the same, it knows what was spent."]
    ask = Ask(
        f"Remove the budget “{one}”", "Remove", page_of(tenant, "wallet"), tenant.name, follows=follows, is_danger=True
    )
    return answered(request, desk, ask, forms.Form(bound(request)), act)


class PlanForm(forms.Form):
    """The plan that the tenant gets."""

    plan = forms.ChoiceField()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        found = Plan.objects.filter(versions__isnull=False).order_by("name").distinct()
        self.fields["plan"].choices = [  # type: ignore[attr-defined]
            (one.slug, one.name if one.is_offered else f"{one.name} (not offered)") for one in found
        ]


class ChangePlanForm(PlanForm):
    """Another plan, and when."""

    at_once = forms.BooleanField(
        required=False,
        label="At once, also where the new plan gives less credit",
        help_text="Otherwise a plan with less credit begins with the next month.",
    )


class SubscribeForm(PlanForm):
    """The first plan."""

    time_zone = forms.CharField(
        max_length=60, initial="UTC", help_text="Its months begin at midnight there, as Europe/Berlin."
    )


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "billing.view_subscription")
def plan(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Move the tenant to another plan, or give it its first one."""
    tenant = open_tenant(slug)
    present = Subscription.objects.filter(tenant=tenant, state=Subscription.State.ACTIVE).select_related(
        "version__plan"
    )
    one = present.first()
    needed = "billing.add_subscription" if one is None else "billing.change_subscription"
    if not desk.may(needed):
        return render(request, "operate/refused.html", desk.context(page="tenants", lacking=[needed]), status=403)

    def act(asked: dict[str, Any]) -> str:
        slug = asked.pop("plan")
        if one is None:
            made = plans.subscribe(tenant.pk, slug, time_zone=asked["time_zone"])
        else:
            made = plans.change_plan(tenant.pk, slug, at_once=asked["at_once"])
        if made.next_version is not None:
            until = day(made.granted_until and made.granted_until.date())
            return f"{made.next_version} begins on {until}; until then it has {made.version}."
        return f"{tenant.name} has {made.version} now."

    if one is None:
        ask = Ask(f"Choose a plan for {tenant.name}", "Subscribe", page_of(tenant, "limits"), tenant.name)
        return answered(request, desk, ask, SubscribeForm(bound(request)), act)
    follows = [
        f"It has {one.version}. A plan with at least as much credit a month begins now.",
        "The rest of this month’s difference is granted; nothing is taken away.",
    ]
    ask = Ask(
        f"Change the plan of {tenant.name}", "Change plan", page_of(tenant, "limits"), tenant.name, follows=follows
    )
    initial = {"plan": one.version.plan.slug}
    return answered(request, desk, ask, ChangePlanForm(bound(request), initial=initial), act)


class EndForm(ReasonForm):
    """When a subscription ends, and why."""

    when = forms.ChoiceField(
        choices=[("month", "With its current month"), ("now", "At once")], widget=forms.RadioSelect, initial="month"
    )
    field_order = ("when", "reason")


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "billing.change_subscription")
def end(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """End the tenant's subscription."""
    tenant = open_tenant(slug)

    def act(asked: dict[str, Any]) -> str:
        with because(asked["reason"]):
            ended = plans.end(tenant.pk, at_once=asked["when"] == "now")
        ends = day(ended.granted_until and ended.granted_until.date())
        return f"The subscription ends on {ends}." if ended.is_ending else "The subscription has ended."

    follows = [
        "Without a plan its requests are refused (403 no_subscription), and no month’s credit follows.",
        "Credit that it has stays as long as it would have: void its grants to take it back.",
        "An end with the month can be taken back by choosing a plan before.",
    ]
    title = f"End the subscription of {tenant.name}"
    ask = Ask(title, "End", page_of(tenant, "limits"), tenant.name, follows=follows, is_danger=True)
    return answered(request, desk, ask, EndForm(bound(request)), act)
