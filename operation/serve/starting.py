"""A start: its sockets, and its progress: deployments that load or are ready and, once, the end with those refused."""

from __future__ import annotations

import http.client
import json
import math
import socket
import time
import urllib.error
from collections.abc import Callable, Collection
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import Request

from django.conf import settings

from base.http import open_directly
from gateway.runtime.readiness import operator_token

BACKLOG = 2048
MOST_PORT = 65_535


def port_problem(host: str, port: int) -> str:
    """Return why nothing can listen at `host` and `port` now, or an empty string."""
    if not 0 <= port <= MOST_PORT:
        return f"{port} is no port: give a number from 1 to {MOST_PORT}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        return f"nothing can listen at {host}, port {port} ({reason}): choose another port (make run PORT=…)"
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
_AT_WORK = "loading: "  # a worker loads one model after the other, and says of this one how far it is
PATIENCE = 5.0
"""Seconds after which a check that still fails is told."""


class Starting:
    """Asks the gateway's ``/readyz``, and tells the end of the start, or a check that keeps it from ending.

    `show` is called with each step that goes on and its state, `end` with each that is over and how it ended.
    """

    def __init__(
        self,
        base_url: str,
        tell: Callable[[str], object],
        show: Callable[[str, str], object] = lambda *_: None,
        end: Callable[[str, str], object] = lambda *_: None,
    ) -> None:
        self._base_url = base_url
        self._tell = tell
        self._show = show
        self._end = end
        self._began = time.monotonic()
        self._answers = False
        self._over: set[str] = set()  # deployments that were shown as ready or refused
        self._failing: dict[str, float] = {}  # by check, since when; infinite once it was told
        show("gateway", "")

    def is_over(self, awaited: Collection[str], *, is_served: bool = True) -> bool:
        """Look once; return True, having told so, when every deployment named in `awaited` is loaded or refused.

        While nothing `is_served` nobody is asked.
        """
        answer = _readiness(self._base_url) if is_served else None
        if answer is None:
            if not self._answers:
                self._show("gateway", "")
            return False
        if not self._answers:
            self._answers = True
            self._end("gateway", "done")
        self._show_models({name: state for name, state in answer.states.items() if name in awaited})
        are_loaded = all(_is_final(answer.states.get(name, "")) for name in awaited)
        waits_for_models = {"deployments"} if are_loaded else {"deployments", "examples"}
        problems = {name: text for name, text in answer.problems.items() if name not in waits_for_models}
        self._tell_lasting(problems)
        if not are_loaded:
            return False
        for name in problems:
            self._show(name, "")
        if problems:
            return False
        self._tell_end(answer)
        return True

    def _tell_end(self, answer: _Answer) -> None:
        refused = {name: state for name, state in answer.states.items() if state != "ready"}
        seconds = time.monotonic() - self._began
        if not answer.states:
            self._tell(f"ready in {seconds:.1f} s on {self._base_url} (no model yet: `manage.py models add`)")
        elif len(refused) == len(answer.states):
            self._tell(f"up after {seconds:.1f} s on {self._base_url}, but no model can be served")
        else:
            self._tell(f"ready in {seconds:.1f} s on {self._base_url}")
        for name, state in refused.items():
            self._tell(f"not served: {name}: {state}")
        reasons: dict[str, list[str]] = {}
        for name, note in answer.notes.items():
            reasons.setdefault(note, []).append(name)
        for note, names in reasons.items():
            self._tell(f"{', '.join(names)}: {note}")

    def _show_models(self, states: dict[str, str]) -> None:
        for name, state in states.items():
            if _is_final(state) and name not in self._over:
                self._over.add(name)
                self._end(name, "ready" if state == "ready" else "refused")
            elif state.startswith(_AT_WORK):
                self._show(name, state.removeprefix(_AT_WORK))

    def _tell_lasting(self, problems: dict[str, str]) -> None:
        now = time.monotonic()
        self._failing = {name: self._failing.get(name, now) for name in problems}
        for name, since in self._failing.items():
            if now - since > PATIENCE:
                self._failing[name] = math.inf
                self._tell(f"not ready yet: {name}: {problems[name]}")


def _is_final(state: str) -> bool:
    return state == "ready" or state.startswith(_REFUSED)


class _Answer(NamedTuple):
    """Deployments' states by name, the checks that fail with their problems, and what works worse than it should."""

    states: dict[str, str]
    problems: dict[str, str]
    notes: dict[str, str]


def _readiness(base_url: str) -> _Answer | None:
    """Return what the gateway answers; None while nothing does."""
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
    problems = {name: state for name, state in told.get("checks", {}).items() if state != "ok"}
    return _Answer(told.get("deployments", {}), problems, told.get("notes", {}))
