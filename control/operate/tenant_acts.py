"""Acts on a tenant as a whole: settings, suspension, export, erasure, and seeing its pages as its owner."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_POST

from base.database.connections import without_limits
from base.errors import ServiceError
from control.belongings import erasure
from control.belongings.download import tenants_archive
from control.operate.asks import METHODS, Ask, ReasonForm, answered, bound
from control.operate.base import Desk, operator_page
from control.operate.subject import open_tenant, page_of
from control.operate.tenant_wallet import KEPT
from control.screens import viewing
from control.screens.forms import TypedForm
from tenancy.audit.origin import because
from tenancy.models import Tenant
from tenancy.services import tenants

WAIT_SECONDS = 20.0


class SuspendForm(ReasonForm, TypedForm):
    """Why, and the slug."""


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "gateway.change_tenant")
def suspend(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Stop everything of the tenant within a second."""
    tenant = open_tenant(slug)
    if not tenant.is_active:
        messages.info(request, f"{tenant.name} is suspended already.")
        return redirect(page_of(tenant))
    ends = tenants.what_ends(tenant=tenant)

    def act(asked: dict[str, Any]) -> str:
        with because(asked["reason"]):
            tenants.deactivate_tenant(tenant=tenant)
        return f"{tenant.name} is suspended: {ends}. Credit, usage and audit trail are kept."

    ask = Ask(
        f"Suspend {tenant.name}",
        "Suspend",
        page_of(tenant),
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


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "gateway.change_tenant")
def activate(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Let a suspended tenant go on."""
    tenant = open_tenant(slug)

    def act(asked: dict[str, Any]) -> str:
        with because(asked["reason"]):
            tenants.activate_tenant(tenant=tenant)
        return f"{tenant.name} goes on: its keys and members work again."

    follows = ["Its keys and members work again, as before."]
    ask = Ask(f"Activate {tenant.name}", "Activate", page_of(tenant), tenant.name, follows=follows)
    return answered(request, desk, ask, ReasonForm(bound(request)), act)


class SettingsForm(forms.Form):
    """A tenant's name, and for how many days it keeps its rows."""

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


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "gateway.change_tenant")
def settings(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Change the tenant's name and settings."""
    tenant = open_tenant(slug)
    initial = {name: getattr(tenant, name) for name in ("name", *tenants.SETTINGS, *tenants.RETENTION)}
    form = SettingsForm(bound(request), initial=initial)

    def act(asked: dict[str, Any]) -> str:
        changed = {name: asked[name] for name in form.changed_data}
        if "name" in changed:
            tenants.rename_tenant(tenant=tenant, name=changed.pop("name"))
        if changed:
            tenants.set_settings(tenant=tenant, **changed)
        return "The settings are saved, and hold within a second."

    ask = Ask(f"Settings of {tenant.name}", "Save", page_of(tenant, "limits"), tenant.name)
    return answered(request, desk, ask, form, act)


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "gateway.change_tenant")
def export(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Say what is in an export, and send it."""
    tenant = open_tenant(slug)
    follows = [
        "One archive of JSON lines: people, keys without their secrets, responses, batches, files, usage, the ledger.",
        "It has what the tenant’s people wrote. That you took it stands in the tenant’s audit trail.",
    ]
    ask = Ask(f"Export {tenant.name}", "Download", page_of(tenant), tenant.name, follows=follows)
    return answered(request, desk, ask, forms.Form(bound(request)), lambda _: tenants_archive(tenant))


class EraseForm(TypedForm):
    """The slug, and the consent to remove the obstacles too."""

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


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "gateway.delete_tenant")
def erase(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Say what goes and what stays; once the slug is typed, erase the tenant for ever."""
    tenant = open_tenant(slug)
    doomed = erasure.tenants_end(tenant)

    def act(_: dict[str, Any]) -> HttpResponse:
        erasure.end_tenant(tenant)
        erasure.wait_for_end(tenant, WAIT_SECONDS)
        with without_limits():
            erasure.erase_tenant(tenant)
        messages.success(request, "The tenant is erased. Its usage and its books stay, nameless.")
        return redirect(page_of(tenant))

    ask = Ask(
        f"Erase {tenant.name}",
        "Erase for ever",
        page_of(tenant),
        tenant.name,
        follows=[
            "This can’t be undone. Nothing new begins from now on; what runs ends and is charged first.",
            "Backups, and the files of archived months, keep what they hold until they are deleted.",
            "With very much usage this takes minutes; begin again what was cut off (or “manage.py tenants erase”).",
        ],
        lists=[
            ("What goes", doomed.goes or ["names, and what its people wrote"]),
            ("What stays", ["usage, transfers, grants and subscriptions, with their sums and without names"]),
        ],
        is_danger=True,
    )
    return answered(request, desk, ask, EraseForm(bound(request), expected=tenant.slug, obstacle=doomed.obstacle), act)


@require_http_methods(METHODS)
@operator_page(*viewing.NEEDS)
def view(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Let the operator look at the tenant's pages as its owner sees them."""
    tenant = open_tenant(slug)

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
    ask = Ask(f"See {tenant.name} as its owner", "See its pages", page_of(tenant), tenant.name, follows=follows)
    return answered(request, desk, ask, forms.Form(bound(request)), act)


@require_POST
@operator_page()
def view_end(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Go back to operating."""
    tenant = viewing.end(request)
    return redirect("operate-now") if tenant is None else redirect("operate-tenant", tenant.slug)
