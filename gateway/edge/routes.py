"""Where a path leads, what it is called in counts, and which API's errors it answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django import urls
from django.urls import URLPattern

from gateway.edge.http import Application, Receive, Scope, Send
from gateway.edge.wire.errors import ErrorBody, openai_error


@dataclass(frozen=True, slots=True)
class Route:
    """What is known of a request once its path is: a name, one of a few whatever clients write, and its errors."""

    name: str
    error_body: ErrorBody = openai_error


NOWHERE = Route("unknown")


def path(pattern: str, application: Any, name: str = "", error_body: ErrorBody = openai_error) -> URLPattern:
    """The URLs that match `pattern` whole go to an ASGI `application`, as the route `name` (else the path itself)."""
    route: URLPattern = urls.path(pattern, _on(Route(name or f"/{pattern}", error_body), application))
    return route


def re_path(pattern: str, application: Any, name: str, error_body: ErrorBody = openai_error) -> URLPattern:
    """The URLs that match the regular expression go to an ASGI `application`, as the route `name`."""
    route: URLPattern = urls.re_path(pattern, _on(Route(name, error_body), application))
    return route


def _on(route: Route, application: Application) -> Any:
    """`application`, after the guard around it was told which route this is."""

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        scope["exchange"].route = route
        await application(scope, receive, send)

    return routed
