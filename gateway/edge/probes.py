"""Probes for operators and orchestrators: liveness, readiness, metrics."""

from __future__ import annotations

from django.utils.crypto import constant_time_compare

from gateway.edge.access import bearer_of
from gateway.edge.http import require_method, runtime_of
from gateway.http.asgi import Receive, Scope, Send, send_bytes, send_json
from gateway.runtime.metrics import CONTENT_TYPE
from gateway.runtime.readiness import operator_token

# The states that anybody may see of a deployment.
_STATES = frozenset({"ready", "loading", "loading failed", "model refused", "no answer"})


async def liveness(scope: Scope, receive: Receive, send: Send) -> None:
    """``/healthz``: 200 while the event loop turns."""
    require_method(scope, "GET", "HEAD")
    await send_json(send, 200, {"status": "ok"})


async def readiness(scope: Scope, receive: Receive, send: Send) -> None:
    """``/readyz``: 200 when this gateway can work, else 503; which checks fail, and the state of each deployment.

    `notes` tell of what works worse than it should and keeps nobody from being served.

    Details (names, paths, messages) only with the operator's token.
    """
    require_method(scope, "GET", "HEAD")
    runtime = runtime_of(scope)
    checks = await runtime.readiness()
    is_ready = not any(checks.values())
    checked = {name: problem or "ok" for name, problem in checks.items()}
    states = runtime.deployments()
    if not constant_time_compare(bearer_of(scope) or "", operator_token()):
        checked = {name: "failing" if problem else "ok" for name, problem in checks.items()}
        states = {name: _coarse(state) for name, state in states.items()}
    body = {
        "status": "ready" if is_ready else "not ready",
        "checks": checked,
        "deployments": states,
        "notes": runtime.notes(),
    }
    await send_json(send, 200 if is_ready else 503, body)


async def health(scope: Scope, receive: Receive, send: Send) -> None:
    """``/health``: an empty 200 or 503, as vLLM's."""
    require_method(scope, "GET", "HEAD")
    is_ready = not any((await runtime_of(scope).readiness()).values())
    await send_bytes(send, 200 if is_ready else 503, b"", "text/plain")


def _coarse(state: str) -> str:
    kind = state.partition(":")[0]
    return kind if kind in _STATES else "not ready"


async def metrics(scope: Scope, receive: Receive, send: Send) -> None:
    """``/metrics``: Prometheus' text format."""
    require_method(scope, "GET", "HEAD")
    await send_bytes(send, 200, runtime_of(scope).metrics.render(), CONTENT_TYPE)
