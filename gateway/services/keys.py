"""API keys: made, revoked, and recognised by digest."""

from __future__ import annotations

import functools
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models.functions import Now
from django.utils import timezone

from gateway.errors.service import ServiceError
from gateway.models import APIKey, Project, Tenant, User

SECRET_PREFIX = "sk-sluice-"  # noqa: S105 - what secret scanners look for, not a secret
SCOPES = ("inference", "management")
_SHOWN = len(SECRET_PREFIX) + 4
_USE_RESOLUTION = timedelta(minutes=1)


def digest_of(secret: str) -> str:
    """Return what is stored of a key: HMAC-SHA256 in hex, under a key derived from SECRET_KEY."""
    return hmac.digest(_mac_key(settings.SECRET_KEY), secret.encode(), "sha256").hex()


@functools.lru_cache(maxsize=2)
def _mac_key(secret_key: str) -> bytes:
    """Derive the key as Django's `salted_hmac` does, but once: every request computes a digest."""
    return hashlib.sha256(f"gateway.services.keys{secret_key}".encode()).digest()


def create_key(
    *,
    tenant: Tenant,
    project: Project,
    name: str,
    scopes: Iterable[str] = (),
    expires_at: datetime | None = None,
    created_by: User | None = None,
) -> tuple[APIKey, str]:
    """Return a new key of `project` and its secret of 256 random bits, which cannot be had again.

    No scopes means all. Raises ServiceError naming the field that is wrong.
    """
    wanted = sorted(set(scopes))
    unknown = [scope for scope in wanted if scope not in SCOPES]
    if not name.strip():
        raise ServiceError("name", "A key needs a name.")
    if unknown:
        raise ServiceError("scopes", f"Unknown scope {unknown[0]!r}: choose from {', '.join(SCOPES)}.")
    if project.tenant_id != tenant.id or not project.is_active:
        raise ServiceError("project", "No such project.")
    if expires_at is not None and expires_at <= timezone.now():
        raise ServiceError("expires_at", "The expiry must be in the future.")
    secret = SECRET_PREFIX + secrets.token_urlsafe(32)
    key = APIKey(
        tenant=tenant,
        project=project,
        name=name.strip(),
        prefix=secret[:_SHOWN],
        last_four=secret[-4:],
        digest=digest_of(secret),
        scopes=wanted,
        created_by=created_by,
        expires_at=expires_at,
    )
    key.save(force_insert=True)
    key.refresh_from_db(fields=["created_at"], from_queryset=APIKey.objects.of(tenant))
    return key, secret


def note_use(*, key: APIKey) -> None:
    """Remember that `key` was used now, to the minute: most calls write nothing."""
    now = timezone.now()
    if key.last_used_at is None or now - key.last_used_at >= _USE_RESOLUTION:
        APIKey.objects.of(key.tenant).filter(id=key.id).update(last_used_at=now)


def revoke_key(*, tenant: Tenant, key: APIKey) -> bool:
    """Make `key` useless from now on (within a second in every process); False if it was revoked already."""
    if key.tenant_id != tenant.id:
        raise ServiceError("key", "No such key.")
    changed = APIKey.objects.of(tenant).filter(id=key.id, revoked_at=None).update(revoked_at=Now())
    key.refresh_from_db(fields=["revoked_at"], from_queryset=APIKey.objects.of(tenant))
    return changed == 1
