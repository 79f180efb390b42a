"""Routes of the data plane: path, name in logs and metrics, format of errors; and the answers for unknown paths."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from channels.routing import URLRouter
from django import urls
from django.urls import URLPattern
from django.urls.resolvers import RoutePattern

from base.http import Application, Receive, Scope, Send
from gateway.errors.refusal import ErrorBody, Refusal, openai_error
from gateway.http.access import note_sender
from gateway.http.compression import compressed
from gateway.http.durable import durable
from gateway.http.endpoint import Endpoint
from gateway.http.request import not_allowed

_VARIABLE = re.compile(r"\{(\w+)(?::(\w+))?\}")


@dataclass(frozen=True, slots=True)
class Route:
    """A request's route: its name in logs and metrics (a fixed set), the form of its errors, and the scope that a key
    needs; without one it asks for no key.
    """

    name: str
    scope: str = ""
    error_body: ErrorBody = openai_error


NOWHERE = Route("unknown")


def path(pattern: str, application: Any, scope: str = "") -> URLPattern:
    """The URLs that match `pattern` whole go to an ASGI `application`; with a `scope`, for keys that have it."""
    route: URLPattern = urls.path(pattern, _on(Route(f"/{pattern}", scope), compressed(application)))
    return route


def re_path(pattern: str, application: Any, name: str) -> URLPattern:
    """The URLs that match the regular expression go to an ASGI `application`, as the route `name`; it asks for no
    key.
    """
    route: URLPattern = urls.re_path(pattern, _on(Route(name), application))
    return route


def routes_of(endpoints: Iterable[Endpoint]) -> list[URLPattern]:
    """Return the routes of the endpoints, a route for each path; a method that a path hasn't is refused (405)."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for one in endpoints:
        by_path.setdefault(one.path, {})[one.method] = one
    return [urls.path(_pattern(path), cast("Any", _by_method(methods))) for path, methods in by_path.items()]


def _pattern(path: str) -> str:
    return _VARIABLE.sub(lambda found: f"<{found[2] or 'str'}:{found[1]}>", path).lstrip("/")


def _by_method(methods: Mapping[str, Endpoint]) -> Application:
    routed = {method: _on(_route_of(one), compressed(_kept_if(one))) for method, one in methods.items()}
    if "GET" in routed:
        routed["HEAD"] = routed["GET"]
    name, error_body = next((one.shown_path, one.error_body) for one in methods.values())

    async def refused(scope: Scope, receive: Receive, send: Send) -> None:
        await note_sender(scope)
        raise not_allowed(scope, *methods)

    refusing = _on(Route(name, error_body=error_body), refused)

    def application_of_method(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        application: Application = routed.get(scope["method"], refusing)
        return application(scope, receive, send)

    return application_of_method


def _route_of(one: Endpoint) -> Route:
    return Route(one.shown_path, one.scope, one.error_body)


def _kept_if(one: Endpoint) -> Application:
    """Return the endpoint, with its answers kept; an upload, which is too large to be read first, keeps its own."""
    return durable(one) if one.keeps and one.form is None else one


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


class Hints:
    """The answers for paths without an endpoint, which name the endpoint that they resemble.

    `near` matches paths of clients whose base URL lacks /v1, has it twice, or is another server's; the management API
    has its own 404, and people's pages of models and batches end with a slash, which no endpoint does.
    """

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        paths = {one.path.removeprefix("/v1/") for one in endpoints if "{" not in one.path}
        known = "|".join(map(re.escape, sorted(paths, key=len, reverse=True)))
        self._known = re.compile(rf"/({known})(?:/|$)")
        before = r"(?:api|inference|openai|deployments/[^/]+|engines/[^/]+|v\d\w*)/"
        pages = r"(?:models|batches)/(?:.*/)?$"
        self.near = rf"^(?!api/v1/|{pages})(?:{before})*(?:{known})(?:/|$)"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raise the 404."""
        await note_sender(scope)
        found = self._known.search(scope["path"])
        hint = f"Did you mean /v1/{found[1]}?" if found else "The API's paths begin with /v1/."
        asked = f"There is no endpoint {scope['method']} {scope['path'][:200]}."
        raise Refusal(404, "unknown_endpoint", f"{asked} {hint}")


async def refuse_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    """404 for a websocket on a path that has none."""
    raise Refusal(404, "unknown_endpoint", f"There is no websocket at {scope['path'][:200]}: it is /v1/responses.")
