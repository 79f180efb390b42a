"""Routes of the data plane: path, name in logs and metrics, format of errors; and the answers for unknown paths."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from channels.routing import URLRouter
from django import urls
from django.urls import URLPattern
from django.urls.resolvers import RoutePattern

from base.http.asgi import Application, Receive, Scope, Send
from gateway.errors.bodies import ErrorBody, openai_error
from gateway.errors.refusal import Refusal
from gateway.http.compression import compressed
from tenancy.services.scopes import Need


@dataclass(frozen=True, slots=True)
class Route:
    """A request's route: its name in logs and metrics (a fixed set), what a key needs for it, how errors are rendered.

    Without a `need` it is for everybody, or asks for no key.
    """

    name: str
    need: Need | None = None
    error_body: ErrorBody = openai_error


NOWHERE = Route("unknown")


def path(
    pattern: str, application: Any, need: Need | None, name: str = "", error_body: ErrorBody = openai_error
) -> URLPattern:
    """The URLs that match `pattern` whole go to an ASGI `application`, as the route `name` (else the path itself), for
    keys that have what it needs; its answers may be compressed. Raise ValueError for a path of the API without that.
    """
    if need is None and pattern.startswith("v1/"):
        raise ValueError(f"{pattern}: say which scope of a key it needs")
    route: URLPattern = urls.path(pattern, _on(Route(name or f"/{pattern}", need, error_body), compressed(application)))
    return route


def re_path(pattern: str, application: Any, name: str, error_body: ErrorBody = openai_error) -> URLPattern:
    """The URLs that match the regular expression go to an ASGI `application`, as the route `name`; it asks for no
    key.
    """
    route: URLPattern = urls.re_path(pattern, _on(Route(name, None, error_body), application))
    return route


def _on(route: Route, application: Application) -> Any:
    """`application`, after the guard around it was told which route this is. HEAD is answered as GET is: the server
    leaves the body out.
    """

    def routed(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        # No coroutine of its own: every token of a stream would pass through it.
        scope["exchange"].route = route
        if scope.get("method") == "HEAD":
            scope = {**scope, "method": "GET"}
        return application(scope, receive, send)

    return routed


def routed_by_path(routes: list[URLPattern]) -> Application:
    """Return the application that passes a connection on to the first of `routes` that matches its path.

    Paths without variables are found in one lookup, and without a coroutine that every token of a stream would pass
    through; the others are tried in order by Channels' router.
    """
    exact = {f"/{route.pattern}": route.callback for route in routes if _is_exact(route)}
    router = cast("Application", URLRouter(routes))

    def application_of_path(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        application: Application = exact.get(scope["path"], router)
        return application(scope, receive, send)

    return application_of_path


def _is_exact(route: URLPattern) -> bool:
    return isinstance(route.pattern, RoutePattern) and "<" not in str(route.pattern)


def routed_by_type(applications: Mapping[str, Application]) -> Application:
    """Return the application that passes a connection on by its type: ``http``, ``websocket`` or ``lifespan``."""

    def application_of_type(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return applications[scope["type"]](scope, receive, send)

    return application_of_type


# Paths of clients whose base URL lacks /v1, has it twice, or is another server's. The management API has its own 404.
NEAR_THE_API = (
    r"^(?!api/v1/)(?:(?:api|inference|openai|deployments/[^/]+|engines/[^/]+|v\d\w*)/)*"
    r"(?:chat/completions|completions|responses|embeddings|classify|rerank|score|messages|models|files|batches|(?:de)?tokenize)"
    r"(?:/|$)"
)
_ENDPOINT = re.compile(
    r"/(chat/completions|completions|responses|embeddings|classify|rerank|score|messages|models|(?:de)?tokenize)(?:/|$)"
)


async def unknown_endpoint(scope: Scope, receive: Receive, send: Send) -> None:
    """Raise a 404 for a path without endpoint that names the endpoint it resembles."""
    asked = f"There is no endpoint {scope['method']} {scope['path'][:200]}."
    found = _ENDPOINT.search(scope["path"])
    hint = f"Did you mean /v1/{found[1]}?" if found else "The API's paths begin with /v1/."
    raise Refusal(404, "unknown_endpoint", f"{asked} {hint}")


async def refuse_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    """404 for a websocket on a path that has none."""
    raise Refusal(404, "unknown_endpoint", f"There is no websocket at {scope['path'][:200]}: it is /v1/responses.")
