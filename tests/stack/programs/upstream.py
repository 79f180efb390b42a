"""The scripted foreign server as a process of its own; `GET /stats` says what ran, by request."""

from __future__ import annotations

import argparse

from aiohttp import web

from tests.upstream import Upstream

PACE = 0.001


def application(upstream: Upstream) -> web.Application:
    async def stats(request: web.Request) -> web.Response:
        return web.json_response(upstream.served)

    async def rest(request: web.Request) -> web.StreamResponse:
        upstream.seen.clear()  # what it keeps for tests of single requests would grow for ever
        upstream.heads.clear()
        return await upstream._handle(request)

    app = web.Application(client_max_size=1 << 26)
    app.router.add_get("/stats", stats)
    app.router.add_route("*", "/{path:.*}", rest)
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    upstream = Upstream(pace=PACE)
    web.run_app(
        application(upstream),
        host="127.0.0.1",
        port=parser.parse_args().port,
        print=None,
        access_log=None,
        handler_cancellation=True,
    )
