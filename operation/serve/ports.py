"""Whether a port is free, and the readiness request to the gateway behind one."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import Request

from django.conf import settings

from gateway.runtime.readiness import operator_token

BACKLOG = 2048


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


def listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen at all addresses of `host`; OSError when one can't.

    They are for child processes to accept on: what connects while none of them runs waits for the next.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listening: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            listening.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            one.listen(BACKLOG)
    except OSError:
        for one in listening:
            one.close()
        raise
    return listening


def readiness_request(base_url: str) -> Request:
    """Return the question to the gateway at `base_url` whether it is ready, as an operator: with reasons."""
    if port := settings.SLUICE_METRICS_PORT:
        base_url = f"http://{urlsplit(base_url).hostname}:{port}"
    return Request(f"{base_url}/readyz", headers={"authorization": f"Bearer {operator_token()}"})  # noqa: S310 - our own
