"""A person's sessions, each with browser, address and the moment it was last seen; their ends."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256

from allauth.account.adapter import get_adapter
from allauth.usersessions.models import UserSession
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_required
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from control.screens.tables import Button, Cell, Column, Row, State, Table
from tenancy.audit.trail import record
from tenancy.models import User

SEEN_SECONDS = 300
"""A session in use is noted once in this time, so that pages cost no write."""
MOST_SHOWN = 100
_LONGEST = UserSession._meta.get_field("user_agent").max_length
_BROWSERS = (
    ("Edge", r"Edg(e|A|iOS)?/"),
    ("Opera", r"OPR/"),
    ("Firefox", r"Firefox/|FxiOS/"),
    ("Chrome", r"Chrome/|CriOS/"),
    ("Safari", r"Safari/"),
)
_SYSTEMS = (
    ("iPhone", r"iPhone"),
    ("iPad", r"iPad"),
    ("Android", r"Android"),
    ("Windows", r"Windows"),
    ("macOS", r"Mac OS X"),
    ("ChromeOS", r"CrOS"),
    ("Linux", r"Linux"),
)


class SeenMiddleware:
    """Notes which sessions are in use, from where, and since when."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer, and note the session of who is signed in then: a sign-in has changed it by now."""
        response = self.get_response(request)
        if response.status_code < 500 and request.session.session_key and request.user.is_authenticated:
            _note(request)
        return response


def _note(request: HttpRequest) -> None:
    key = request.session.session_key or ""
    if not cache.add(f"seen:{sha256(key.encode()).hexdigest()}", 1, SEEN_SECONDS):
        return
    try:
        address = get_adapter(request).get_client_ip(request)
    except PermissionDenied:  # a client without an address: a socket of this machine
        address = "::"
    agent = request.headers.get("user-agent", "")[:_LONGEST]
    one = UserSession(
        session_key=key, user_id=request.user.pk, ip=address, user_agent=agent, last_seen_at=timezone.now()
    )
    UserSession.objects.bulk_create(
        [one],
        update_conflicts=True,
        unique_fields=["session_key"],
        update_fields=["user", "ip", "user_agent", "last_seen_at"],
    )


def sessions_of(request: HttpRequest) -> Table:
    """Return the sessions in which the person is signed in, this one first, then the last seen."""
    mine = UserSession.objects.filter(user=request.user.pk)
    open_ones = Session.objects.filter(expire_date__gt=timezone.now()).values("session_key")
    found = list(mine.filter(session_key__in=open_ones).order_by("-last_seen_at")[:MOST_SHOWN])
    here = request.session.session_key
    rows = []
    for one in sorted(found, key=lambda one: one.session_key != here):
        is_here = one.session_key == here
        name = "Sign out" if is_here else "End"
        button = Button(name, reverse("account_end_session", args=[one.pk]), browser_of(one.user_agent), post=True)
        state = State("this one", "good") if is_here else ""
        where = Cell(browser_of(one.user_agent), detail=one.ip, title=one.user_agent)
        seen = Cell(one.last_seen_at, detail=f"signed in {one.created_at:%-d %b %Y}")
        rows.append(Row([where, state, seen, [button]]))
    columns = [
        Column("Browser", "name"),
        Column("Which", "state", is_hidden=True),
        Column("Last seen", "time"),
        Column("Actions", "buttons", is_hidden=True),
    ]
    return Table("Sessions", columns, rows, "None is noted yet.", id="sessions", csrf=get_token(request))


def browser_of(agent: str) -> str:
    """Return a browser and its system in words, as “Firefox on Linux”."""
    browser = next((name for name, pattern in _BROWSERS if re.search(pattern, agent)), "")
    system = next((name for name, pattern in _SYSTEMS if re.search(pattern, agent)), "")
    return f"{browser or 'A browser'} on {system}" if system else browser or agent[:40] or "A program"


@login_required
@require_POST
def end_session(request: HttpRequest, pk: int) -> HttpResponse:
    """Sign the person out in one of their sessions."""
    one = get_object_or_404(UserSession, pk=pk, user=request.user.pk)
    if one.session_key == request.session.session_key:
        one.delete()
        logout(request)
        return redirect("account_login")
    _end(request, [one])
    messages.success(request, f"{browser_of(one.user_agent)} is signed out.")
    return redirect(reverse("account_profile") + "#sessions")


@login_required
@require_POST
def end_others(request: HttpRequest) -> HttpResponse:
    """Sign the person out everywhere but here."""
    others = UserSession.objects.filter(user=request.user.pk).exclude(session_key=request.session.session_key)
    ended = _end(request, list(others))
    messages.success(request, f"{ended} other session{'s' * (ended != 1)} ended." if ended else "No other was open.")
    return redirect(reverse("account_profile") + "#sessions")


def _end(request: HttpRequest, ended: list[UserSession]) -> int:
    """End sessions, which stands in the audit trail; return how many were open."""
    assert isinstance(request.user, User)
    count, _ = Session.objects.filter(session_key__in=[one.session_key for one in ended]).delete()
    UserSession.objects.filter(pk__in=[one.pk for one in ended]).delete()
    if count:
        record("user.signed_out", request.user, after={"sessions": count})
    return count
