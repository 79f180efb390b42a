"""The tenant of a page: the one that `?tenant=` names, or else the first that the user joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django_scopes import scope

from base.units import format_credits
from billing.selectors.balances import balance_of
from control.screens.figures import show_credits
from control.screens.viewing import access_of_viewer
from gateway.http.access import note_caller
from tenancy.models import Tenant, User
from tenancy.services.access import Access, accesses_of_user, suspended_tenants

P = ParamSpec("P")
_NO_MEMBER = ("not_a_member", "You belong to no tenant.")


@dataclass(frozen=True, slots=True)
class Place:
    """A page's tenant with the user's access to it, and the user's other tenants."""

    access: Access
    others: tuple[Access, ...]

    @property
    def tenant(self) -> Tenant:
        """The page's tenant."""
        return self.access.tenant

    @property
    def name(self) -> dict[str, str]:
        """The query that names the tenant; nothing where there is only one.

        A page that an operator looks at names it too: sent after that has ended, it means no tenant of theirs.
        """
        return {"tenant": self.tenant.slug} if self.others or self.access.is_viewer else {}

    @property
    def query(self) -> str:
        """`name` as the end of an address, with its question mark."""
        return f"?{urlencode(self.name)}" if self.name else ""

    @contextmanager
    def entered(self, request: HttpRequest) -> Iterator[None]:
        """Put the tenant in scope, and let the access log say who asks."""
        user = self.access.user
        note_caller(getattr(request, "scope", {}), tenant=self.tenant.id, user=user.id if user else None)
        with scope(tenant=self.tenant):
            yield

    def context(self, **more: Any) -> dict[str, Any]:
        """Return what every page's template needs, and `more`. The balance takes two queries."""
        balance = balance_of(self.tenant.id)
        available = None if balance is None else balance.available
        return {
            "place": self,
            "tenant": self.tenant,
            "may_chat": self.access.may("chat"),
            "may_keys": self.access.may("keys"),
            "may_wallet": self.access.may("wallet"),
            "may_admin_keys": self.access.may("members"),
            "may_settings": self.access.may("settings"),
            "may_audit": self.access.may("audit"),
            "balance": balance,
            "available": "" if available is None else show_credits(available),
            "available_exactly": "" if available is None else format_credits(available),
            **more,
        }


View = Callable[Concatenate[HttpRequest, Place, P], HttpResponseBase]


def tenant_page(view: View[P]) -> Callable[..., HttpResponseBase]:
    """Give `view` its Place, with the tenant in scope until the answer is rendered; others are asked to sign in."""

    @never_cache
    @login_required
    @wraps(view)
    def inner(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        place = place_to_see(request)
        if place is not None and place.access.is_viewer and request.method not in ("GET", "HEAD"):
            return render(request, "console/only_looking.html", place.context(), status=403)
        if place is None and request.user.is_staff:
            return redirect("operate-now")
        if place is None:
            return _no_tenant(request)
        with place.entered(request):
            return view(request, place, *args, **kwargs)

    return inner


def tenant_data(view: View[P]) -> Callable[..., HttpResponseBase]:
    """`tenant_page` for scripts: who isn't signed in gets 401 instead of a page."""

    @never_cache
    @wraps(view)
    def inner(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return JsonResponse({"error": {"code": "not_signed_in", "message": "Sign in again."}}, status=401)
        place = place_of(request)
        if place is None:
            is_suspended = bool(suspended_tenants(user=request.user))
            code, message = ("tenant_inactive", "Your tenant is suspended.") if is_suspended else _NO_MEMBER
            return JsonResponse({"error": {"code": code, "message": message}}, status=403)
        with place.entered(request):
            return view(request, place, *args, **kwargs)

    return inner


def _no_tenant(request: HttpRequest) -> HttpResponse:
    assert isinstance(request.user, User)
    context = {"suspended": suspended_tenants(user=request.user), "contact": settings.SLUICE_SUPPORT_CONTACT}
    return render(request, "console/no_tenant.html", context, status=403)


def place_of(request: HttpRequest) -> Place | None:
    """Return the Place that the address names; None for a user without tenants, 404 for a tenant of others."""
    assert isinstance(request.user, User)
    mine = accesses_of_user(user=request.user)
    slug = request.GET.get("tenant")
    found = next((access for access in mine if slug in (None, access.tenant.slug)), None)
    if found is None:
        if slug is not None:
            raise Http404
        return None
    return Place(found, tuple(access for access in mine if access is not found))


def place_to_see(request: HttpRequest) -> Place | None:
    """Return the Place of a page: of an operator who looks at a tenant that tenant's, else `place_of`."""
    access = access_of_viewer(request)
    if access is not None and request.GET.get("tenant") in (None, access.tenant.slug):
        return Place(access, ())
    return place_of(request)
