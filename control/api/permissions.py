"""Permissions of the management API, by the capability that the view names for the method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from tenancy.services.access import Access

if TYPE_CHECKING:
    from rest_framework.views import APIView  # at run time it would import these permissions first


class IsOperator(BasePermission):
    """Permits operators whose role has all permissions that the view's `needs` name for the method."""

    message = "Your role doesn't allow this."
    code = "role_not_allowed"

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Return whether the operator's role suffices."""
        needs: Mapping[str, Sequence[str]] = getattr(view, "needs", {})
        wanted = needs.get("GET" if request.method in SAFE_METHODS else str(request.method))
        return wanted is not None and bool(request.user.is_staff) and bool(request.user.has_perms(wanted))


class IsTenantMember(BasePermission):
    """Permits callers whose role has the view's `reads` capability for safe methods, its `writes` for others."""

    message = "Your role doesn't allow this."
    code = "role_not_allowed"

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Return whether the caller's role suffices; views without capabilities permit nobody."""
        capability: str | None = getattr(view, "reads" if request.method in SAFE_METHODS else "writes", None)
        access = request.auth
        if capability == "keys" and isinstance(access, Access) and access.key is not None:
            self.message = "A key makes, changes, rotates and revokes no keys: use an admin key, or sign in."
        return isinstance(access, Access) and capability is not None and access.may(capability)
