"""The ASGI applications: which path goes to which endpoint of the data plane; Django answers everything else.

A process serves both planes, or one: the data plane (`/v1`, its websockets, `/health`), or the control plane (pages,
accounts, management API), which a proxy then joins.
"""

from __future__ import annotations

import os
from typing import cast

from django.conf import settings
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django_application = get_asgi_application()

from django.urls import URLPattern  # noqa: E402

from base.http import Application, Receive, Scope, Send  # noqa: E402
from gateway.apis.endpoints import ENDPOINTS  # noqa: E402 - models need Django to be set up
from gateway.apis.websocket.endpoint import MOST_SOCKETS, ResponsesConsumer, too_many_sockets  # noqa: E402
from gateway.concurrency import Cap  # noqa: E402
from gateway.errors.refusal import Refusal  # noqa: E402
from gateway.http.bounds import bounded, counted_by_address, limited_by_address, paced_by_address  # noqa: E402
from gateway.http.cors import with_cors  # noqa: E402
from gateway.http.guard import guarded  # noqa: E402
from gateway.http.probes import health, internal_paths, liveness, probe_paths  # noqa: E402
from gateway.http.routes import (  # noqa: E402
    Hints,
    path,
    re_path,
    refuse_websocket,
    routed_by_path,
    routed_by_type,
    routes_of,
)
from gateway.lifespan import lifespan, open_data_plane, open_pages  # noqa: E402

ALL, DATA, CONTROL = PLANES = ("all", "data", "control")

hints = Hints(ENDPOINTS)
_pages = paced_by_address(counted_by_address(cast("Application", django_application)))


async def _not_here(scope: Scope, receive: Receive, send: Send) -> None:
    raise Refusal(
        404, "unknown_endpoint", "Another process of this installation serves this: ask at its public address."
    )


def http_routes_of(plane: str = ALL) -> list[URLPattern]:
    """Return the routes of HTTP in a process that serves `plane`."""
    pages = _not_here if plane == DATA else _pages
    data = [*routes_of(ENDPOINTS), path("health", health)]
    return [
        *([] if plane == CONTROL else data),
        re_path(r"^v1/organization/", pages, "/v1/organization/*"),
        re_path(r"^v1(/|$)", _not_here if plane == CONTROL else hints, "/v1/*"),
        path("healthz", liveness),
        *([] if settings.SLUICE_METRICS_PORT else _operators_paths(plane, is_own_port=False)),
        re_path(hints.near, hints, "near"),
        re_path(r"", pages, "control"),
    ]


def websocket_routes_of(plane: str = ALL) -> list[URLPattern]:
    """Return the routes of websockets in a process that serves `plane`."""
    sockets = [
        path(
            "v1/responses",
            ResponsesConsumer.as_asgi(sockets=Cap(MOST_SOCKETS, too_many_sockets)),
            scope="responses.write",
        )
    ]
    return [*([] if plane == CONTROL else sockets), re_path(r"", refuse_websocket, "/v1/*")]


def application_of(plane: str = ALL) -> Application:
    """Return the application of a process that serves `plane`: one of PLANES."""
    router = routed_by_type(
        {
            "lifespan": lifespan(open_pages if plane == CONTROL else open_data_plane),
            "http": routed_by_path(http_routes_of(plane)),
            "websocket": routed_by_path(websocket_routes_of(plane)),
        }
    )
    return with_cors(
        guarded(bounded(limited_by_address(router) if settings.SLUICE_TRUST_PROXY else router)),
        settings.SLUICE_CORS_ORIGINS,
    )


def probes_of(plane: str = ALL) -> Application:
    """Return what answers on the port of SLUICE_METRICS_PORT."""
    own = [path("healthz", liveness), *_operators_paths(plane, is_own_port=True)]
    return guarded(bounded(routed_by_path([*own, re_path(r"", hints, "unknown")])))


def _operators_paths(plane: str, *, is_own_port: bool) -> list[URLPattern]:
    return [*probe_paths(is_own_port=is_own_port), *([] if plane == CONTROL else internal_paths())]


application = application_of()
