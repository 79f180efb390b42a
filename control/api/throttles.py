"""How often the management API may be called: by address before anything is looked up, then by key or user."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

from base.errors import ServiceError
from gateway.http.bounds import client_network
from tenancy.services.access import Access


class SettingThrottle(SimpleRateThrottle):
    """A throttle whose rate is the setting named `setting`, read at each call. Counted by each gateway process."""

    setting: str

    def get_rate(self) -> str:
        """Return the setting."""
        rate: str = getattr(settings, self.setting)
        return rate

    def ident_of(self, request: Request) -> str | None:
        """Return the id whose calls are counted together; None isn't counted."""
        raise NotImplementedError

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        """Return the cache key of this caller's calls."""
        ident = self.ident_of(request)
        return None if ident is None else f"throttle:{self.setting}:{ident}"


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


class InvitationThrottle(SettingThrottle):
    """By tenant: each invitation is a mail to somebody who didn't ask for it."""

    setting = "SLUICE_INVITATION_RATE"

    def ident_of(self, request: Request) -> str | None:
        """Return the tenant's id."""
        return str(request.auth.tenant.id) if isinstance(request.auth, Access) else None


def check_invitations(access: Access) -> None:
    """Count an invitation that is sent from a page; raise ServiceError where the tenant has sent too many."""
    asked = cast("Request", SimpleNamespace(auth=access))
    if not InvitationThrottle().allow_request(asked, cast("APIView", None)):
        raise ServiceError("", "This tenant has sent too many invitations: try again in an hour.")
