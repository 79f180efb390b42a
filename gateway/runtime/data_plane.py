"""The data plane as a process of pages asks it: over HTTP, at SLUICE_DATA_PLANE, with the operators' token."""

from __future__ import annotations

import threading
import time
from http.client import HTTPException
from urllib.request import Request

import msgspec
import structlog

from base.http.direct import open_directly
from gateway.runtime.live import Standing
from gateway.runtime.readiness import operator_token

STANDING, EXPLAIN = "/internal/standing", "/internal/explain"
SECONDS = 3.0
"""A page waits so long for a gateway, and shows what it can without."""
FRESH_SECONDS = 1.0

log = structlog.get_logger(__name__)


class HTTPDataPlane:
    """Asks the gateway at `base_url`; what it knows is kept for `FRESH_SECONDS`. For threads."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url.rstrip("/")
        self._standing: Standing | None = None
        self._good_until = 0.0
        self._looking = threading.Lock()

    def standing(self) -> Standing | None:
        """Return what a gateway knows now, None where none answers."""
        with self._looking:  # of many pages at once one asks
            if time.monotonic() >= self._good_until:
                try:
                    self._standing = msgspec.json.decode(self._ask(STANDING), type=Standing)
                except (OSError, msgspec.MsgspecError) as error:
                    log.warning("data_plane_silent", address=self._base_url, error=str(error))
                    self._standing = None
                self._good_until = time.monotonic() + FRESH_SECONDS
            return self._standing

    def explain(self, question: bytes) -> bytes:
        """Return a gateway's answer to a dry run, both as JSON; OSError where none answers."""
        return self._ask(EXPLAIN, question)

    def _ask(self, path: str, body: bytes | None = None) -> bytes:
        headers = {"authorization": f"Bearer {operator_token()}", "content-type": "application/json"}
        request = Request(self._base_url + path, body, headers)  # noqa: S310 - the operator's own address
        try:
            with open_directly(request, timeout=SECONDS) as answer:
                found: bytes = answer.read()
        except HTTPException as error:  # it ended in the middle of its answer
            raise OSError(str(error) or type(error).__name__) from error
        return found
