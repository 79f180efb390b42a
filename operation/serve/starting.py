"""A start: its sockets, and its progress: deployments that load or are ready and, once, the end with those refused."""

from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.error
from collections.abc import Callable, Collection
from urllib.parse import urlsplit
from urllib.request import Request

from django.conf import settings

from base.http import open_directly
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


_REFUSED = ("model refused", "loading failed")


class Starting:
    """Asks the gateway's ``/readyz`` and tells lines; with `is_detailed` also each change of a deployment's state."""

    def __init__(self, base_url: str, tell: Callable[[str], object], *, is_detailed: bool) -> None:
        self._base_url = base_url
        self._tell = tell
        self._is_detailed = is_detailed
        self._began = time.monotonic()
        self._seen: dict[str, str] = {}

    def is_over(self, awaited: Collection[str]) -> bool:
        """Look once; return True, having told so, when every deployment named in `awaited` is loaded or refused."""
        answer = _readiness(self._base_url)
        if answer is None:
            return False
        states, problems = answer
        if self._is_detailed:
            self._tell_changes({name: states[name] for name in states if name in awaited})
        if problems - {"deployments"} or not all(_is_final(states.get(name, "")) for name in awaited):
            return False
        refused = {name: state for name, state in states.items() if state != "ready"}
        seconds = time.monotonic() - self._began
        if not states:
            self._tell(f"ready in {seconds:.1f} s on {self._base_url} (no model yet: `manage.py models add`)")
        elif len(refused) == len(states):
            self._tell(f"up after {seconds:.1f} s on {self._base_url}, but no model can be served")
        else:
            self._tell(f"ready in {seconds:.1f} s on {self._base_url}")
        for name, state in refused.items():
            self._tell(f"not served: {name}: {state}")
        return True

    def _tell_changes(self, states: dict[str, str]) -> None:
        for name, state in states.items():
            if state in {"loading", "ready"} and self._seen.get(name) != state:
                self._tell(f"  {name:34} {state} after {time.monotonic() - self._began:.1f} s")
            self._seen[name] = state


def _is_final(state: str) -> bool:
    return state == "ready" or state.startswith(_REFUSED)


def _readiness(base_url: str) -> tuple[dict[str, str], set[str]] | None:
    """Return the deployments' states and the names of the checks that fail; None while nothing answers."""
    try:
        with open_directly(readiness_request(base_url), timeout=0.5) as answer:
            told = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            try:
                told = json.load(error)
            except ValueError:
                return None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    return told.get("deployments", {}), {name for name, state in told.get("checks", {}).items() if state != "ok"}
