"""The metrics of a gateway, in a registry of its own for each runtime."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric

from gateway.runtime.gauges import Gauges
from gateway.runtime.installation_metrics import InstallationMetrics
from gateway.runtime.replica_metrics import ReplicaMetrics
from inference.types import Finished

TTFT_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0)
DELAY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SECONDS_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
CONTENT_TYPE = CONTENT_TYPE_LATEST

# Prometheus sees no increase in a series that begins with its first count, so what alerts look at is shown from 0 on.
SWEPT = ("settled", "released", "waived", "estimated", "waiting", "closed_by_another", "corrected")
NOT_LET_IN = (
    *("missing_api_key", "invalid_api_key", "api_key_revoked", "api_key_expired"),
    *("not_signed_in", "operators_only", "password"),
)
SERVER_ERRORS = (500, 503)

SHOWN_SECONDS = 1.0  # how long one rendering is shown
MOST_CHILDREN = 5000  # of counters and histograms with labels

M = TypeVar("M", Counter, Histogram)


class Metrics:
    """The gateway's counters. No label ever holds a tenant, a key or anything else that a client chooses freely."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._showing: asyncio.Task[bytes] | None = None
        self._shown_until = 0.0
        self.registry = CollectorRegistry()
        self._labelled: dict[tuple[object, ...], Any] = {}
        self.gauges = Gauges(self.registry)
        ProcessCollector(registry=self.registry)
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        self.requests = counter("sluice_requests", "Answered requests.", ["endpoint", "status"])
        self.refusals = counter("sluice_refusals", "Refused requests by their error's code.", ["endpoint", "code"])
        self.authentication_failures = counter(
            "sluice_authentication_failures",
            "Requests without a valid key or session (kind: the error's code), and failed sign-ins (kind: password).",
            ["kind"],
        )
        self.websockets = gauge("sluice_websockets", "Open websockets.")
        text = "How long requests waited for a place of their tenant, of those that had to."
        self.queue_wait = histogram("sluice_queue_wait_seconds", text, buckets=SECONDS_BUCKETS)
        text = "How much later than asked the event loop came to a timer; sampled."
        self.loop_delay = histogram("sluice_event_loop_delay_seconds", text, buckets=DELAY_BUCKETS)
        text = "Refusals of which no row tells: too many kinds at once."
        self.refusals_dropped = counter("sluice_refusals_dropped", text)
        self.tokens = counter("sluice_tokens", "Charged tokens by class.", ["model", "usage_class"])
        self.credits = counter("sluice_credits_micro", "Charged micro-credits.", ["model"])
        self.generations = counter("sluice_generations", "Ended generations by reason.", ["model", "reason"])
        self.ttft = histogram("sluice_ttft_seconds", "Time to first token.", ["model"], buckets=TTFT_BUCKETS)
        text = "Time from admission to settlement."
        self.duration = histogram("sluice_generation_seconds", text, ["model"], buckets=SECONDS_BUCKETS)
        text = "The {} of a request's times from one token to the next on an engine of ours: one value a request."
        self.gap_median, self.gap_p99 = (
            histogram(f"sluice_request_inter_token_{name}_seconds", text.format(what), ["model"], buckets=DELAY_BUCKETS)
            for name, what in (("median", "median"), ("p99", "99th percentile"))
        )
        text = "What foreign servers said or did that can't be right, such as a usage that isn't believed."
        self.engine_findings = counter("sluice_engine_findings", text, ["deployment", "finding"])
        text = "Settlements that were not answered in time and left to the sweep."
        self.settlements_deferred = counter("sluice_settlements_deferred", text)
        self.swept = counter("sluice_swept_holds", "Holds closed by the sweep.", ["how"])
        text = "1 while limits are exact for all gateways together, 0 while Redis is lost and each counts its share."
        self.limits_shared = gauge("sluice_limits_shared", text)
        self.redis_losses = counter("sluice_redis_losses", "How often Redis was lost.")
        self.gateways = gauge("sluice_gateways", "Gateways that share this database.")
        self.limits_shared.set(1)
        for how in SWEPT:
            self.swept.labels(how)
        for kind in NOT_LET_IN:
            self.authentication_failures.labels(kind)
        self.installation = InstallationMetrics(self.registry)
        self.replicas = ReplicaMetrics(self.registry)

    def answered(self, endpoint: str, status: int) -> None:
        """Count one answer. With an endpoint's first one its server errors are shown too."""
        if (self.requests, endpoint, str(status)) not in self._labelled:
            for error in SERVER_ERRORS:
                self._of(self.requests, endpoint, str(error))
        self._of(self.requests, endpoint, str(status)).inc()

    def refused(self, endpoint: str, status: int, code: str) -> None:
        """Count one refusal, under its code while these are not too many: a foreign server may make some up."""
        known = (self.refusals, endpoint, code) in self._labelled or len(self._labelled) < MOST_CHILDREN
        self._of(self.refusals, endpoint, code if known else "other").inc()
        if status == 401:
            self.authentication_failed(code)

    def holds_swept(self, found: Mapping[str, int]) -> None:
        """Count what one turn of the sweep did."""
        for how, count in found.items():
            self._of(self.swept, how).inc(count)

    def authentication_failed(self, kind: str) -> None:
        """Count somebody who wasn't let in."""
        self._of(self.authentication_failures, kind).inc()

    def settled(self, model: str, classes: Mapping[str, int], charge: int) -> None:
        """Count what one request was charged for."""
        for name, count in classes.items():
            self._of(self.tokens, model, name).inc(count)
        self._of(self.credits, model).inc(charge)

    def engine_ended(self, model: str, deployment: str, finished: Finished) -> None:
        """Count the times between a request's tokens, which an engine of ours told with its end, and what a foreign
        one's end has against it.
        """
        for finding in finished.findings:
            self._of(self.engine_findings, deployment, finding).inc()
        if finished.gap_p99_ms:
            self._of(self.gap_median, model).observe(finished.gap_ms / 1000)
            self._of(self.gap_p99, model).observe(finished.gap_p99_ms / 1000)

    def generation_ended(self, model: str, reason: str, *, ttft_ms: int | None, duration_ms: int | None) -> None:
        """Count an ended generation and its times."""
        self._of(self.generations, model, reason).inc()
        if ttft_ms is not None:
            self._of(self.ttft, model).observe(ttft_ms / 1000)
        if duration_ms is not None:
            self._of(self.duration, model).observe(duration_ms / 1000)

    def _of(self, metric: M, *labels: str) -> M:
        """Return `metric.labels(*labels)`, which checks its names anew and takes a lock at each call, kept."""
        child: M | None = self._labelled.get((metric, *labels))
        if child is None:
            child = self._labelled[metric, *labels] = metric.labels(*labels)
        return child

    def render(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return b"".join(self._families())

    async def shown(self) -> bytes:
        """Return `render`, at most `SHOWN_SECONDS` old: however many ask, requests wait for one family at most."""
        if self._showing is None or (self._showing.done() and self._clock() >= self._shown_until):
            self._showing = asyncio.get_running_loop().create_task(self._show())
        return await asyncio.shield(self._showing)

    async def _show(self) -> bytes:
        families = []
        for family in self._families():
            families.append(family)
            await asyncio.sleep(0)  # a thread would hold up the loop for longer: for its turns of the interpreter
        self._shown_until = self._clock() + SHOWN_SECONDS
        return b"".join(families)

    def _families(self) -> Iterator[bytes]:
        for family in self.registry.collect():
            yield generate_latest(_One(family))


class _One(CollectorRegistry):
    """A registry of one family, for what writes registries."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family
