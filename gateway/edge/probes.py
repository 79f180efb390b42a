"""What operators and their machines ask: is the process alive, can it work, what are its figures."""

from __future__ import annotations

from gateway.edge.http import Receive, Scope, Send, require_method, runtime_of, send_bytes, send_json
from gateway.runtime.metrics import CONTENT_TYPE


async def liveness(scope: Scope, receive: Receive, send: Send) -> None:
    """``/healthz``: 200 while the event loop turns."""
    require_method(scope, "GET", "HEAD")
    await send_json(send, 200, {"status": "ok"})


async def readiness(scope: Scope, receive: Receive, send: Send) -> None:
    """``/readyz``: 200 when database, triggers, epoch and a deployment are all right, else 503 saying what isn't."""
    require_method(scope, "GET", "HEAD")
    runtime = runtime_of(scope)
    checks = await runtime.readiness()
    is_ready = not any(checks.values())
    body = {
        "status": "ready" if is_ready else "not ready",
        "checks": {name: problem or "ok" for name, problem in checks.items()},
        "deployments": runtime.deployments(),
    }
    await send_json(send, 200 if is_ready else 503, body)


async def metrics(scope: Scope, receive: Receive, send: Send) -> None:
    """``/metrics``: Prometheus' text format."""
    require_method(scope, "GET", "HEAD")
    await send_bytes(send, 200, runtime_of(scope).metrics.render(), CONTENT_TYPE)
