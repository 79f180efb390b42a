"""How the OpenAPI schema describes authentication; imported by `control.api.urls` so that drf-spectacular knows it."""

from __future__ import annotations

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema

from control.api.authentication import (
    AdminKeyAuthentication,
    AnyKeyAuthentication,
    KeyAuthentication,
    TenantSessionAuthentication,
)
from control.api.data_plane import SECURITY


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # its registration is untyped
    """How the schema describes a management key."""

    target_class = KeyAuthentication
    name = "managementKey"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        """Return the scheme's object."""
        return {"type": "http", "scheme": "bearer", "description": "An API key with the scope `management`."}


class AnyKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # its registration is untyped
    """How the schema describes a key that need not manage."""

    target_class = AnyKeyAuthentication
    name = SECURITY

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        """Return the scheme's object, which the data plane's part describes."""
        return {}


class AdminKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # its registration is untyped
    """How the schema describes an admin key."""

    target_class = AdminKeyAuthentication
    name = "adminKey"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        """Return the scheme's object."""
        return {"type": "http", "scheme": "bearer", "description": "An admin API key of the tenant."}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # its registration is untyped
    """How the schema describes a session."""

    target_class = TenantSessionAuthentication
    name = "session"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        """Return the scheme's object."""
        return {"type": "apiKey", "in": "cookie", "name": "sluice_session", "description": "A signed-in member."}
