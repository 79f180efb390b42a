"""Finding anything by a few letters (Ctrl+K): each source is one query, and shows a handful."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from django_scopes import scopes_disabled

from base.ids import request_id_in
from control.console.tenancy import Place, place_to_see
from control.operate.base import Desk
from control.screens.shell import Entry, entries_of
from gateway.runtime.data_plane import live_of
from routing.models import PublicModel
from tenancy.models import APIKey, Membership, Tenant, User

MOST = 6


@dataclass(frozen=True, slots=True)
class Found:
    """A find: its name, a detail that tells it from its namesakes, and its page."""

    name: str
    about: str
    address: str


Groups = list[tuple[str, list[Found]]]


@require_safe
@never_cache
@login_required
def find(request: HttpRequest) -> HttpResponse:
    """Answer with what `q` finds on the side that asks: a fragment for the dialog, else a page."""
    text = request.GET.get("q", "").replace("\0", "").strip()[:200]
    assert isinstance(request.user, User)
    if "operate" in request.GET:
        if not request.user.is_staff:
            raise Http404
        desk = Desk(request.user)
        context = desk.context()
        with scopes_disabled():
            groups = list(_of_operator(desk, text)) if text else []
    else:
        place = place_to_see(request)
        if place is None:
            raise Http404
        with place.entered(request):
            context = place.context()
            groups = list(_of_tenant(request, place, text)) if text else []
    pages = [one for one in entries_of(context) if text and one.title.lower().startswith(text.lower())]
    found: Groups = [(title, hits) for title, hits in [("Pages", _pages(pages)), *groups] if hits]
    template = "find_results.html" if request.headers.get("hx-request") else "find.html"
    return render(request, template, {**context, "found": found, "q": text})


def _pages(entries: list[Entry]) -> list[Found]:
    return [Found(one.title, "page", one.address) for one in entries]


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text.rpartition("-")[2] if text.count("-") == 1 else text.rpartition("_")[2])
    except ValueError:
        return None


def _of_operator(desk: Desk, text: str) -> Iterator[tuple[str, list[Found]]]:
    """Yield the operator's finds: whatever role they have, only what they may view."""
    identifier = _uuid(text)
    request = request_id_in(text)
    if request is not None and desk.may("billing.view_usagerecord"):
        yield "Request", [Found(f"…{str(request)[-8:]}", "request", reverse("operate-request", args=[request]))]
    if desk.may("gateway.view_tenant"):
        match = Q(name__icontains=text) | Q(slug__istartswith=text)
        rows = Tenant.objects.filter(match | Q(pk=identifier) if identifier else match).order_by("name")[:MOST]
        yield "Tenants", [Found(row.name, row.slug, reverse("operate-tenant", args=[row.slug])) for row in rows]
    if desk.may("gateway.view_user"):
        people = User.objects.filter(Q(email__icontains=text) | Q(name__icontains=text)).order_by("email")[:MOST]
        yield "People", [Found(row.email, row.name, reverse("operate-person", args=[row.pk])) for row in people]
    if desk.may("gateway.view_apikey"):
        keys = APIKey.objects.unscoped().filter(_of_key(text)).select_related("tenant").order_by("-created_at")[:MOST]
        yield (
            "Keys",
            [
                Found(
                    f"{row.name} …{row.last_four}",
                    row.tenant.name,
                    reverse("operate-tenant", args=[row.tenant.slug]) + "keys/",
                )
                for row in keys
            ],
        )
    if desk.may("routing.view_publicmodel"):
        models = PublicModel.objects.filter(name__icontains=text).order_by("name")[:MOST]
        yield "Models", [Found(row.name, "model", reverse("operate-model", args=[row.pk])) for row in models]


def _of_tenant(request: HttpRequest, place: Place, text: str) -> Iterator[tuple[str, list[Found]]]:
    """Yield the finds that a member may see."""
    query = place.query
    identifier = request_id_in(text)
    if identifier is not None:
        yield (
            "Request",
            [Found(f"…{str(identifier)[-8:]}", "request", reverse("console-request", args=[identifier]) + query)],
        )
    keys = place.access.keys().filter(_of_key(text)).order_by("-created_at")[:MOST]
    yield (
        "Keys",
        [
            Found(
                f"{row.name} …{row.last_four}", row.project.name, reverse("console-key-change", args=[row.pk]) + query
            )
            for row in keys.select_related("project")
        ],
    )
    models = [name for name in live_of(request).catalogue().models if text.lower() in name.lower()][:MOST]
    yield "Models", [Found(name, "model", f"{reverse('console-models')}{query}#{name}") for name in models]
    if place.access.may("members"):
        members = Membership.objects.of(place.tenant).select_related("user")
        match = Q(user__email__icontains=text) | Q(user__name__icontains=text)
        yield (
            "People",
            [
                Found(row.user.email, row.role, reverse("console-people") + query)
                for row in members.filter(match).order_by("user__email")[:MOST]
            ],
        )


def _of_key(text: str) -> Q:
    """Match a key by its name, or as far as it was shown: its prefix or its last four letters; never by its secret."""
    shown = text.rpartition("…")[2].strip()
    return Q(name__icontains=text) | Q(last_four=shown[-4:] if len(shown) >= 4 else shown)
