"""Whole answers of JSON in gzip, for clients that take it. Streams, files and the control plane's pages stay as they
are: what answers here asks for a key, which no other site's page makes a browser send, so a size tells no secret.

One thread compresses one answer at a time; those that are ready meanwhile are sent as they are.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

from base.http import Application, ASGIMessage, Receive, Scope, Send, header_of

LEAST_BYTES = 8192  # most chats have less: what their sending would gain is less than a thread costs
LEVEL = 1  # of nine: the others take two to six times as long for a tenth less

_VARY = (b"vary", b"accept-encoding")


def compressed(application: Application) -> Application:
    """Return `application`, whose answers of `LEAST_BYTES` of JSON and more are compressed where the thread is free."""

    def compressing(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            send = _Sender(send, takes_gzip=takes_gzip(header_of(scope, b"accept-encoding") or ""))
        return application(scope, receive, send)

    return compressing


@lru_cache(256)
def takes_gzip(accepted: str) -> bool:
    """Return whether a client that sends this `accept-encoding` takes gzip."""
    weights: dict[str, bool] = {}
    for one in accepted.lower().split(","):
        name, _, parameter = one.partition(";")
        weight = parameter.replace(" ", "").removeprefix("q=")
        weights[name.strip()] = bool(weight.strip("0.")) if parameter else True
    return weights.get("gzip", weights.get("*", False))


class _Packer:
    """The thread that compresses."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gzip")
        self._last: Future[bytes] | None = None

    def begun(self, body: bytes) -> Future[bytes] | None:
        """Return the compression of `body`, begun now; None while another is under way, though nobody waits for it."""
        if self._last is not None and not self._last.done():
            return None
        self._last = self._thread.submit(gzip.compress, body, LEVEL, mtime=0)
        return self._last


_packer = _Packer()


class _Sender:
    """Sends an answer's messages on; a head that begins one to be compressed waits for its body."""

    def __init__(self, send: Send, *, takes_gzip: bool) -> None:
        self._send = send
        self._takes_gzip = takes_gzip
        self._head: ASGIMessage | None = None

    def __call__(self, message: ASGIMessage) -> Awaitable[None]:
        # No coroutine of its own: every token of a stream passes through it.
        if self._head is not None:
            return self._send_compressed(self._head, message["body"])
        if message["type"] == "http.response.start" and _is_large_json(message):
            if self._takes_gzip:
                self._head = message
                return _nothing()
            message = {**message, "headers": [*message["headers"], _VARY]}
        return self._send(message)

    async def _send_compressed(self, head: ASGIMessage, body: bytes) -> None:
        packing = _packer.begun(body)
        if packing is None:
            await self._send({**head, "headers": [*head["headers"], _VARY]})
            await self._send({"type": "http.response.body", "body": body})
            return
        packed = await asyncio.wrap_future(packing)
        size = (b"content-length", str(len(packed)).encode())
        headers = [size if name == b"content-length" else (name, value) for name, value in head["headers"]]
        await self._send({**head, "headers": [*headers, (b"content-encoding", b"gzip"), _VARY]})
        await self._send({"type": "http.response.body", "body": packed})


def _is_large_json(head: ASGIMessage) -> bool:
    headers = dict(head.get("headers", ()))
    size = int(headers.get(b"content-length", 0))
    return size >= LEAST_BYTES and headers.get(b"content-type") == b"application/json"


async def _nothing() -> None:
    pass
