"""Whether a port can be had."""

from __future__ import annotations

import socket


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
