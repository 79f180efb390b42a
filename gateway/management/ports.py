"""Whether a port is free, and the readiness request to the gateway behind one."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import Request

from django.conf import settings

from gateway.runtime.readiness import operator_token


def port_problem(host: str, port: int) -> str:
    """Return why nothing can listen at `host` and `port` now, or an empty string."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        return f"nothing can listen at {host}, port {port} ({reason}): choose another port (`make run PORT=…`)"
    return ""


def readiness_request(base_url: str) -> Request:
    """Return the question to the gateway at `base_url` whether it is ready, as an operator: with reasons."""
    if port := settings.SLUICE_METRICS_PORT:
        base_url = f"http://{urlsplit(base_url).hostname}:{port}"
    return Request(f"{base_url}/readyz", headers={"authorization": f"Bearer {operator_token()}"})  # noqa: S310 - our own
