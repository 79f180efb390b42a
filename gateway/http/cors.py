"""Pages of other origins that may call the data plane from a browser: with a key of their own, never with cookies."""

from __future__ import annotations

from collections.abc import Collection

from base.http import Application, ASGIMessage, Headers, Receive, Scope, Send, header_of, raw_headers

PREFLIGHT_SECONDS = 600


def with_cors(application: Application, origins: Collection[str]) -> Application:
    """Return `application`, with CORS headers that let pages of `origins` (``*``: any) call ``/v1/*`` and read all
    headers.

    Without origins it is `application` itself: browsers then refuse pages of other origins.
    """
    if not origins:
        return application

    async def application_with_cors(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].lstrip("/").startswith("v1/"):
            await application(scope, receive, send)
            return
        origin = header_of(scope, b"origin")
        headers = {"vary": "Origin"}
        if origin is not None and ("*" in origins or origin in origins):
            headers |= {"access-control-allow-origin": origin, "access-control-expose-headers": "*"}
            if scope["method"] == "OPTIONS" and header_of(scope, b"access-control-request-method"):
                await _allow(scope, send, headers)
                return

        async def send_with_headers(message: ASGIMessage) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *raw_headers(headers)]}
            await send(message)

        await application(scope, receive, send_with_headers)

    return application_with_cors


async def _allow(scope: Scope, send: Send, headers: Headers) -> None:
    """Answer a preflight: all that is asked for is allowed, since a request needs a key anyway."""
    asked = header_of(scope, b"access-control-request-headers")
    allowed = {
        **headers,
        "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
        "access-control-max-age": str(PREFLIGHT_SECONDS),
        **({"access-control-allow-headers": asked} if asked else {}),
    }
    await send({"type": "http.response.start", "status": 204, "headers": raw_headers(allowed)})
    await send({"type": "http.response.body", "body": b""})
