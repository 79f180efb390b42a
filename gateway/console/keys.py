"""API keys on a tenant's pages: listed, made (shown once, on the page after the form), revoked by typed name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_http_methods, require_safe

from gateway.console.tenancy import Place, tenant_page
from gateway.errors.service import ServiceError
from gateway.models import APIKey, Project
from gateway.secrets import made_keys
from gateway.services import keys

SHOWN = 200
SCOPES = {
    "inference": "Inference: ask models",
    "management": "Management: keys, projects, usage",
}


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


def key_lines(place: Place) -> list[KeyLine]:
    """Return the tenant's keys: those that work first, then newest first; one query."""
    found = APIKey.objects.of(place.tenant).select_related("project").order_by("-id")[:SHOWN]
    lines = [KeyLine(key, key.revoked_at is None and place.access.may_revoke(key)) for key in found]
    return sorted(lines, key=lambda line: line.state != "active")


class NewKeyForm(forms.Form):
    """What a new key needs; members are offered no scope that outranks them."""

    name = forms.CharField(max_length=120, help_text="Where it will be used, so that you know which one to revoke.")
    project = forms.ChoiceField()
    scopes = forms.MultipleChoiceField(widget=forms.CheckboxSelectMultiple, initial=["inference"])
    expires = forms.DateField(
        required=False,
        widget=forms.DateInput(attrs={"type": "date"}),
        help_text="The first day on which it no longer works (UTC). Empty: never.",
    )

    def __init__(self, *args: Any, place: Place, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_suffix = ""
        found = Project.objects.of(place.tenant).filter(is_active=True).order_by("created_at", "id")
        self.projects = {str(project.id): project for project in found}
        self.fields["project"].choices = [(key, project.name) for key, project in self.projects.items()]  # type: ignore[attr-defined]
        offered = [(scope, text) for scope, text in SCOPES.items() if place.access.may_give_scopes([scope])]
        self.fields["scopes"].choices = offered  # type: ignore[attr-defined]
        if len(offered) == 1:
            self.fields["scopes"].widget = forms.MultipleHiddenInput()

    def clean_expires(self) -> datetime | None:
        """Return the day's beginning in UTC."""
        day = self.cleaned_data["expires"]
        return None if day is None else datetime.combine(day, time(), tzinfo=UTC)


@sensitive_variables("secret")
@require_http_methods(["GET", "HEAD", "POST"])
@tenant_page
def create(request: HttpRequest, place: Place) -> HttpResponse:
    """Ask for a new key, or make it and go on to the page that shows its secret."""
    if not place.access.may("keys"):
        raise Http404
    form = NewKeyForm(request.POST if request.method == "POST" else None, place=place)
    if request.method == "POST" and form.is_valid():
        asked = form.cleaned_data
        try:
            key, secret = keys.create_key(
                tenant=place.tenant,
                project=form.projects[asked["project"]],
                name=asked["name"],
                scopes=asked["scopes"],
                expires_at=asked["expires"],
                created_by=place.access.user,
            )
        except ServiceError as error:
            form.add_error("expires" if error.field == "expires_at" else None, error.message)
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
