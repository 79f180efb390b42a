"""Showing a new key's secret once, on the page after the form, without storing it on the server.

The answer to the form is a redirect, so that loading the page again makes no second key. The secret travels in a signed
cookie of that page's address alone, which the page removes as it shows it, and which ends by itself within two minutes.
"""

from __future__ import annotations

from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.views.decorators.debug import sensitive_variables

from tenancy.models import AdminAPIKey, APIKey

COOKIE = "sluice_made_key"
SECONDS = 120


@sensitive_variables("secret")
def redirect_with(secret: str, key: APIKey | AdminAPIKey, *, path: str, query: str = "") -> HttpResponse:
    """Answer with a redirect to `path`, whose page shows the secret."""
    response = HttpResponseRedirect(path + query)
    response.set_cookie(
        COOKIE,
        signing.dumps([str(key.id), secret], salt=COOKIE),
        max_age=SECONDS,
        path=path,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Strict",
    )
    return response


@sensitive_variables("secret")
def secret_of(request: HttpRequest, key: APIKey | AdminAPIKey) -> str:
    """Return the secret that came with the redirect, or nothing: the page was loaded again, or too late."""
    try:
        named, secret = signing.loads(request.COOKIES.get(COOKIE, ""), salt=COOKIE, max_age=SECONDS)
    except (signing.BadSignature, ValueError):
        return ""
    return str(secret) if named == str(key.id) else ""


def shown(response: HttpResponse, *, path: str) -> HttpResponse:
    """Return the page with the cookie removed, kept by no cache."""
    response.delete_cookie(COOKIE, path=path, samesite="Strict")
    response.headers["Cache-Control"] = "no-store"
    return response
