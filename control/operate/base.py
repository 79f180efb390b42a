"""The base of the operator's pages: the operator with the role's permissions, live parts, commands to copy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec
from urllib.parse import urlencode, urlsplit

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.views.decorators.cache import never_cache

from tenancy.models import User
from tenancy.services.access import accesses_of_user

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Desk:
    """The operator at a page: `may` answers for a permission such as ``billing.add_creditgrant``."""

    user: User

    def may(self, permission: str) -> bool:
        """Return whether the operator's role has the permission."""
        return self.user.has_perm(permission)

    def context(self, **more: Any) -> dict[str, Any]:
        """Return the context of every page's template, and `more`, `page` among it."""
        return {"desk": self, **more}


View = Callable[Concatenate[HttpRequest, Desk, P], HttpResponseBase]


def operator_page(*needs: str) -> Callable[[View[P]], Callable[..., HttpResponseBase]]:
    """Give a view its Desk, unscoped (`OperatorScopeMiddleware`), where the operator's role has all that it needs.

    Whoever isn't an operator finds no page at all; an operator whose role lacks something is told.
    """

    def decorate(view: View[P]) -> Callable[..., HttpResponseBase]:
        @never_cache
        @login_required
        @wraps(view)
        def inner(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            if not isinstance(request.user, User) or not request.user.is_staff:
                raise Http404
            desk = Desk(request.user)
            if lacking := [one for one in needs if not desk.may(one)]:
                return _refused(request, desk, lacking)
            return view(request, desk, *args, **kwargs)

        return inner

    return decorate


def _refused(request: HttpRequest, desk: Desk, lacking: list[str]) -> HttpResponse:
    return render(request, "operate/refused.html", desk.context(lacking=lacking), status=403)


def has_tenants(user: User) -> bool:
    """Return whether the operator is a member of a tenant too, and so has its pages."""
    return bool(accesses_of_user(user=user))


def address_of(page: str, *args: Any, **query: Any) -> str:
    """Return the address of a page, empty where there is none of that name."""
    try:
        address = reverse(page, args=args)
    except NoReverseMatch:
        return ""
    return f"{address}?{urlencode(query)}" if query else address


def live_page(request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
    """Render a page around its live part, ``<template>_live.html``, or that part alone when it polls.

    A poll that would show what the page shows already is answered 204, so that focus and selection stay where they are.
    `token` in the context is the CSRF token of the part's forms.
    """
    part = render_to_string(f"operate/{template}_live.html", context, request)
    seen = hashlib.sha256(part.replace(context.get("token", "\0"), "").encode()).hexdigest()[:16]  # another each time
    if "live" not in request.GET:
        return render(request, f"operate/{template}.html", {**context, "part": mark_safe(part), "seen": seen})  # noqa: S308
    if request.GET["live"] == seen:
        return HttpResponse(status=204)
    return render(request, "operate/live.html", {"part": mark_safe(part), "seen": seen})  # noqa: S308 - just rendered


def with_commands(text: str) -> SafeString:
    """Return a cure as HTML: what stands in backquotes is a command, with a button that copies it."""
    command = (
        '<span class="command"><code>{0}</code>'
        '<button type="button" class="quiet" data-copy-text="{0}">Copy</button></span>'
    )
    pieces = enumerate(text.split("`"))
    return format_html_join("", "{}", ((format_html(command, one) if at % 2 else one,) for at, one in pieces))


def back(request: HttpRequest, page: str) -> str:
    """Return the operator's page that a form was sent from, else `page`."""
    came_from = urlsplit(request.headers.get("referer", ""))
    is_ours = came_from.netloc == request.get_host() and came_from.path.startswith(reverse("operate-now"))
    return came_from.path if is_ours else reverse(page)
