"""The OpenAPI schema of both planes and its HTML documentation, rendered on the server without scripts.

Both are the same for everybody while the process runs and take a tenth of a second of CPU to render: the first request
renders them once, and concurrent requests wait for it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiYamlRenderer

from control.api.authentication import (
    AdminKeyAuthentication,
    AnyKeyAuthentication,
    KeyAuthentication,
    TenantSessionAuthentication,
)
from control.api.data_plane import BASE, SECURITY, curl


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


METHODS = ("get", "post", "patch", "put", "delete")


@dataclass(frozen=True, slots=True)
class _Made:
    """The rendered schema."""

    yaml: bytes
    json: bytes
    info: dict[str, Any]
    operations: SafeString


_making = threading.Lock()
_made: list[_Made] = []


def _published() -> _Made:
    with _making:
        if not _made:
            generator = SchemaGenerator()  # type: ignore[no-untyped-call] # drf-spectacular has no types
            schema = generator.get_schema(request=None, public=True)  # type: ignore[no-untyped-call] # same
            _made.append(
                _Made(
                    yaml=OpenApiYamlRenderer().render(schema),  # type: ignore[no-untyped-call] # same
                    json=OpenApiJsonRenderer().render(schema),
                    info=schema["info"],
                    operations=render_to_string("gateway/api_operations.html", {"operations": _operations(schema)}),
                )
            )
        return _made[0]


def api_schema(request: HttpRequest) -> HttpResponse:
    """Answer with the OpenAPI schema, as YAML, or as JSON to who asks for that."""
    base = _base(request).encode()
    if request.GET.get("format") == "json" or "json" in request.headers.get("accept", ""):
        made = _published().json.replace(BASE.encode(), base)
        return HttpResponse(made, content_type=OpenApiJsonRenderer.media_type)
    made = _published().yaml.replace(BASE.encode(), base)
    return HttpResponse(made, content_type=OpenApiYamlRenderer.media_type)


def api_docs(request: HttpRequest) -> HttpResponse:
    """Show every operation with its parameters, body and answer."""
    made, base = _published(), _base(request)
    operations = mark_safe(made.operations.replace(BASE, escape(base)))  # noqa: S308 - rendered by a template
    return render(request, "gateway/api_docs.html", {"info": made.info, "operations": operations, "base": base})


def _base(request: HttpRequest) -> str:
    """Return the address that the reader came to, whose host Django has checked."""
    return f"{request.scheme}://{request.get_host()}"


def _operations(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for path, methods in schema["paths"].items():
        for method in METHODS:
            if method not in methods:
                continue
            operation = methods[method]
            body = operation.get("requestBody", {}).get("content", {})
            answers = [
                (status, _fields(schema, answer.get("content", {})))
                for status, answer in sorted(operation["responses"].items())
            ]
            found.append(
                {
                    "method": method.upper(),
                    "path": path,
                    "id": operation["operationId"],
                    "summary": operation.get("summary", ""),
                    "description": operation.get("description", ""),
                    "parameters": operation.get("parameters", []),
                    "example": curl(operation, method, path),
                    "body": _fields(schema, body),
                    "answers": answers,
                }
            )
    return found


def _fields(schema: dict[str, Any], content: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return (name, type, description) of each field of a JSON body, one level of list or page unwrapped."""
    node = _resolve(schema, content.get("application/json", {}).get("schema", {}))
    properties = node.get("properties", {})
    if "data" in properties:
        node = _resolve(schema, properties["data"].get("items", {}))
        properties = {f"data[].{name}": field for name, field in node.get("properties", {}).items()}
    return [(name, _type(schema, field), field.get("description", "")) for name, field in properties.items()]


def _resolve(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    if "allOf" in node and len(node["allOf"]) == 1:
        node = node["allOf"][0]
    if "$ref" not in node:
        return node
    found: dict[str, Any] = schema["components"]["schemas"][node["$ref"].rpartition("/")[2]]
    return found


def _type(schema: dict[str, Any], node: dict[str, Any]) -> str:
    resolved = _resolve(schema, node)
    if "enum" in resolved:
        return " | ".join(str(value) for value in resolved["enum"])
    if resolved.get("type") == "array":
        return f"list of {_type(schema, resolved.get('items', {}))}"
    if resolved.get("type") == "object" and "properties" in resolved:
        return "{" + ", ".join(resolved["properties"]) + "}"
    if "anyOf" in resolved:
        return " or ".join(dict.fromkeys(_type(schema, one) for one in resolved["anyOf"]))
    kind = resolved.get("type")
    kind = " or ".join(kind) if isinstance(kind, list) else kind
    return str(resolved.get("format") or kind or "any")
