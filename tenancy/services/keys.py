"""API keys: creating, changing, rotating, revoking, and finding them by their secret's digest."""

from __future__ import annotations

import functools
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from base.errors import RoleError, ServiceError
from tenancy.audit.trail import record
from tenancy.models import APIKey, Project, Tenant, User
from tenancy.services.access import hold_role
from tenancy.services.restrictions import Restrictions
from tenancy.services.scopes import ALL, MANAGEMENT, SCOPES, expanded

SECRET_PREFIX = "sk-sluice-"  # noqa: S105 - what secret scanners look for, not a secret
DEFAULT_SCOPES = (ALL,)
DEFAULT_OVERLAP = timedelta(hours=24)
LONGEST_OVERLAP = timedelta(days=30)
UNRESTRICTED = Restrictions()
_SHOWN = len(SECRET_PREFIX) + 4
_USE_RESOLUTION = timedelta(minutes=1)


def digest_of(secret: str) -> str:
    """Return what is stored of a key: HMAC-SHA256 in hex, under a key derived from SLUICE_KEY_HASH_SECRET."""
    return _digest(settings.SLUICE_KEY_HASH_SECRET, secret)


def old_digests_of(secret: str) -> list[str]:
    """Return what may be stored of a key that was made under a secret since replaced."""
    return [_digest(old, secret) for old in settings.SLUICE_KEY_HASH_FALLBACKS]


def find_key(secret: str) -> QuerySet[APIKey]:
    """Return the key that `secret` is, or was before its last rotation, of any tenant and in any state.

    One of an old digest gets the current one. When a secret ends says `secret_ends_at`.
    """
    keys, digest = APIKey.objects.unscoped(), digest_of(secret)
    if old := old_digests_of(secret):
        if keys.filter(digest__in=old).exists():
            keys.filter(digest__in=old).update(digest=digest)
        if keys.filter(previous_digest__in=old).exists():
            keys.filter(previous_digest__in=old).update(previous_digest=digest)
    return keys.filter(Q(digest=digest) | Q(previous_digest=digest))


def _digest(under: str, secret: str) -> str:
    return hmac.digest(_mac_key(under), secret.encode(), "sha256").hex()


@functools.lru_cache(maxsize=16)
def _mac_key(secret_key: str) -> bytes:
    """Derive the key as Django's `salted_hmac` does, but once: every request computes a digest."""
    return hashlib.sha256(f"gateway.services.keys{secret_key}".encode()).digest()


@transaction.atomic
def create_key(
    *,
    tenant: Tenant,
    project: Project,
    name: str,
    scopes: Iterable[str] = DEFAULT_SCOPES,
    expires_at: datetime | None = None,
    restrictions: Restrictions = UNRESTRICTED,
    created_by: User | None = None,
) -> tuple[APIKey, str]:
    """Return a new key of `project` and its secret of 256 random bits, which isn't stored.

    Raises ServiceError naming the field that is wrong, or if the tenant has as many keys as it may, and RoleError for a
    maker who was removed or may not make it by now.
    """
    wanted = _checked_scopes(scopes)
    hold_role(tenant=tenant, user=created_by, capability=_needed_for(wanted))
    if project.tenant_id != tenant.id or not project.is_active:
        raise ServiceError("project", "No such project.")
    _check_name_and_end(name, expires_at)
    restrictions = restrictions.checked(project)
    _keep_below_the_most(tenant)
    secret = _new_secret()
    key = APIKey(
        tenant=tenant,
        project=project,
        name=name.strip(),
        digest=digest_of(secret),
        scopes=wanted,
        created_by=created_by,
        expires_at=expires_at,
        **_shown(secret),
    )
    restrictions.put_on(key)
    key.save(force_insert=True)
    restrictions.put_budget(key)
    key.refresh_from_db(fields=["created_at"], from_queryset=APIKey.objects.of(tenant))
    return key, secret


@transaction.atomic
def change_key(
    *,
    tenant: Tenant,
    key: APIKey,
    change: Mapping[str, Any],
    by: User | None = None,
    only_narrows: bool = False,
    check: Callable[[APIKey], None] | None = None,
) -> APIKey:
    """Return the key with what `change` names (name, scopes, expires_at, Restrictions by name), felt within a second.

    What it doesn't name stays, also where another call changes that meanwhile. A key of nobody's that gets the scope
    "management" is `by`'s from then on, and ends with their role. `check` is called with the key as it is stored, which
    no other call changes then, and may raise ServiceError. Raises ServiceError naming the field that is wrong,
    or for a key that was revoked, and RoleError where it allows more than before though it `only_narrows`.
    """
    hold_role(tenant=tenant, user=by, capability=_needed_for(change.get("scopes", ())))
    mine = _locked(tenant, key)
    if check is not None:
        check(mine)
    had = Restrictions.of(mine)
    name, expires_at = change.get("name", mine.name), change.get("expires_at", mine.expires_at)
    wanted = _checked_scopes(change.get("scopes", mine.scopes))
    _check_name_and_end(name, expires_at if expires_at != mine.expires_at else None)
    restrictions = Restrictions.named({**had.by_name(), **change}).checked(mine.project, had.allowed_models)
    wider = restrictions.wider_than(had)
    if not expanded(wanted) <= expanded(mine.scopes):
        wider = "scopes"
    elif mine.expires_at is not None and (expires_at is None or expires_at > mine.expires_at):
        wider = "expires_at"
    if only_narrows and wider:
        raise RoleError(wider, "Members only narrow a key: ask an owner or admin of the tenant to allow it more.")
    if mine.created_by_id is None and MANAGEMENT in set(wanted) - set(mine.scopes):
        mine.created_by = by
    mine.name, mine.scopes, mine.expires_at = name.strip(), wanted, expires_at
    restrictions.put_on(mine)
    mine.save()
    restrictions.put_budget(mine)
    return mine


@transaction.atomic
def rotate_key(*, tenant: Tenant, key: APIKey, overlap: timedelta = DEFAULT_OVERLAP) -> tuple[APIKey, str]:
    """Return the key and a new secret of it; the one that it had works on for `overlap`, at most LONGEST_OVERLAP.

    A secret from an earlier rotation ends at once. Raises ServiceError for a key that was revoked or has expired, and
    for an overlap out of bounds.
    """
    if not timedelta() <= overlap <= LONGEST_OVERLAP:
        hours = LONGEST_OVERLAP // timedelta(hours=1)
        raise ServiceError("overlap_hours", f"The overlap is between 0 and {hours} hours.")
    mine, now = _locked(tenant, key), timezone.now()
    if mine.expires_at is not None and mine.expires_at <= now:
        raise ServiceError("", "This key has expired: make another one.")
    secret = _new_secret()
    # What ends at once is forgotten: by its end alone it would work on where a machine's clock is behind.
    mine.previous_digest, mine.previous_last_four = mine.digest if overlap else None, mine.last_four
    mine.previous_until, mine.rotated_at = now + overlap, now
    mine.digest = digest_of(secret)
    for field, value in _shown(secret).items():
        setattr(mine, field, value)
    mine.save()
    return mine, secret


@transaction.atomic
def end_previous(*, tenant: Tenant, key: APIKey) -> APIKey:
    """Return the key with the secret of its last rotation alone: the one before ends within a second."""
    mine = _locked(tenant, key)
    if mine.previous_until is not None and mine.previous_digest is not None:
        mine.previous_digest, mine.previous_until = None, min(mine.previous_until, timezone.now())
        mine.save(update_fields=["previous_digest", "previous_until"])
    return mine


def secret_ends_at(key: APIKey, secret: str) -> datetime | None:
    """Return when `secret`, one of the key's, ends: with the key, or before it if it was rotated out."""
    if key.digest == digest_of(secret):
        return key.expires_at
    return min([end for end in (key.expires_at, key.previous_until) if end is not None], default=None)


def _locked(tenant: Tenant, key: APIKey) -> APIKey:
    """Return the tenant's key, locked until the transaction ends; raise ServiceError for one that was revoked."""
    mine = APIKey.objects.of(tenant).select_for_update(of=("self",))
    found = mine.select_related("tenant", "project").filter(id=key.id).first()
    if found is None:
        raise ServiceError("key", "No such key.")
    if found.revoked_at is not None:
        raise ServiceError("", "This key was revoked.")
    return found


def _new_secret() -> str:
    return SECRET_PREFIX + secrets.token_urlsafe(32)


def _shown(secret: str) -> dict[str, str]:
    """Return the characters by which people recognise a secret."""
    return {"prefix": secret[:_SHOWN], "last_four": secret[-4:]}


def _checked_scopes(scopes: Iterable[str]) -> list[str]:
    wanted = sorted(set(scopes))
    unknown = [scope for scope in wanted if scope not in SCOPES]
    if unknown or not wanted:
        message = f"Unknown scope {unknown[0]!r}" if unknown else "A key needs a scope"
        raise ServiceError("scopes", f"{message}: choose from {', '.join(SCOPES)}.")
    return wanted


def _needed_for(scopes: Iterable[str]) -> str:
    """Return the capability that giving a key these scopes takes."""
    return "projects" if MANAGEMENT in scopes else "keys"


def _check_name_and_end(name: str, expires_at: datetime | None) -> None:
    if not 0 < len(name.strip()) <= 120:
        raise ServiceError("name", "A key needs a name of at most 120 characters.")
    if expires_at is not None and expires_at <= timezone.now():
        raise ServiceError("expires_at", "The expiry must be in the future.")


def _keep_below_the_most(tenant: Tenant) -> None:
    """Raise ServiceError if the tenant has SLUICE_MOST_KEYS keys; none is made beside until the transaction ends."""
    Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
    works = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    most = settings.SLUICE_MOST_KEYS
    if APIKey.objects.of(tenant).filter(works, revoked_at=None).count() >= most:
        raise ServiceError("", f"This tenant has {most} active keys, the most it may have: revoke one first.")


def note_use(*, key: APIKey) -> None:
    """Store that `key` was used now, at most once a minute."""
    now = timezone.now()
    if key.last_used_at is None or now - key.last_used_at >= _USE_RESOLUTION:
        APIKey.objects.of(key.tenant).filter(id=key.id).update(last_used_at=now)


@transaction.atomic
def revoke_key(*, tenant: Tenant, key: APIKey) -> bool:
    """Revoke `key`; every process refuses it within a second. Return False if it was revoked already."""
    if key.tenant_id != tenant.id:
        raise ServiceError("key", "No such key.")
    mine = APIKey.objects.of(tenant)
    changed = mine.filter(id=key.id, revoked_at=None).update(revoked_at=Now()) == 1
    if changed:
        record("key.revoked", key, tenant=tenant.id, before={"revoked": False}, after={"revoked": True})
    key.refresh_from_db(fields=["revoked_at"], from_queryset=mine)
    return changed


def revoke_keys_of(*, tenant: Tenant, user: UUID) -> list[APIKey]:
    """Revoke the keys that `user` made, and return them."""
    made = APIKey.objects.of(tenant).filter(created_by=user, revoked_at=None).order_by("id")
    return [key for key in made if revoke_key(tenant=tenant, key=key)]


@transaction.atomic
def end_management_of(*, tenant: Tenant, user: UUID) -> list[APIKey]:
    """Take "management" from the keys that `user` made, and return them; one that has no other scope is revoked."""
    made = APIKey.objects.of(tenant).select_for_update().filter(created_by=user, revoked_at=None).order_by("id")
    ended = [key for key in made if MANAGEMENT in key.scopes]
    for key in ended:
        if key.scopes == [MANAGEMENT]:
            revoke_key(tenant=tenant, key=key)
        else:
            key.scopes = [scope for scope in key.scopes if scope != MANAGEMENT]
            key.save(update_fields=["scopes"])
    return ended
