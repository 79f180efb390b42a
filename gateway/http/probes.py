"""Probes for operators and orchestrators (liveness, readiness, metrics), and a gateway's answers to processes of pages.

On a port of their own (SLUICE_METRICS_PORT) the probes answer whoever reaches it. Beside the API they tell figures, and
the names of deployments, to this machine and to whoever has the operators' token; processes of pages need that token.
"""

from __future__ import annotations

import ipaddress
from functools import partial
from uuid import UUID

import msgspec
from django.urls import URLPattern
from django.utils.crypto import constant_time_compare

from base.http import Receive, Scope, Send, header_of, send_bytes, send_json
from gateway.errors.refusal import Refusal
from gateway.generation.dry_run import Question, decide
from gateway.http.access import address_of, bearer_of
from gateway.http.request import metrics_of, read_body, require_method, runtime_of, starting
from gateway.http.routes import path
from gateway.runtime.data_plane import EXPLAIN, STANDING, Live, standing_of
from gateway.runtime.metrics import CONTENT_TYPE
from gateway.runtime.readiness import Look, operator_token
from gateway.runtime.requests import Stage
from gateway.runtime.runtime import Runtime

_NOBODY = UUID(int=0)
# The states that anybody may see of a deployment.
_STATES = frozenset({"ready", "loading", "loading failed", "model refused", "no answer"})


async def liveness(scope: Scope, receive: Receive, send: Send) -> None:
    """``/healthz``: 200 while the event loop turns; "ok", or "leaving" for proxies to turn to another gateway."""
    require_method(scope, "GET", "HEAD")
    runtime: Runtime | None = scope.get("state", {}).get("runtime")
    is_leaving = runtime is not None and runtime.requests.stage is not Stage.SERVING
    await send_json(send, 200, {"status": "leaving" if is_leaving else "ok"})


async def readiness(scope: Scope, receive: Receive, send: Send, *, is_own_port: bool) -> None:
    """``/readyz``: 200 when this gateway can work, else 503; which checks fail and, for its operators, each
    deployment's state.

    `notes` tell of what works worse than it should and keeps nobody from being served.

    Details (paths, messages) only with the operator's token.
    """
    require_method(scope, "GET", "HEAD")
    pages: Look | None = scope.get("state", {}).get("pages")
    checks = await (runtime_of(scope).readiness() if pages is None else pages.problems())
    is_ready = not any(checks.values())
    has_token = _has_token(scope)
    told = {name: (problem if has_token else "failing") if problem else "ok" for name, problem in checks.items()}
    body = {"status": "ready" if is_ready else "not ready", "checks": told}
    if pages is None:
        runtime = runtime_of(scope)
        body["notes"] = runtime.notes(for_operators=has_token)
        if is_own_port or _is_operator(scope):
            states = runtime.deployments()
            body["deployments"] = {name: state if has_token else _coarse(state) for name, state in states.items()}
    await send_json(send, 200 if is_ready else 503, body)


async def health(scope: Scope, receive: Receive, send: Send) -> None:
    """``/health``: an empty 200 or 503, as vLLM's."""
    require_method(scope, "GET", "HEAD")
    is_ready = not any((await runtime_of(scope).readiness()).values())
    await send_bytes(send, 200 if is_ready else 503, b"", "text/plain")


def _coarse(state: str) -> str:
    kind = state.partition(":")[0]
    return kind if kind in _STATES else "not ready"


async def metrics(scope: Scope, receive: Receive, send: Send, *, is_own_port: bool) -> None:
    """``/metrics``: Prometheus' text format, for this gateway's operators."""
    require_method(scope, "GET", "HEAD")
    if not (is_own_port or _is_operator(scope)):
        text = "Ask for /metrics from this machine, with the operator's token, or at the port of SLUICE_METRICS_PORT."
        raise Refusal(401, "operators_only", text, headers={"www-authenticate": "Bearer"})
    if (counters := metrics_of(scope)) is None:
        raise starting()
    await send_bytes(send, 200, await counters.shown(), CONTENT_TYPE)


async def standing(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer what this gateway knows of its engines."""
    require_method(scope, "GET")
    _require_token(scope)
    await send_bytes(send, 200, msgspec.json.encode(standing_of(runtime_of(scope))), "application/json")


async def explain(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer where a request would go now."""
    require_method(scope, "POST")
    _require_token(scope)
    try:
        question = msgspec.json.decode(await read_body(scope, receive, _NOBODY), type=Question)
    except msgspec.MsgspecError as error:
        raise Refusal(400, "invalid_value", str(error)) from error
    runtime = runtime_of(scope)
    decision = await decide(Live(runtime), question, runtime.threads)
    await send_bytes(send, 200, msgspec.json.encode(decision), "application/json")


def internal_paths() -> list[URLPattern]:
    """Return the routes of a gateway's answers to processes of pages."""
    return [path(STANDING.strip("/"), standing), path(EXPLAIN.strip("/"), explain)]


def probe_paths(*, is_own_port: bool) -> list[URLPattern]:
    """Return the routes of the probes beside `/healthz`."""
    return [
        path("readyz", partial(readiness, is_own_port=is_own_port)),
        path("metrics", partial(metrics, is_own_port=is_own_port)),
    ]


_PASSED_ON = (b"forwarded", b"via", b"x-real-ip", *(b"x-forwarded-" + what for what in (b"for", b"host", b"proto")))
"""Headers by which a proxy on this machine tells that somebody else asks."""


def _is_operator(scope: Scope) -> bool:
    """Whether this machine asks, for itself and for nobody else, or somebody with the operator's token."""
    is_passed_on = any(header_of(scope, name) is not None for name in _PASSED_ON)
    return _has_token(scope) or (not is_passed_on and _is_loopback(address_of(scope)))


def _require_token(scope: Scope) -> None:
    if not _has_token(scope):
        raise Refusal(401, "operators_only", "This is for processes of Sluice.", headers={"www-authenticate": "Bearer"})


def _has_token(scope: Scope) -> bool:
    return constant_time_compare(bearer_of(scope) or "", operator_token())


def _is_loopback(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback
