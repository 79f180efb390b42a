"""Throttles of pages and APIs alike: how often a tenant may have mail sent to strangers, or try vouchers' codes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

from base.errors import ServiceError
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


class InvitationThrottle(SettingThrottle):
    """By tenant: each invitation is a mail to somebody who didn't ask for it."""

    setting = "SLUICE_INVITATION_RATE"

    def ident_of(self, request: Request) -> str | None:
        """Return the tenant's id."""
        return str(request.auth.tenant.id) if isinstance(request.auth, Access) else None


class VoucherThrottle(SettingThrottle):
    """By tenant: each code that is tried may be a guess."""

    setting = "SLUICE_VOUCHER_RATE"

    def ident_of(self, request: Request) -> str | None:
        """Return the tenant's id."""
        return str(request.auth.tenant.id) if isinstance(request.auth, Access) else None


class PurchaseThrottle(VoucherThrottle):
    """By tenant: each purchase that is begun opens a session at the payment provider."""

    setting = "SLUICE_PURCHASE_RATE"


def check_invitations(access: Access) -> None:
    """Count an invitation that is sent from a page; raise ServiceError where the tenant has sent too many."""
    _check(InvitationThrottle(), access, "This tenant has sent too many invitations: try again in an hour.")


def check_vouchers(access: Access) -> None:
    """Count a code that is tried on a page; raise ServiceError where the tenant has tried too many."""
    _check(VoucherThrottle(), access, "This tenant has tried too many codes: try again in an hour.")


def check_purchases(access: Access) -> None:
    """Count a purchase that is begun; raise ServiceError where the tenant has begun too many."""
    _check(PurchaseThrottle(), access, "This tenant has begun too many purchases: try again in an hour.")


def _check(throttle: SettingThrottle, access: Access, message: str) -> None:
    asked = cast("Request", SimpleNamespace(auth=access))
    if not throttle.allow_request(asked, cast("APIView", None)):
        raise ServiceError("", message)
