"""Plain HTTP for tests that look at statuses and bodies as they come."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message
from typing import Any

from base.http import open_directly


@dataclass(frozen=True)
class Page:
    """An answer, whatever its status."""

    status: int
    headers: Message
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def ask(url: str, body: Any = None, *, key: str = "", method: str = "", **headers: str) -> Page:
    """Ask `url`, with `body` as JSON (bytes as they are), and return the answer."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if key:
        given["authorization"] = f"Bearer {key}"
    if data is not None:
        given.setdefault("content-type", "application/json")
    request = urllib.request.Request(url, data, given, method=method or None)
    try:
        with open_directly(request, timeout=200) as answer:
            return Page(answer.status, answer.headers, answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Page(error.code, error.headers, error.read().decode())
