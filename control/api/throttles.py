"""Limits on calls of the management API: by address before any look-up, then by key or user."""

from __future__ import annotations

from rest_framework.request import Request

from control.throttles import SettingThrottle
from gateway.http.bounds import client_network
from tenancy.services.access import Access


class AddressThrottle(SettingThrottle):
    """By the client's address: guessed keys are stopped before the database is queried."""

    setting = "SLUICE_API_RATE_ADDRESS"

    def ident_of(self, request: Request) -> str:
        """Return whose address it is; the HTTP server has read it through the trusted proxies."""
        return client_network(str(request.META.get("REMOTE_ADDR")))


class CallerThrottle(SettingThrottle):
    """By API key, or by the signed-in user."""

    setting = "SLUICE_API_RATE_CALLER"

    def ident_of(self, request: Request) -> str | None:
        """Return the key's or the user's id."""
        access = request.auth
        if not isinstance(access, Access):
            return None
        caller = access.key or access.admin_key
        return str(caller.id if caller is not None else request.user.pk)
