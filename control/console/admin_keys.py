"""Admin API keys on a tenant's pages: listed and revoked by owners and admins, made by owners, shown once."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from base.errors import ServiceError
from control import made_keys
from control.console.tenancy import Place, tenant_page
from control.screens.figures import moment
from control.screens.tables import Button, Cell, Column, Row, State, Table
from tenancy.models import AdminAPIKey
from tenancy.services import admin_keys

SHOWN = 200


@sensitive_variables("secret")
@require_http_methods(["GET", "HEAD", "POST"])
@tenant_page
def admin_key_list(request: HttpRequest, place: Place) -> HttpResponse:
    """List the keys, and make one."""
    _only_for_admins(place)
    error = ""
    may_make = place.access.may("admin_keys")
    if request.method == "POST" and not may_make:
        raise Http404
    if request.method == "POST":
        try:
            name = request.POST.get("name", "")[:120]
            key, secret = admin_keys.create_admin_key(tenant=place.tenant, name=name, created_by=place.access.user)
        except ServiceError as refused:
            error = refused.message
        else:
            path = reverse("console-admin-key-made", args=[key.id])
            return made_keys.redirect_with(secret, key, path=path, query=place.query)
    found = AdminAPIKey.objects.of(place.tenant).select_related("created_by").order_by("-id")[:SHOWN]
    table = _table(request, place, found)
    context = place.context(page="keys", table=table, error=error, may_make=may_make, tab="admin")
    context["base_url"] = request.build_absolute_uri("/v1")
    return render(request, "console/admin_keys.html", context, status=400 if error else 200)


def _table(request: HttpRequest, place: Place, keys: Iterable[AdminAPIKey]) -> Table:
    columns = [
        Column("Key", "name"),
        Column("State", "state"),
        Column("Made by", "wraps"),
        Column("Created", "day"),
        Column("Last used", "text"),
        Column("Revoke", "buttons", is_hidden=True),
    ]
    now, rows = timezone.now(), []
    for key in keys:
        is_expired = key.expires_at is not None and key.expires_at <= now
        state = (
            State("revoked") if key.revoked_at else State("expired", "warn") if is_expired else State("active", "good")
        )
        address = reverse("console-admin-key-revoke", args=[key.id]) + place.query
        button = Button("Revoke", address, key.name, "danger", post=True)
        rows.append(
            Row(
                [
                    Cell(key.name, detail=f"sk-sluice-admin-…{key.last_four}"),
                    state,
                    key.created_by.email if key.created_by else "an admin key",
                    key.created_at,
                    moment(key.last_used_at, "never"),
                    [] if key.revoked_at else [button],
                ],
                is_over=key.revoked_at is not None or is_expired,
            )
        )
    return Table("Admin keys", columns, rows, "No admin key yet.", id="admin-keys", csrf=get_token(request))


@sensitive_variables("secret")
@require_safe
@tenant_page
def made(request: HttpRequest, place: Place, pk: str) -> HttpResponse:
    """Show a new key's secret: here and never again."""
    _only_for_admins(place)
    key = get_object_or_404(AdminAPIKey.objects.of(place.tenant), pk=pk)
    context = place.context(page="keys", key=key, secret=made_keys.secret_of(request, key), is_admin_key=True)
    context["base_url"] = request.build_absolute_uri("/v1")
    return made_keys.shown(render(request, "console/key_made.html", context), path=request.path)


@require_POST
@tenant_page
def revoke(request: HttpRequest, place: Place, pk: str) -> HttpResponse:
    """Make the key useless at once."""
    _only_for_admins(place)
    key = get_object_or_404(AdminAPIKey.objects.of(place.tenant), pk=pk)
    if admin_keys.revoke_admin_key(tenant=place.tenant, key=key):
        messages.success(request, f"“{key.name}” is revoked.")
    return redirect(reverse("console-admin-keys") + place.query)


def _only_for_admins(place: Place) -> None:
    if not place.access.may("members"):
        raise Http404
