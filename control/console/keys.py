"""API keys on a tenant's pages: listed, made (shown once, on the page after the form), revoked by typed name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_http_methods, require_safe

from base.errors import ServiceError
from control import made_keys
from control.console.tenancy import Place, tenant_page
from control.screens.key_forms import KeyTermsForm, NewKeyForm, limits_in_words
from tenancy.models import APIKey
from tenancy.services import keys

SHOWN = 200
OVERLAPS = {24: "24 hours", 168: "7 days", 1: "1 hour", 0: "not at all: it ends now"}


@dataclass(frozen=True, slots=True)
class KeyLine:
    """A key and what the reader may do with it."""

    key: APIKey
    may_revoke: bool

    @property
    def state(self) -> str:
        """``active``, ``expired`` or ``revoked``."""
        if self.key.revoked_at is not None:
            return "revoked"
        ended = self.key.expires_at is not None and self.key.expires_at <= timezone.now()
        return "expired" if ended else "active"

    @property
    def scopes(self) -> str:
        """The key's scopes, in words."""
        return ", ".join(self.key.scopes)

    @property
    def limits(self) -> list[str]:
        """The key's limits beside its scopes, in words."""
        return limits_in_words(self.key)

    @property
    def is_rotating(self) -> bool:
        """Whether the secret from before the last rotation still works."""
        return (
            self.state == "active" and self.key.previous_until is not None and self.key.previous_until > timezone.now()
        )


def key_lines(place: Place) -> list[KeyLine]:
    """Return the tenant's keys: those that work first, then newest first; one query."""
    found = APIKey.objects.of(place.tenant).select_related("project", "budget").order_by("-id")[:SHOWN]
    lines = [KeyLine(key, key.revoked_at is None and place.access.may_revoke(key)) for key in found]
    return sorted(lines, key=lambda line: line.state != "active")


@sensitive_variables("secret")
@require_http_methods(["GET", "HEAD", "POST"])
@tenant_page
def create(request: HttpRequest, place: Place) -> HttpResponse:
    """Ask for a new key, or make it and go on to the page that shows its secret."""
    if not place.access.may("keys"):
        raise Http404
    form = NewKeyForm(request.POST if request.method == "POST" else None, access=place.access)
    if request.method == "POST" and form.is_valid():
        asked = form.cleaned_data
        try:
            key, secret = keys.create_key(
                tenant=place.tenant,
                project=form.projects[asked["project"]],
                name=asked["name"],
                scopes=form.scopes(),
                expires_at=asked["expires"],
                restrictions=form.restrictions(),
                created_by=place.access.user,
            )
        except ServiceError as error:
            form.refuse(error)
        else:
            path = reverse("console-key-made", args=[key.id])
            return made_keys.redirect_with(secret, key, path=path, query=place.query)
    context = place.context(page="usage", form=form)
    return render(request, "console/key_new.html", context, status=400 if form.errors else 200)


@sensitive_variables("secret")
@require_safe
@tenant_page
def made(request: HttpRequest, place: Place, pk: str) -> HttpResponse:
    """Show a new key's secret: here and never again."""
    key = get_object_or_404(APIKey.objects.of(place.tenant), pk=pk)
    secret = made_keys.secret_of(request, key)
    context = place.context(page="usage", key=key, secret=secret, base_url=request.build_absolute_uri("/v1"))
    return made_keys.shown(render(request, "console/key_made.html", context), path=request.path)


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_page
def change(request: HttpRequest, place: Place, pk: str) -> HttpResponse:
    """Show what a key may do and take, and change it."""
    key = _own_key(place, pk)
    form = KeyTermsForm(request.POST if request.method == "POST" else None, access=place.access, key=key)
    if request.method == "POST" and form.is_valid():
        try:
            keys.change_key(
                tenant=place.tenant,
                key=key,
                change=form.terms(),
                by=place.access.person,
                only_narrows=place.access.only_narrows,
                check=form.require_seen,
            )
        except ServiceError as error:
            form.refuse(error)
        else:
            messages.success(request, f"“{key.name}” is changed: every process goes by it within a second.")
            return redirect(reverse("console-usage") + place.query + "#keys")
    context = place.context(page="usage", form=form, key=key, line=KeyLine(key, may_revoke=True), overlaps=OVERLAPS)
    return render(request, "console/key_change.html", context, status=400 if form.errors else 200)


@sensitive_variables("secret")
@require_http_methods(["POST"])
@tenant_page
def rotate(request: HttpRequest, place: Place, pk: str) -> HttpResponse:
    """Make a new secret of the key, and go on to the page that shows it; or end the secret before it."""
    key = _own_key(place, pk)
    page = reverse("console-key-change", args=[key.id]) + place.query
    if "end" in request.POST:
        keys.end_previous(tenant=place.tenant, key=key)
        messages.success(request, f"The old secret of “{key.name}” works no more.")
        return redirect(page)
    hours = request.POST.get("overlap", "")
    try:
        chosen = int(hours) if hours.isascii() and hours.isdigit() and len(hours) < 5 else -1
        rotated, secret = keys.rotate_key(tenant=place.tenant, key=key, overlap=timedelta(hours=chosen))
    except ServiceError as error:
        messages.error(request, error.message)
        return redirect(page)
    path = reverse("console-key-made", args=[key.id])
    return made_keys.redirect_with(secret, rotated, path=path, query=place.query)


def _own_key(place: Place, pk: str) -> APIKey:
    """Return a key that works and that the reader may change; 404 otherwise."""
    found = APIKey.objects.of(place.tenant).select_related("project", "budget")
    key = get_object_or_404(found, pk=pk, revoked_at=None)
    if not (place.access.may_revoke(key) and place.access.may_give_scopes(key.scopes)):
        raise Http404
    return key


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_page
def revoke(request: HttpRequest, place: Place, pk: str) -> HttpResponse:
    """Ask for the key's name; once it is typed, make the key useless."""
    key = get_object_or_404(APIKey.objects.of(place.tenant).select_related("project"), pk=pk)
    if key.revoked_at is not None or not place.access.may_revoke(key):
        raise Http404
    error = ""
    if request.method == "POST":
        if request.POST.get("name", "").strip() == key.name:
            keys.revoke_key(tenant=place.tenant, key=key)
            messages.success(request, f"“{key.name}” is revoked: within a second nobody takes it any more.")
            return redirect(reverse("console-usage") + place.query + "#keys")
        error = f"That is not the key’s name: type “{key.name}”."
    context = place.context(page="usage", key=key, error=error)
    return render(request, "console/key_revoke.html", context, status=400 if error else 200)
