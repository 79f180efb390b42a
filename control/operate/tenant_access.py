"""Acts on who gets into a tenant: invitations, members, keys, and the projects that keys belong to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
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

from base.errors import ServiceError
from control import made_keys
from control.operate.asks import METHODS, Ask, answered, bound, to_copy
from control.operate.base import Desk, operator_page
from control.operate.subject import open_tenant, page_of
from control.screens.forms import TypedForm
from control.screens.key_forms import NewKeyForm
from tenancy.models import AdminAPIKey, APIKey, Invitation, Membership, Project, Tenant
from tenancy.services import admin_keys, keys, members, tenants
from tenancy.services.access import Access


class InviteForm(forms.Form):
    """An invitation: the address and the role."""

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


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "gateway.add_invitation")
def invite(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Invite somebody to the tenant, and show the address that takes the invitation up."""
    tenant = open_tenant(slug)

    def act(asked: dict[str, Any]) -> HttpResponse:
        made, address = members.invite_by_mail(tenant=tenant, **asked)
        messages.success(request, to_copy(f"{made.email} is invited. The address, also sent by mail:", address))
        return redirect(ask.back)

    ask = Ask(f"Invite to {tenant.name}", "Invite", page_of(tenant, "people"), tenant.name)
    return answered(request, desk, ask, InviteForm(bound(request)), act)


@require_POST
@operator_page("gateway.view_tenant", "gateway.delete_invitation")
def withdraw(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponse:
    """Take an open invitation back."""
    tenant = open_tenant(slug)
    one = get_object_or_404(Invitation.objects.of(tenant), pk=pk)
    try:
        members.withdraw_invitation(tenant=tenant, invitation=one)
    except ServiceError as refused:
        messages.error(request, refused.message)
    else:
        messages.success(request, f"The invitation of {one.email} is taken back: its link works no more.")
    return redirect(page_of(tenant, "people"))


class MemberForm(forms.Form):
    """A member's role, or their end."""

    role = forms.ChoiceField(
        choices=[*InviteForm.base_fields["role"].choices, ("", "None: remove them from the tenant")],  # type: ignore[attr-defined]
        required=False,
        widget=forms.RadioSelect,
    )


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "gateway.change_membership")
def member(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Give a member another role, or remove them; keys that end with it are named."""
    tenant = open_tenant(slug)
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
    ask = Ask(f"Role of {one.user.email}", "Save", page_of(tenant, "people"), tenant.name, follows=follows)
    return answered(request, desk, ask, MemberForm(bound(request), initial={"role": one.role}), act)


@sensitive_variables("secret")
@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "gateway.add_apikey")
def key_new(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Make a key for one of the tenant's projects, and go on to the page that shows its secret."""
    tenant = open_tenant(slug)
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

    ask = Ask(f"New key for {tenant.name}", "Make the key", page_of(tenant, "keys"), tenant.name)
    return answered(
        request, desk, ask, form, act, template="console/key_form.html", expires_at="expires", scopes="access"
    )


@sensitive_variables("secret")
@require_safe
@operator_page("gateway.view_tenant", "gateway.view_apikey")
def key_made(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponse:
    """Show a new key's secret: here and never again."""
    tenant = open_tenant(slug)
    key = get_object_or_404(APIKey.objects.of(tenant), pk=pk)
    secret = made_keys.secret_of(request, key)
    context = desk.context(page="tenants", tenant_of_key=tenant, key=key, secret=secret, back=page_of(tenant, "keys"))
    return made_keys.shown(render(request, "operate/key_made.html", context), path=request.path)


class NameForm(forms.Form):
    """Another name."""

    name = forms.CharField(max_length=120)


def _renamed(
    request: HttpRequest,
    desk: Desk,
    tenant: Tenant,
    one: APIKey | Project,
    *,
    kind: str,
    rename: Callable[[str], APIKey | Project],
) -> HttpResponseBase:
    """Ask for another name of a key or project."""

    def act(asked: dict[str, Any]) -> str:
        return f"The {kind} is called {rename(asked['name']).name} now."

    ask = Ask(f"Rename the {kind} {one.name}", "Rename", page_of(tenant, f"{kind}s"), tenant.name)
    return answered(request, desk, ask, NameForm(bound(request), initial={"name": one.name}), act)


def _ended(
    request: HttpRequest,
    desk: Desk,
    ask: Ask,
    one: APIKey | AdminAPIKey | Project,
    *,
    end: Callable[[], object],
    done: str,
) -> HttpResponseBase:
    """End a key or project for ever, once its name is typed."""

    def act(_: dict[str, Any]) -> str:
        end()
        return f"{one.name} {done}"

    return answered(request, desk, replace(ask, is_danger=True), TypedForm(bound(request), expected=one.name), act)


def _open_key(tenant: Tenant, pk: UUID) -> APIKey:
    return get_object_or_404(APIKey.objects.of(tenant).select_related("project"), pk=pk, revoked_at=None)


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "gateway.change_apikey")
def key_rename(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Give a key another name."""
    tenant = open_tenant(slug)
    key = _open_key(tenant, pk)

    def rename(name: str) -> APIKey:
        return keys.change_key(tenant=tenant, key=key, change={"name": name})

    return _renamed(request, desk, tenant, key, kind="key", rename=rename)


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "gateway.change_apikey")
def key_revoke(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Make a key useless within a second."""
    tenant = open_tenant(slug)
    key = _open_key(tenant, pk)
    follows = [
        f"Programs of {tenant.name} that use {key.prefix}…{key.last_four} are refused within a second, for ever."
    ]
    ask = Ask(f"Revoke the key {key.name}", "Revoke", page_of(tenant, "keys"), tenant.name, follows=follows)
    done = "is revoked: within a second nobody takes it any more."
    return _ended(request, desk, ask, key, end=partial(keys.revoke_key, tenant=tenant, key=key), done=done)


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "gateway.change_adminapikey")
def admin_key_revoke(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Make an admin key useless."""
    tenant = open_tenant(slug)
    key = get_object_or_404(AdminAPIKey.objects.of(tenant), pk=pk, revoked_at=None)
    follows = [f"Tools that manage {tenant.name} by this key are refused from now on."]
    ask = Ask(f"Revoke the admin key {key.name}", "Revoke", page_of(tenant, "keys"), tenant.name, follows=follows)
    end = partial(admin_keys.revoke_admin_key, tenant=tenant, key=key)
    return _ended(request, desk, ask, key, end=end, done="is revoked.")


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "gateway.add_project")
def project_new(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Make a project."""
    tenant = open_tenant(slug)

    def act(asked: dict[str, Any]) -> str:
        return f"The project {tenants.create_project(tenant=tenant, **asked).name} is made."

    follows = ["Keys, files, batches and usage belong to a project."]
    ask = Ask(
        f"New project of {tenant.name}", "Make the project", page_of(tenant, "projects"), tenant.name, follows=follows
    )
    return answered(request, desk, ask, NameForm(bound(request)), act)


def _open_project(tenant: Tenant, pk: UUID) -> Project:
    return get_object_or_404(Project.objects.of(tenant), pk=pk, is_active=True)


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "gateway.change_project")
def project_rename(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Give a project another name."""
    tenant = open_tenant(slug)
    one = _open_project(tenant, pk)
    rename = partial(tenants.rename_project, tenant=tenant, project=one)
    return _renamed(request, desk, tenant, one, kind="project", rename=lambda name: rename(name=name))


@require_http_methods(METHODS)
@operator_page("gateway.view_tenant", "gateway.change_project")
def project_archive(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Archive a project: its keys are refused."""
    tenant = open_tenant(slug)
    one = _open_project(tenant, pk)
    follows = ["Its keys are refused within a second, for ever. Its usage stays."]
    ask = Ask(f"Archive the project {one.name}", "Archive", page_of(tenant, "projects"), tenant.name, follows=follows)
    done = "is archived: its keys are refused within a second."
    end = partial(tenants.archive_project, tenant=tenant, project=one)
    return _ended(request, desk, ask, one, end=end, done=done)
