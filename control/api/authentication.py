"""Authentication of the management API: a key with the scope "management", an admin key, or a member's session."""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.request import Request

from tenancy.audit import origin
from tenancy.models import APIKey, Membership, User
from tenancy.services.access import KEY, Access, access_of_user
from tenancy.services.admin_keys import ADMIN_PREFIX, find_admin_key
from tenancy.services.keys import find_key, note_use, secret_ends_at
from tenancy.services.networks import is_within, parsed_networks
from tenancy.services.scopes import MANAGEMENT, expanded

TENANT_HEADER = "x-sluice-tenant"


def bearer(request: Request) -> str | None:
    """Return the request's bearer token; None where it has none."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


def manages(key: APIKey) -> bool:
    """Whether a key has the scope "management", which ends with the account of who made it."""
    return MANAGEMENT in key.scopes and (key.created_by is None or key.created_by.is_active)


class AdminKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer sk-sluice-admin-…`, looked up anew at each call. It acts as an owner does."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, Access] | None:
        """Return the key's tenant as Access, or None where the bearer token, if any, is no admin key."""
        secret = bearer(request)
        if secret is None or not secret.startswith(ADMIN_PREFIX):
            return None
        key = find_admin_key(secret)
        if key is None:
            raise AuthenticationFailed("This admin API key is unknown, revoked or expired.", code="invalid_api_key")
        origin.current().admin_key = key
        return AnonymousUser(), Access(tenant=key.tenant, role=Membership.Role.OWNER, admin_key=key)

    def authenticate_header(self, request: Request) -> str:
        """Return the challenge that makes the refusal a 401."""
        return "Bearer"


class KeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer sk-sluice-…`, looked up anew at each call: a revoked key ends at once."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, Access] | None:
        """Return the key's tenant as Access, or None where there is no bearer token."""
        secret = bearer(request)
        if secret is None:
            return None
        found = find_key(secret).select_related("tenant", "project", "created_by")
        key = found.filter(revoked_at=None, tenant__is_active=True, project__is_active=True).first()
        ends_at = None if key is None else secret_ends_at(key, secret)
        if key is None or (ends_at is not None and ends_at <= timezone.now()):
            raise AuthenticationFailed("This API key is unknown, revoked or expired.", code="invalid_api_key")
        address = str(request.META.get("REMOTE_ADDR") or "")
        if key.networks and not is_within(address, parsed_networks(key.networks)):
            raise PermissionDenied(
                f"This key may not be used from your address, {address}.", code="address_not_allowed"
            )
        self.require_scope(key)
        note_use(key=key)
        origin.current().key = key
        return AnonymousUser(), Access(tenant=key.tenant, role=KEY, key=key)

    def require_scope(self, key: APIKey) -> None:
        """Raise PermissionDenied for a key that doesn't manage, or no more."""
        if not manages(key):
            message = "This API key lacks the scope 'management'."
            if MANAGEMENT in key.scopes:
                message = "Who made this API key was deactivated: it manages nothing. Ask for another one."
            raise PermissionDenied(message, code="insufficient_scope")

    def authenticate_header(self, request: Request) -> str:
        """Return the challenge that makes the refusal a 401."""
        return "Bearer"


class AnyKeyAuthentication(KeyAuthentication):
    """A bearer key that manages, or one that may read what became of its requests, for a view that asks no more."""

    def require_scope(self, key: APIKey) -> None:
        """Raise PermissionDenied for a key that may do neither."""
        if "usage.read" not in expanded(key.scopes):
            super().require_scope(key)


class OperatorSessionAuthentication(SessionAuthentication):
    """A signed-in operator; CSRF is checked."""

    def authenticate(self, request: Request) -> tuple[User, None] | None:
        """Return the operator, or None where nobody is signed in."""
        found = super().authenticate(request)
        if found is None or not isinstance(found[0], User):
            return None
        if not found[0].is_staff:
            raise PermissionDenied("Only operators may do this.", code="role_not_allowed")
        return found[0], None


class TenantSessionAuthentication(SessionAuthentication):
    """A signed-in member; CSRF is checked. The header x-sluice-tenant picks one of several tenants by slug."""

    def authenticate(self, request: Request) -> tuple[User, Access] | None:
        """Return the user and their Access, or None where nobody is signed in."""
        found = super().authenticate(request)
        if found is None or not isinstance(found[0], User):
            return None
        access = access_of_user(user=found[0], slug=request.headers.get(TENANT_HEADER))
        if access is None:
            raise PermissionDenied("You are not a member of this tenant.", code="not_a_member")
        return found[0], access
