"""Records sign-ins, and failed attempts on existing accounts, a bounded number of them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib.auth.signals import user_logged_in, user_login_failed
from django.core.cache import cache

from tenancy.audit.trail import record
from tenancy.models import Membership, User

MOST_FAILURES = 20
"""Failures of one account that are recorded within WINDOW_S: guessing can't fill the trail."""
WINDOW_S = 3600


def connect() -> None:
    """Connect the signal receivers; call once per process."""
    user_logged_in.connect(_succeeded, dispatch_uid="audit.sign_in")
    user_login_failed.connect(_failed, dispatch_uid="audit.sign_in_failed")


def _succeeded(user: User, **_: Any) -> None:
    for tenant in _tenants(user):
        record("sign_in.succeeded", user, tenant=tenant, user=user)


def _failed(credentials: dict[str, Any], **_: Any) -> None:
    """Record the failure under the account, never under what was typed: that could be a password."""
    email = str(credentials.get("email") or credentials.get("username") or "").strip().lower()
    user = User.objects.filter(email=email).first()
    if user is None:
        return
    counter = f"audit.sign_in_failed:{user.pk}"
    cache.add(counter, 0, WINDOW_S)
    if cache.incr(counter) <= MOST_FAILURES:
        for tenant in _tenants(user):
            record("sign_in.failed", user, tenant=tenant)


def _tenants(user: User) -> list[UUID] | list[None]:
    """Return the tenants whose trail shows the user's sign-ins; only the operator's trail when they belong to no
    tenant.
    """
    mine = Membership.objects.unscoped().filter(user=user, is_active=True).values_list("tenant_id", flat=True)
    return list(mine) or [None]
