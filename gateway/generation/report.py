"""The log line and metrics of a generation that ended, and its times."""

from __future__ import annotations

import asyncio

import structlog

from gateway.durable.outcome import Outcome
from gateway.runtime.metrics import Metrics
from inference.types import Finished
from routing.types import Route

log = structlog.get_logger(__name__)


class Times:
    """When a request arrived, on the event loop's clock, and when its first token did."""

    def __init__(self, arrived_at: float) -> None:
        self._arrived_at = arrived_at
        self._first_at: float | None = None

    @property
    def has_first(self) -> bool:
        """Whether its first token, or vector, is there."""
        return self._first_at is not None

    def note_first(self) -> None:
        """Take now as the time of its first token."""
        self._first_at = asyncio.get_running_loop().time()

    def ttft_ms(self) -> int | None:
        """Milliseconds until the first token; None: there was none."""
        return None if self._first_at is None else round((self._first_at - self._arrived_at) * 1000)

    def duration_ms(self) -> int:
        """Milliseconds until now."""
        return round((asyncio.get_running_loop().time() - self._arrived_at) * 1000)


def report(metrics: Metrics, route: Route, outcome: Outcome, finished: Finished | None) -> None:
    """Count and log a generation's end; `finished` is what its engine said, None where none said anything."""
    reason = outcome.error.code if outcome.error else outcome.sluice_reason or outcome.reason.value
    if finished is not None:
        metrics.engine_ended(route.counted_as, route.deployment_name, finished)
    metrics.generation_ended(route.counted_as, reason, ttft_ms=outcome.ttft_ms, duration_ms=outcome.duration_ms)
    log.info(
        "generation_ended",
        model=route.model,
        deployment=route.deployment_name,
        reason=reason,
        usage=outcome.usage.classes(),
        charge=outcome.charge,
        ttft_ms=outcome.ttft_ms,
        duration_ms=outcome.duration_ms,
        **_engine_times(finished),
    )


def _engine_times(finished: Finished | None) -> dict[str, int]:
    """A request's times as the engine reports them; foreign servers report fewer."""
    if finished is None:
        return {}
    times = {name: getattr(finished, name) for name in ("queued_ms", "prefill_ms", "gap_ms", "gap_p99_ms")}
    return {f"engine_{name}": round(value) for name, value in times.items() if value}
