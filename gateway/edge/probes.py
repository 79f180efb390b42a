"""What operators and their machines ask: is the process alive, can it work, what are its figures."""

from __future__ import annotations

import structlog
from django.db import Error as DatabaseError

from gateway.edge.database import in_database
from gateway.edge.http import Receive, Scope, Send, require_method, runtime_of, send_bytes, send_json
from gateway.metrics import CONTENT_TYPE
from gateway.readiness import missing_triggers
from gateway.runtime import Runtime

log = structlog.get_logger(__name__)


async def liveness(scope: Scope, receive: Receive, send: Send) -> None:
    """``/healthz``: 200 while the event loop turns."""
    require_method(scope, "GET", "HEAD")
    await send_json(send, 200, {"status": "ok"})


async def readiness(scope: Scope, receive: Receive, send: Send) -> None:
    """``/readyz``: 200 when database, triggers, epoch and a deployment are all right, else 503 saying what isn't."""
    require_method(scope, "GET", "HEAD")
    problems = await problems_of(runtime_of(scope))
    body = {"status": "not ready" if problems else "ready", "problems": problems}
    await send_json(send, 503 if problems else 200, body)


async def problems_of(runtime: Runtime) -> list[str]:
    """Why this process can't do its work now; nothing when it can."""
    problems = list(runtime.not_ready())
    try:
        missing = await in_database(missing_triggers)
    except DatabaseError as error:
        log.warning("database_unreadable", error=str(error))
        return [*problems, "the database can't be read"]
    return [*problems, *(f"the trigger {name} is missing" for name in missing)]


async def metrics(scope: Scope, receive: Receive, send: Send) -> None:
    """``/metrics``: Prometheus' text format."""
    require_method(scope, "GET", "HEAD")
    await send_bytes(send, 200, runtime_of(scope).metrics.render(), CONTENT_TYPE)
