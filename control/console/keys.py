"""API keys on a tenant's pages: listed, made (shown once, on the page after the form), revoked by typed name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.db.models import Case, Q, When
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import mark_safe
from django.utils.text import Truncator
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_http_methods, require_safe

from base.errors import ServiceError
from control import made_keys
from control.console.tenancy import Place, tenant_page
from control.screens.figures import day, moment
from control.screens.key_forms import KeyTermsForm, NewKeyForm, limits_in_words
from control.screens.tables import Button, Cell, Column, Row, State, Table
from tenancy.models import APIKey
from tenancy.services import keys
from tenancy.services.restrictions import with_spending
from tenancy.services.scopes import ALL, INFERENCE, MANAGEMENT, READ_ONLY

PAGE = 50
MOST_OF_NAME = 24  # characters of a name beside the key's own
STATES = {"working": "Working", "ended": "Revoked or expired"}
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
        known = [_SCOPES.get(scope) or INFERENCE.get(scope, scope) for scope in self.key.scopes]
        return ", ".join(known)

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


_TONES = {"active": "good", "expired": "warn", "revoked": ""}
_SCOPES = {ALL: "all endpoints", READ_ONLY: "reading", MANAGEMENT: "management"}


@require_safe
@tenant_page
def listing(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the keys: those that work first, then newest first; `q` and `state` choose, `before` ended the last page."""
    text = request.GET.get("q", "").replace("\0", "").strip()[:120]
    state = request.GET.get("state", "")
    found = APIKey.objects.of(place.tenant).select_related("project", "created_by")
    over = Q(revoked_at__isnull=False) | Q(expires_at__lte=timezone.now())
    found = found.annotate(is_over=Case(When(over, then=1), default=0)).order_by("is_over", "-id")
    if text:
        shown = text.rpartition("…")[2][-4:]
        found = found.filter(Q(name__icontains=text) | Q(last_four=shown) | Q(project__name__icontains=text))
    if state in STATES:
        found = found.filter(is_over=int(state == "ended"))
    if before := re.fullmatch(r"([01])\.([0-9a-f-]{36})", request.GET.get("before", "")):
        group, last = int(before[1]), UUID(before[2])
        found = found.filter(Q(is_over__gt=group) | Q(is_over=group, id__lt=last))
    rows = with_spending(found[: PAGE + 1])
    query = {**place.name, "q": text, "state": state if state in STATES else ""}
    table = _table(place, rows[:PAGE], query, has_more=len(rows) > PAGE, is_later=bool(before))
    context = place.context(page="keys", table=table, q=text, state=state, states=STATES, tab="keys")
    if place.access.may("keys"):
        context["form"] = NewKeyForm(access=place.access)
    return render(request, "console/keys.html", context)


def _table(place: Place, rows: Sequence[APIKey], query: Mapping[str, str], *, has_more: bool, is_later: bool) -> Table:
    def page(**more: str) -> str:
        asked = urlencode({name: value for name, value in {**query, **more}.items() if value})
        return f"{reverse('console-keys')}?{asked}"

    columns = [
        Column("Key", "name"),
        Column("State", "state"),
        Column("Project"),
        Column("May use", "wraps"),
        Column("Last used", "text"),
        Column("Expires", "text"),
        Column("Revoke", "buttons", is_hidden=True),
    ]
    older = page(before=f"{int(KeyLine(rows[-1], False).state != 'active')}.{rows[-1].id}") if has_more else ""
    asked = query["q"] or query["state"]
    empty = "No key matches." if asked else "No key yet. A key lets a program ask models in the name of a project."
    lines = [_row(place, KeyLine(key, place.access.may_revoke(key) and key.revoked_at is None)) for key in rows]
    return Table("API keys", columns, lines, empty, newer=page() if is_later else "", older=older, id="keys")


def _row(place: Place, line: KeyLine) -> Row:
    key = line.key
    detail = f"{key.prefix}…{key.last_four}"
    if line.is_rotating:
        detail += f", and …{key.previous_last_four} until {day(key.previous_until)}"
    address = reverse("console-key-change", args=[key.id]) + place.query if line.may_revoke else ""
    revoke = Button("Revoke", reverse("console-key-revoke", args=[key.id]) + place.query, key.name, "danger")
    words = [line.scopes, *line.limits]
    return Row(
        [
            Cell(key.name, address, detail),
            State(line.state, _TONES[line.state]),
            Cell(Truncator(key.project.name).chars(MOST_OF_NAME), title=key.project.name),
            format_html_join(mark_safe("<br>"), "{}", ((one,) for one in words)),
            moment(key.last_used_at, "never"),
            day(key.expires_at, "never"),
            [revoke] if line.may_revoke else [],
        ],
        is_over=line.state != "active",
    )


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
    context = place.context(page="keys", form=form)
    return render(request, "console/key_new.html", context, status=400 if form.errors else 200)


@sensitive_variables("secret")
@require_safe
@tenant_page
def made(request: HttpRequest, place: Place, pk: str) -> HttpResponse:
    """Show a new key's secret: here and never again."""
    key = get_object_or_404(APIKey.objects.of(place.tenant), pk=pk)
    secret = made_keys.secret_of(request, key)
    context = place.context(page="keys", key=key, secret=secret, base_url=request.build_absolute_uri("/v1"))
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
            return redirect(reverse("console-keys") + place.query)
    context = place.context(page="keys", form=form, key=key, line=KeyLine(key, may_revoke=True), overlaps=OVERLAPS)
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
    found = APIKey.objects.of(place.tenant).select_related("project")
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
            return redirect(reverse("console-keys") + place.query)
        error = f"That is not the key’s name: type “{key.name}”."
    context = place.context(page="keys", key=key, error=error)
    return render(request, "console/key_revoke.html", context, status=400 if error else 200)
