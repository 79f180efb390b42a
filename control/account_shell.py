"""The context by which account pages keep the tenant, the balance and the navigation of the signed-in person.

The views are allauth's, so the context comes from a processor. It asks the database for these pages alone.
"""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest

from control.console.tenancy import place_of
from control.operate.base import Desk
from tenancy.models import User

PREFIXES = ("account_", "mfa_", "usersessions_")
_HELD = "_account_shell"


def account_shell(request: HttpRequest) -> dict[str, Any]:
    """Return the context of the user's own side on an account page: their tenant's, else the operator's."""
    match = request.resolver_match
    if match is None or not (match.url_name or "").startswith(PREFIXES):
        return {}
    user = getattr(request, "user", None)
    if not isinstance(user, User) or not user.is_authenticated:
        return {}
    held: dict[str, Any] | None = getattr(request, _HELD, None)
    if held is None:  # allauth renders mails and messages with the request too
        held = _shell_of(request, user)
        setattr(request, _HELD, held)
    return held


def _shell_of(request: HttpRequest, user: User) -> dict[str, Any]:
    try:
        place = place_of(request)
    except Http404:
        place = None
    if place is not None:
        return place.context(page="account")
    return Desk(user).context(page="account") if user.is_staff else {}
