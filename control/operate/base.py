"""What every page of the operator needs: who looks at it, and what their role may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.cache import never_cache

from tenancy.models import User
from tenancy.services.access import accesses_of_user

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Desk:
    """Where an operator stands: `may` answers for a permission such as ``billing.add_creditgrant``."""

    user: User

    def may(self, permission: str) -> bool:
        """Return whether the operator's role has the permission."""
        return self.user.has_perm(permission)

    def context(self, **more: Any) -> dict[str, Any]:
        """Return what every page's template needs, and `more`, `page` among it."""
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
