"""Admin API keys: made, found by their secret, revoked."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from base.errors import ServiceError
from tenancy.audit.trail import record
from tenancy.models import AdminAPIKey, Tenant, User
from tenancy.services.access import hold_role
from tenancy.services.keys import SECRET_PREFIX, digest_of, old_digests_of

ADMIN_PREFIX = f"{SECRET_PREFIX}admin-"
_USE_RESOLUTION = timedelta(minutes=1)


@transaction.atomic
def create_admin_key(
    *, tenant: Tenant, name: str, expires_at: datetime | None = None, created_by: User | None = None
) -> tuple[AdminAPIKey, str]:
    """Return a new admin key of the tenant and its secret, which isn't stored.

    Raises ServiceError naming the field that is wrong, or if the tenant has as many as it may, and RoleError for a
    maker who is no owner any more.
    """
    if not 0 < len(name.strip()) <= 120:
        raise ServiceError("name", "A key needs a name of at most 120 characters.")
    if "\0" in name:
        raise ServiceError("name", "A name has no NUL character, which no database keeps.")
    now = timezone.now()
    if expires_at is not None and expires_at <= now:
        raise ServiceError("expires_at", "The expiry must be in the future.")
    hold_role(tenant=tenant, user=created_by, capability="admin_keys")
    Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
    works = Q(expires_at=None) | Q(expires_at__gt=now)
    if AdminAPIKey.objects.of(tenant).filter(works, revoked_at=None).count() >= settings.SLUICE_MOST_KEYS:
        message = f"This tenant has {settings.SLUICE_MOST_KEYS} admin keys, the most it may have: revoke one first."
        raise ServiceError("", message)
    secret = ADMIN_PREFIX + secrets.token_urlsafe(32)
    key = AdminAPIKey(
        tenant=tenant,
        name=name.strip(),
        last_four=secret[-4:],
        digest=digest_of(secret),
        created_by=created_by,
        created_at=now,
        expires_at=expires_at,
    )
    key.save(force_insert=True)
    return key, secret


def find_admin_key(secret: str) -> AdminAPIKey | None:
    """Return the key that `secret` is while it works; its use is noted, at most once a minute.

    One of an old digest gets the current one. A key of a person who was deactivated doesn't work.
    """
    found, digest = AdminAPIKey.objects.unscoped(), digest_of(secret)
    if (old := old_digests_of(secret)) and found.filter(digest__in=old).exists():
        found.filter(digest__in=old).update(digest=digest)
    now = timezone.now()
    found = found.select_related("tenant", "created_by").filter(digest=digest, revoked_at=None, tenant__is_active=True)
    key = found.filter(Q(created_by=None) | Q(created_by__is_active=True)).first()
    if key is None or (key.expires_at is not None and key.expires_at <= now):
        return None
    if key.last_used_at is None or now - key.last_used_at >= _USE_RESOLUTION:
        AdminAPIKey.objects.of(key.tenant).filter(id=key.id).update(last_used_at=now)
    return key


@transaction.atomic
def revoke_admin_key(*, tenant: Tenant, key: AdminAPIKey) -> bool:
    """Revoke the key at once. Return False if it was revoked already."""
    if not AdminAPIKey.objects.of(tenant).filter(id=key.id, revoked_at=None).update(revoked_at=Now()):
        return False
    record("admin_key.revoked", key, tenant=tenant.id, before={"revoked": False}, after={"revoked": True})
    return True


def revoke_admin_keys_of(*, tenant: Tenant, user: UUID) -> list[AdminAPIKey]:
    """Revoke the keys that `user` made, or that were made with those, and return them: with one they could be owner
    again.
    """
    made = AdminAPIKey.objects.of(tenant).filter(created_by=user, revoked_at=None).order_by("id")
    return [key for key in made if revoke_admin_key(tenant=tenant, key=key)]
