"""The OpenAPI document of both planes: the same for everybody while the process runs, and a tenth of a second of CPU to
render. The first request renders it once, and concurrent requests wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiYamlRenderer
from rest_framework.authentication import SessionAuthentication

from control.api.authentication import (
    AdminKeyAuthentication,
    AnyKeyAuthentication,
    KeyAuthentication,
    OperatorSessionAuthentication,
    TenantSessionAuthentication,
)
from control.api.data_plane import BASE, SECURITY


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # its registration is untyped
    """The schema's description of a management key."""

    target_class = KeyAuthentication
    name = "managementKey"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        """Return the scheme's object."""
        return {"type": "http", "scheme": "bearer", "description": "An API key with the scope `management`."}


class AnyKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # its registration is untyped
    """The schema's description of a key of any scope."""

    target_class = AnyKeyAuthentication
    name = SECURITY

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        """Return the scheme's object, which the data plane's part describes."""
        return {}


class AdminKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # its registration is untyped
    """The schema's description of an admin key."""

    target_class = AdminKeyAuthentication
    name = "adminKey"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        """Return the scheme's object."""
        return {"type": "http", "scheme": "bearer", "description": "An admin API key of the tenant."}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # its registration is untyped
    """The schema's description of a session."""

    target_class: type[SessionAuthentication] = TenantSessionAuthentication
    name = "session"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        """Return the scheme's object."""
        return {"type": "apiKey", "in": "cookie", "name": "sluice_session", "description": "A signed-in member."}


class OperatorSessionScheme(SessionScheme):  # type: ignore[no-untyped-call] # its registration is untyped
    """How the schema describes an operator's session."""

    target_class = OperatorSessionAuthentication
    name = "operatorSession"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        """Return the scheme's object."""
        return {"type": "apiKey", "in": "cookie", "name": "sluice_session", "description": "A signed-in operator."}


@dataclass(frozen=True, slots=True)
class Published:
    """The document, and its bytes in both formats."""

    document: Mapping[str, Any]
    yaml: bytes
    json: bytes


_making = threading.Lock()
_made: list[Published] = []


def published() -> Published:
    """Return the document of both planes, made once."""
    with _making:
        if not _made:
            generator = SchemaGenerator()  # type: ignore[no-untyped-call] # drf-spectacular has no types
            document = generator.get_schema(request=None, public=True)  # type: ignore[no-untyped-call] # same
            as_yaml = OpenApiYamlRenderer().render(document)  # type: ignore[no-untyped-call] # same
            _made.append(Published(document, as_yaml, OpenApiJsonRenderer().render(document)))
        return _made[0]


def api_schema(request: HttpRequest) -> HttpResponse:
    """Answer with the OpenAPI document, as YAML, or as JSON to who asks for that."""
    base = f"{request.scheme}://{request.get_host()}".encode()  # whose host Django has checked
    if request.GET.get("format") == "json" or "json" in request.headers.get("accept", ""):
        made = published().json.replace(BASE.encode(), base)
        return HttpResponse(made, content_type=OpenApiJsonRenderer.media_type)
    made = published().yaml.replace(BASE.encode(), base)
    return HttpResponse(made, content_type=OpenApiYamlRenderer.media_type)
