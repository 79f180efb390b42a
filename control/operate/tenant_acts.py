"""What an operator does with a tenant: each action asks on a page of its own, and a service does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from base.database.connections import without_limits
from base.errors import ServiceError
from base.units import format_credits
from billing.models import CreditGrant, Plan, SpendBudget, Subscription, Wallet
from billing.services import credits, plans, wallets
from billing.services.errors import InsufficientCreditError
from control import made_keys
from control.belongings import erasure
from control.belongings.download import tenants_archive
from control.operate.asks import Ask, answered, bound, to_copy
from control.operate.base import Desk, operator_page
from control.operate.tenant import KEPT, money
from control.screens import viewing
from control.screens.budgets import BudgetForm, NewBudgetForm, filled
from control.screens.figures import day
from control.screens.forms import CreditsField, MomentField, OnceForm, TypedForm
from control.screens.key_forms import NewKeyForm
from tenancy.audit.origin import because
from tenancy.models import AdminAPIKey, APIKey, Invitation, Membership, Project, Tenant
from tenancy.services import admin_keys, budgets, keys, members, tenants
from tenancy.services.access import Access

WAIT_SECONDS = 20.0
_METHODS = ["GET", "HEAD", "POST"]
_Act = Callable[..., HttpResponse]


def _tenant(slug: str) -> Tenant:
    """Return the tenant; 404 for one that was erased, with which nothing can be done."""
    return get_object_or_404(Tenant, slug=slug, erased_at=None)


def _page(tenant: Tenant, tab: str = "") -> str:
    return reverse(f"operate-tenant-{tab}" if tab else "operate-tenant", args=[tenant.slug])


def _wallet(tenant: Tenant) -> Wallet:
    return wallets.open_wallet(tenant_id=tenant.pk)


class ReasonForm(forms.Form):
    """Why something is done."""

    reason = forms.CharField(max_length=200, help_text="Stands in the audit trail, which the tenant reads too.")


class GrantForm(OnceForm):
    """A new grant."""

    amount = CreditsField(label="Credits")
    reason = forms.CharField(max_length=200, help_text="Stands in the ledger and in the audit trail.")
    kind = forms.ChoiceField(
        choices=[
            (CreditGrant.Kind.PROMOTIONAL, "Promotional"),
            (CreditGrant.Kind.PAID, "Paid for"),
            (CreditGrant.Kind.PLAN, "Of its plan"),
        ],
        help_text="Of two grants that end at the same time, the paid one is used last.",
    )
    expires_at = MomentField(label="Expires (UTC)", help_text="Empty: never.")
    paid_amount = forms.IntegerField(
        required=False,
        min_value=0,
        label="Money paid",
        help_text="In the currency’s smallest unit: 4990 for 49.90 EUR.",
    )
    currency = forms.CharField(required=False, max_length=3, help_text="Its three letters, as EUR.")
    priority = forms.IntegerField(
        initial=50,
        min_value=0,
        max_value=100,
        label="Order",
        help_text="0 is used first, 100 last; grants begin with 50.",
    )

    def clean_currency(self) -> str:
        """Return the letters in capitals."""
        currency: str = self.cleaned_data["currency"]
        return currency.upper()


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "billing.add_creditgrant")
def grant(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Give the tenant credit."""
    tenant = _tenant(slug)

    def act(asked: dict[str, Any]) -> str:
        made = credits.grant(
            wallet_id=_wallet(tenant).pk,
            actor=str(desk.user),
            source="operator",
            **asked | {"kind": CreditGrant.Kind(asked["kind"])},
        )
        ends = f", until {day(made.expires_at.date())}" if made.expires_at else ""
        return f"{format_credits(made.amount, separator=',')} credits are granted{ends}."

    ask = Ask(f"Grant credit to {tenant.name}", "Grant", _page(tenant, "wallet"), tenant.name)
    return answered(request, desk, ask, GrantForm(bound(request)), act)


class AdjustForm(OnceForm):
    """A correction of the balance."""

    amount = CreditsField(is_signed=True, label="Credits", help_text="Below zero takes away what isn’t held, as -12.5.")
    reason = forms.CharField(max_length=200, help_text="Stands in the ledger and in the audit trail.")


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "billing.add_ledgertransfer")
def adjust(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Correct the tenant's credit, up or down."""
    tenant = _tenant(slug)

    def act(asked: dict[str, Any]) -> str:
        try:
            credits.adjust(wallet_id=_wallet(tenant).pk, actor=str(desk.user), **asked)
        except InsufficientCreditError as few:
            free = format_credits(few.available, separator=",")
            raise ServiceError("amount", f"Only {free} credits are free: the rest is used up or held.") from None
        done = format_credits(abs(asked["amount"]), separator=",")
        return f"{done} credits were {'added' if asked['amount'] > 0 else 'taken away'}."

    follows = ["What is added is a promotional grant; what is taken comes from the grants that would be used first."]
    ask = Ask(f"Adjust the credit of {tenant.name}", "Adjust", _page(tenant, "wallet"), tenant.name, follows=follows)
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


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "billing.add_creditgrant")
def refund(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Take out the rest of a paid grant, and record the money that is paid back for it."""
    tenant = _tenant(slug)
    one = _grant_of(tenant, pk)

    def act(asked: dict[str, Any]) -> str:
        taken = credits.refund(grant_id=one.pk, key=f"refund:{one.pk}", actor=str(desk.user), **asked)
        one.refresh_from_db()
        back = money(one.refunded_amount or 0, one.currency)
        return f"{format_credits(taken, separator=',')} credits were taken out for {back} ({one.refund_reference})."

    paid = "nothing" if one.paid_amount is None else money(one.paid_amount, one.currency)
    follows = [
        f"It gave {format_credits(one.amount, separator=',')} credits for {paid}.",
        f"{format_credits(one.remaining, separator=',')} are left: what isn’t held of them is taken out.",
        "No payment is made by this: make it where the money came in.",
    ]
    ask = Ask(
        f"Refund a grant of {tenant.name}",
        "Refund",
        _page(tenant, "wallet"),
        tenant.name,
        follows=follows,
        is_danger=True,
    )
    return answered(request, desk, ask, RefundForm(bound(request)), act)


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "billing.add_creditgrant")
def void(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """End a grant now."""
    tenant = _tenant(slug)
    one = _grant_of(tenant, pk)

    def act(asked: dict[str, Any]) -> str:
        taken = credits.void(grant_id=one.pk, key=f"void:{one.pk}", actor=str(desk.user), reason=asked["reason"])
        return f"{format_credits(taken, separator=',')} credits were taken back."

    follows = [
        f"{format_credits(one.remaining, separator=',')} of its {format_credits(one.amount, separator=',')} are left.",
        "They end now; what requests that run may still need of them stays until they have ended.",
    ]
    ask = Ask(
        f"Void a grant of {tenant.name}", "Void", _page(tenant, "wallet"), tenant.name, follows=follows, is_danger=True
    )
    return answered(request, desk, ask, ReasonForm(bound(request)), act)


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "billing.change_wallet")
def freeze(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Freeze the wallet, or open a frozen one."""
    tenant = _tenant(slug)
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
        f"{verb} the wallet of {tenant.name}", verb, _page(tenant, "wallet"), tenant.name, follows=follows,
        is_danger=not is_frozen,
    )  # fmt: skip
    return answered(request, desk, ask, ReasonForm(bound(request)), act)


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "billing.change_wallet")
def budget(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Make a budget, which the tenant sees and can't change."""
    tenant = _tenant(slug)
    form = NewBudgetForm(bound(request), tenant=tenant)

    def act(_: dict[str, Any]) -> str:
        made = budgets.make(tenant=tenant, by_operator=True, **form.terms())
        return f"The budget “{made}” counts from now on."

    follows = ["The tenant sees it and can’t change it. Where it tells, operators are told too."]
    ask = Ask(f"New budget of {tenant.name}", "Make budget", _page(tenant, "wallet"), tenant.name, follows=follows)
    return answered(request, desk, ask, form, act, subject="of", scope="of", amount="limit")


def _budget_of(tenant: Tenant, pk: UUID) -> SpendBudget:
    return get_object_or_404(budgets.of_tenant(tenant), pk=pk)


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "billing.change_wallet")
def budget_change(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Change a budget."""
    tenant = _tenant(slug)
    one = _budget_of(tenant, pk)
    form = BudgetForm(bound(request), initial=filled(one))

    def act(_: dict[str, Any]) -> str:
        changed = budgets.change(one, tenant=tenant, by_operator=True, **form.terms())
        return f"The budget “{changed}” is changed: it holds for the next request."

    follows = ["Another limit holds for the next request, and what was spent stays."]
    ask = Ask(f"Change the budget “{one}”", "Save", _page(tenant, "wallet"), tenant.name, follows=follows)
    return answered(request, desk, ask, form, act, amount="limit")


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "billing.change_wallet")
def budget_remove(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Remove a budget."""
    tenant = _tenant(slug)
    one = _budget_of(tenant, pk)

    def act(_: dict[str, Any]) -> str:
        budgets.remove(one, tenant=tenant, by_operator=True)
        return f"The budget “{one}” is removed."

    follows = ["Nothing is refused by it any more. Made again for the same, it knows what was spent."]
    ask = Ask(
        f"Remove the budget “{one}”", "Remove", _page(tenant, "wallet"), tenant.name, follows=follows, is_danger=True
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


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "billing.view_subscription")
def plan(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Move the tenant to another plan, or give it its first one."""
    tenant = _tenant(slug)
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
        ask = Ask(f"Choose a plan for {tenant.name}", "Subscribe", _page(tenant, "limits"), tenant.name)
        return answered(request, desk, ask, SubscribeForm(bound(request)), act)
    follows = [
        f"It has {one.version}. A plan with at least as much credit a month begins now.",
        "The rest of this month’s difference is granted; nothing is taken away.",
    ]
    ask = Ask(f"Change the plan of {tenant.name}", "Change plan", _page(tenant, "limits"), tenant.name, follows=follows)
    initial = {"plan": one.version.plan.slug}
    return answered(request, desk, ask, ChangePlanForm(bound(request), initial=initial), act)


class EndForm(ReasonForm):
    """When a subscription ends, and why."""

    when = forms.ChoiceField(
        choices=[("month", "With its current month"), ("now", "At once")], widget=forms.RadioSelect, initial="month"
    )
    field_order = ("when", "reason")


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "billing.change_subscription")
def end(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """End the tenant's subscription."""
    tenant = _tenant(slug)

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
    ask = Ask(title, "End", _page(tenant, "limits"), tenant.name, follows=follows, is_danger=True)
    return answered(request, desk, ask, EndForm(bound(request)), act)


class SuspendForm(ReasonForm, TypedForm):
    """Why, and the slug."""


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "gateway.change_tenant")
def suspend(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Stop everything of the tenant within a second."""
    tenant = _tenant(slug)
    if not tenant.is_active:
        messages.info(request, f"{tenant.name} is suspended already.")
        return redirect(_page(tenant))
    ends = tenants.what_ends(tenant=tenant)

    def act(asked: dict[str, Any]) -> str:
        with because(asked["reason"]):
            tenants.deactivate_tenant(tenant=tenant)
        return f"{tenant.name} is suspended: {ends}. Credit, usage and audit trail are kept."

    ask = Ask(
        f"Suspend {tenant.name}",
        "Suspend",
        _page(tenant),
        tenant.name,
        lists=[
            ("Refused within a second", [
                f"{ends.keys} keys that work", f"{ends.members} members", f"{ends.invitations} open invitations",
            ]),
            ("What stays", [
                f"{ends.running} requests that run end as they would have",
                "Credit, usage, ledger and audit trail; “Activate” lets everything go on as before",
            ]),
        ],
        is_danger=True,
    )  # fmt: skip
    return answered(request, desk, ask, SuspendForm(bound(request), expected=tenant.slug), act)


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "gateway.change_tenant")
def activate(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Let a suspended tenant go on."""
    tenant = _tenant(slug)

    def act(asked: dict[str, Any]) -> str:
        with because(asked["reason"]):
            tenants.activate_tenant(tenant=tenant)
        return f"{tenant.name} goes on: its keys and members work again."

    follows = ["Its keys and members work again, as before."]
    ask = Ask(f"Activate {tenant.name}", "Activate", _page(tenant), tenant.name, follows=follows)
    return answered(request, desk, ask, ReasonForm(bound(request)), act)


class InviteForm(forms.Form):
    """Who is invited, and as what."""

    email = forms.EmailField(
        label="Address", max_length=members.LONGEST_ADDRESS, help_text="Gets the invitation by mail."
    )
    role = forms.ChoiceField(
        choices=[
            (Membership.Role.OWNER, "Owner: everything, owners and admin keys too"),
            (Membership.Role.ADMIN, "Admin: people, projects, keys and settings"),
            (Membership.Role.MEMBER, "Member: chats, and has keys of their own"),
            (Membership.Role.BILLING, "Billing: sees usage and credit"),
        ],
        widget=forms.RadioSelect,
        initial=Membership.Role.MEMBER,
    )


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "gateway.add_invitation")
def invite(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Invite somebody to the tenant, and show the address that takes the invitation up."""
    tenant = _tenant(slug)

    def act(asked: dict[str, Any]) -> HttpResponse:
        made, address = members.invite_by_mail(tenant=tenant, **asked)
        messages.success(request, to_copy(f"{made.email} is invited. The address, also sent by mail:", address))
        return redirect(ask.back)

    ask = Ask(f"Invite to {tenant.name}", "Invite", _page(tenant, "people"), tenant.name)
    return answered(request, desk, ask, InviteForm(bound(request)), act)


@require_POST
@operator_page("gateway.view_tenant", "gateway.delete_invitation")
def withdraw(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponse:
    """Take an open invitation back."""
    tenant = _tenant(slug)
    one = get_object_or_404(Invitation.objects.of(tenant), pk=pk)
    try:
        members.withdraw_invitation(tenant=tenant, invitation=one)
    except ServiceError as refused:
        messages.error(request, refused.message)
    else:
        messages.success(request, f"The invitation of {one.email} is taken back: its link works no more.")
    return redirect(_page(tenant, "people"))


class MemberForm(forms.Form):
    """A member's role, or their end."""

    role = forms.ChoiceField(
        choices=[*InviteForm.base_fields["role"].choices, ("", "None: remove them from the tenant")],  # type: ignore[attr-defined]
        required=False,
        widget=forms.RadioSelect,
    )


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "gateway.change_membership")
def member(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Give a member another role, or remove them; keys that end with it are named."""
    tenant = _tenant(slug)
    one = get_object_or_404(Membership.objects.of(tenant).select_related("user"), pk=pk, is_active=True)

    def act(asked: dict[str, Any]) -> str:
        if asked["role"]:
            ended = members.change_role(tenant=tenant, membership=one, role=asked["role"])
            done = f"{one.user.email} is {Membership.Role(asked['role']).label.lower()} of {tenant.name} now."
        else:
            ended = members.remove_member(tenant=tenant, membership=one)
            done = f"{one.user.email} is removed from {tenant.name}."
        for key in ended:
            messages.warning(request, f"{key}.")
        return done

    follows = [
        "Whatever a role let them make ends with it: admin keys, keys that manage, and when they leave all their keys."
    ]
    ask = Ask(f"Role of {one.user.email}", "Save", _page(tenant, "people"), tenant.name, follows=follows)
    return answered(request, desk, ask, MemberForm(bound(request), initial={"role": one.role}), act)


@sensitive_variables("secret")
@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "gateway.add_apikey")
def key_new(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Make a key for one of the tenant's projects, and go on to the page that shows its secret."""
    tenant = _tenant(slug)
    form = NewKeyForm(bound(request), access=Access(tenant, Membership.Role.OWNER, desk.user))

    @sensitive_variables("secret")
    def act(asked: dict[str, Any]) -> HttpResponse:
        made, secret = keys.create_key(
            tenant=tenant,
            project=form.projects[asked["project"]],
            name=asked["name"],
            scopes=form.scopes(),
            expires_at=asked["expires"],
            restrictions=form.restrictions(),
            created_by=desk.user,
        )
        return made_keys.redirect_with(
            secret, made, path=reverse("operate-tenant-key-made", args=[tenant.slug, made.pk])
        )

    ask = Ask(f"New key for {tenant.name}", "Make the key", _page(tenant, "keys"), tenant.name)
    return answered(
        request, desk, ask, form, act, template="console/key_form.html", expires_at="expires", scopes="access"
    )


@sensitive_variables("secret")
@require_safe
@operator_page("gateway.view_tenant", "gateway.view_apikey")
def key_made(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponse:
    """Show a new key's secret: here and never again."""
    tenant = _tenant(slug)
    key = get_object_or_404(APIKey.objects.of(tenant), pk=pk)
    secret = made_keys.secret_of(request, key)
    context = desk.context(page="tenants", tenant_of_key=tenant, key=key, secret=secret, back=_page(tenant, "keys"))
    return made_keys.shown(render(request, "operate/key_made.html", context), path=request.path)


class NameForm(forms.Form):
    """Another name."""

    name = forms.CharField(max_length=120)


def _open_key(tenant: Tenant, pk: UUID) -> APIKey:
    return get_object_or_404(APIKey.objects.of(tenant).select_related("project"), pk=pk, revoked_at=None)


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "gateway.change_apikey")
def key_rename(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Give a key another name."""
    tenant = _tenant(slug)
    key = _open_key(tenant, pk)

    def act(asked: dict[str, Any]) -> str:
        changed = keys.change_key(tenant=tenant, key=key, change=asked)
        return f"The key is called {changed.name} now."

    ask = Ask(f"Rename the key {key.name}", "Rename", _page(tenant, "keys"), tenant.name)
    return answered(request, desk, ask, NameForm(bound(request), initial={"name": key.name}), act)


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "gateway.change_apikey")
def key_revoke(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Make a key useless within a second."""
    tenant = _tenant(slug)
    key = _open_key(tenant, pk)

    def act(_: dict[str, Any]) -> str:
        keys.revoke_key(tenant=tenant, key=key)
        return f"{key.name} is revoked: within a second nobody takes it any more."

    follows = [
        f"Programs of {tenant.name} that use {key.prefix}…{key.last_four} are refused within a second, for ever."
    ]
    ask = Ask(
        f"Revoke the key {key.name}", "Revoke", _page(tenant, "keys"), tenant.name, follows=follows, is_danger=True
    )
    return answered(request, desk, ask, TypedForm(bound(request), expected=key.name), act)


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "gateway.change_adminapikey")
def admin_key_revoke(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Make an admin key useless."""
    tenant = _tenant(slug)
    key = get_object_or_404(AdminAPIKey.objects.of(tenant), pk=pk, revoked_at=None)

    def act(_: dict[str, Any]) -> str:
        admin_keys.revoke_admin_key(tenant=tenant, key=key)
        return f"{key.name} is revoked."

    follows = [f"Tools that manage {tenant.name} by this key are refused from now on."]
    title = f"Revoke the admin key {key.name}"
    ask = Ask(title, "Revoke", _page(tenant, "keys"), tenant.name, follows=follows, is_danger=True)
    return answered(request, desk, ask, TypedForm(bound(request), expected=key.name), act)


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "gateway.add_project")
def project_new(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Make a project."""
    tenant = _tenant(slug)

    def act(asked: dict[str, Any]) -> str:
        return f"The project {tenants.create_project(tenant=tenant, **asked).name} is made."

    follows = ["Keys, files, batches and usage belong to a project."]
    ask = Ask(
        f"New project of {tenant.name}", "Make the project", _page(tenant, "projects"), tenant.name, follows=follows
    )
    return answered(request, desk, ask, NameForm(bound(request)), act)


def _open_project(tenant: Tenant, pk: UUID) -> Project:
    return get_object_or_404(Project.objects.of(tenant), pk=pk, is_active=True)


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "gateway.change_project")
def project_rename(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Give a project another name."""
    tenant = _tenant(slug)
    one = _open_project(tenant, pk)

    def act(asked: dict[str, Any]) -> str:
        return f"The project is called {tenants.rename_project(tenant=tenant, project=one, **asked).name} now."

    ask = Ask(f"Rename the project {one.name}", "Rename", _page(tenant, "projects"), tenant.name)
    return answered(request, desk, ask, NameForm(bound(request), initial={"name": one.name}), act)


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "gateway.change_project")
def project_archive(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Archive a project: its keys are refused."""
    tenant = _tenant(slug)
    one = _open_project(tenant, pk)

    def act(_: dict[str, Any]) -> str:
        tenants.archive_project(tenant=tenant, project=one)
        return f"{one.name} is archived: its keys are refused within a second."

    follows = ["Its keys are refused within a second, for ever. Its usage stays."]
    title = f"Archive the project {one.name}"
    ask = Ask(title, "Archive", _page(tenant, "projects"), tenant.name, follows=follows, is_danger=True)
    return answered(request, desk, ask, TypedForm(bound(request), expected=one.name), act)


class SettingsForm(forms.Form):
    """A tenant's name, and what it keeps for how long."""

    name = forms.CharField(max_length=120)
    response_storage = forms.ChoiceField(
        choices=Tenant.Storage.choices,
        widget=forms.RadioSelect,
        label="Responses are stored",
        help_text="“Never” deletes those that are kept.",
    )
    hosted_tools = forms.ChoiceField(
        choices=Tenant.HostedTools.choices, widget=forms.RadioSelect, label="Tools that would run at a provider"
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for name, label in KEPT.items():
            most = tenants.most_days(name)
            text = f"Days, at most {most}. Empty: these {most} of the installation."
            self.fields[name] = forms.IntegerField(
                required=False, min_value=1, max_value=most, label=label, help_text=text
            )


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "gateway.change_tenant")
def settings(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Change the tenant's name and settings."""
    tenant = _tenant(slug)
    initial = {name: getattr(tenant, name) for name in ("name", *tenants.SETTINGS, *tenants.RETENTION)}
    form = SettingsForm(bound(request), initial=initial)

    def act(asked: dict[str, Any]) -> str:
        changed = {name: asked[name] for name in form.changed_data}
        if "name" in changed:
            tenants.rename_tenant(tenant=tenant, name=changed.pop("name"))
        if changed:
            tenants.set_settings(tenant=tenant, **changed)
        return "The settings are saved, and hold within a second."

    ask = Ask(f"Settings of {tenant.name}", "Save", _page(tenant, "limits"), tenant.name)
    return answered(request, desk, ask, form, act)


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "gateway.change_tenant")
def export(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Say what an export has, and send it."""
    tenant = _tenant(slug)
    follows = [
        "One archive of JSON lines: people, keys without their secrets, responses, batches, files, usage, the ledger.",
        "It has what the tenant’s people wrote. That you took it stands in the tenant’s audit trail.",
    ]
    ask = Ask(f"Export {tenant.name}", "Download", _page(tenant), tenant.name, follows=follows)
    return answered(request, desk, ask, forms.Form(bound(request)), lambda _: tenants_archive(tenant))


class EraseForm(TypedForm):
    """The slug, and that what stands against it is to go too."""

    force = forms.BooleanField(required=False)

    def __init__(self, *args: Any, obstacle: str, **options: Any) -> None:
        super().__init__(*args, **options)
        if not obstacle:
            del self.fields["force"]
            return
        self.fields["force"].label = "End its subscription, and void the credit that it paid for"
        self.fields["force"].help_text = f"Now {obstacle}."
        self.order_fields(["force", "typed"])
        self.obstacle = obstacle

    def clean_force(self) -> bool:
        """Refuse while that isn't chosen."""
        if not self.cleaned_data["force"]:
            raise forms.ValidationError(
                f"It isn’t erased while {self.obstacle}: choose this, or end and refund that first."
            )
        return True


@require_http_methods(_METHODS)
@operator_page("gateway.view_tenant", "gateway.delete_tenant")
def erase(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Say what goes and what stays; once the slug is typed, erase the tenant for ever."""
    tenant = _tenant(slug)
    doomed = erasure.tenants_end(tenant)

    def act(_: dict[str, Any]) -> HttpResponse:
        erasure.end_tenant(tenant)
        erasure.wait_for_end(tenant, WAIT_SECONDS)
        with without_limits():
            erasure.erase_tenant(tenant)
        messages.success(request, "The tenant is erased. Its usage and its books stay, nameless.")
        return redirect(_page(tenant))

    ask = Ask(
        f"Erase {tenant.name}",
        "Erase for ever",
        _page(tenant),
        tenant.name,
        follows=[
            "This can’t be undone. Nothing new begins from now on; what runs ends and is charged first.",
            "Backups keep what they hold until they are deleted.",
            "With very much usage this takes minutes; begin again what was cut off (or “manage.py tenants erase”).",
        ],
        lists=[
            ("What goes", doomed.goes or ["names, and what its people wrote"]),
            ("What stays", ["usage, transfers, grants and subscriptions, with their sums and without names"]),
        ],
        is_danger=True,
    )
    return answered(request, desk, ask, EraseForm(bound(request), expected=tenant.slug, obstacle=doomed.obstacle), act)


@require_http_methods(_METHODS)
@operator_page(*viewing.NEEDS)
def view(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Let the operator look at the tenant's pages as its owner sees them."""
    tenant = _tenant(slug)

    def act(_: dict[str, Any]) -> HttpResponse:
        if not viewing.may_view(desk.user, tenant):
            raise ServiceError("", "A suspended tenant has no pages: activate it first.")
        viewing.begin(request, tenant)
        return redirect("console-home")

    follows = [
        "For half an hour you see its pages as its owner does, until you go back.",
        "Nothing can be changed there, and what its people wrote isn’t shown: chats and files.",
        "That you looked stands in the tenant’s audit trail.",
    ]
    ask = Ask(f"See {tenant.name} as its owner", "See its pages", _page(tenant), tenant.name, follows=follows)
    return answered(request, desk, ask, forms.Form(bound(request)), act)


@require_POST
@operator_page()
def view_end(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Go back to operating."""
    tenant = viewing.end(request)
    return redirect("operate-now") if tenant is None else redirect("operate-tenant", tenant.slug)
