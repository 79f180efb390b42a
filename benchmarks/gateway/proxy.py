"""The least that a proxy in Python can do: a plain ASGI application on uvicorn that passes bytes on with aiohttp.

No keys, no limits, no ledger, no reading of what passes.
"""

from __future__ import annotations

import argparse

import aiohttp
import uvicorn


def application(upstream: str):
    """Return the application in front of `upstream`."""
    session: aiohttp.ClientSession | None = None

    async def app(scope, receive, send):
        nonlocal session
        if scope["type"] == "lifespan":
            for done in ("startup", "shutdown"):
                await receive()
                if done == "shutdown" and session is not None:
                    await session.close()
                await send({"type": f"lifespan.{done}.complete"})
            return
        if session is None:
            session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        body, more = b"", True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        headers = {"content-type": "application/json"}
        async with session.request(scope["method"], upstream + scope["path"], data=body, headers=headers) as answer:
            kept = [
                (name.encode(), answer.headers[name].encode())
                for name in ("content-type", "content-length")
                if name in answer.headers
            ]
            await send({"type": "http.response.start", "status": answer.status, "headers": kept})
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    options = parser.parse_args()
    app = application(options.upstream)
    uvicorn.run(app, port=options.port, lifespan="off", access_log=False, log_level="error", server_header=False)
