"""The ASGI application: which path goes to which endpoint of the data plane; Django answers everything else."""

from __future__ import annotations

import os
from typing import cast

from django.conf import settings
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django_application = get_asgi_application()

from base.http.asgi import Application  # noqa: E402
from gateway.apis.endpoints import ENDPOINTS  # noqa: E402 - models need Django to be set up
from gateway.apis.websocket.endpoint import MOST_SOCKETS, ResponsesConsumer, too_many_sockets  # noqa: E402
from gateway.concurrency.caps import Cap  # noqa: E402
from gateway.http.bounds import bounded, counted_by_address, limited_by_address, paced_by_address  # noqa: E402
from gateway.http.cors import with_cors  # noqa: E402
from gateway.http.guard import guarded  # noqa: E402
from gateway.http.probes import health, probe_paths  # noqa: E402
from gateway.http.routes import (  # noqa: E402
    Hints,
    path,
    re_path,
    refuse_websocket,
    routed_by_path,
    routed_by_type,
    routes_of,
)
from gateway.lifespan import lifespan  # noqa: E402

hints = Hints(ENDPOINTS)

# On a port of their own where SLUICE_METRICS_PORT is set, else beside the other paths.
probes = guarded(bounded(routed_by_path([*probe_paths(is_own_port=True), re_path(r"", hints, "unknown")])))

_control_plane = paced_by_address(counted_by_address(cast("Application", django_application)))
http_routes = [
    *routes_of(ENDPOINTS),
    re_path(r"^v1/organization/", _control_plane, "/v1/organization/*"),
    re_path(r"^v1(/|$)", hints, "/v1/*"),
    path("health", health),
    *([] if settings.SLUICE_METRICS_PORT else probe_paths(is_own_port=False)),
    re_path(hints.near, hints, "near"),
    re_path(r"", _control_plane, "control"),
]
websocket_routes = [
    path(
        "v1/responses",
        ResponsesConsumer.as_asgi(sockets=Cap(MOST_SOCKETS, too_many_sockets)),
        scope="responses.write",
    ),
    re_path(r"", refuse_websocket, "/v1/*"),
]
router = routed_by_type(
    {"lifespan": lifespan, "http": routed_by_path(http_routes), "websocket": routed_by_path(websocket_routes)}
)

application = with_cors(
    guarded(bounded(limited_by_address(router) if settings.SLUICE_TRUST_PROXY else router)),
    settings.SLUICE_CORS_ORIGINS,
)
