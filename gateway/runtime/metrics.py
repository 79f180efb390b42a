"""What `/metrics` shows, in a registry of its own for each runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from inference.types import Health

TTFT_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0)
SECONDS_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
CONTENT_TYPE = CONTENT_TYPE_LATEST

M = TypeVar("M", Counter, Histogram)


class Metrics:
    """The gateway's counters. No label ever holds a tenant, a key or anything else that a client chooses freely."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._labelled: dict[tuple[object, ...], object] = {}
        self.requests = Counter("sluice_requests", "Answered requests.", ["endpoint", "status"], registry=self.registry)
        self.refusals_dropped = Counter(
            "sluice_refusals_dropped", "Refusals of which no row tells: too many kinds at once.", registry=self.registry
        )
        self.tokens = Counter(
            "sluice_tokens", "Charged tokens by class.", ["model", "usage_class"], registry=self.registry
        )
        self.credits = Counter("sluice_credits_micro", "Charged micro-credits.", ["model"], registry=self.registry)
        self.generations = Counter(
            "sluice_generations", "Ended generations by reason.", ["model", "reason"], registry=self.registry
        )
        self.open_holds = Gauge("sluice_open_holds", "Holds of this gateway that are open.", registry=self.registry)
        self.queued = Gauge(
            "sluice_queued_requests", "Requests that wait for a place of their tenant.", registry=self.registry
        )
        self.ttft = Histogram(
            "sluice_ttft_seconds", "Time to first token.", ["model"], buckets=TTFT_BUCKETS, registry=self.registry
        )
        self.duration = Histogram(
            "sluice_generation_seconds",
            "Time from admission to settlement.",
            ["model"],
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )
        self.settlements_pending = Counter(
            "sluice_settlements_pending", "Settlements left to the sweeper.", registry=self.registry
        )
        self.swept = Counter("sluice_swept_holds", "Holds closed by the sweep.", ["how"], registry=self.registry)
        self.limits_shared = Gauge(
            "sluice_limits_shared",
            "1 while limits are exact for all gateways together, 0 while Redis is lost and each counts its share.",
            registry=self.registry,
        )
        self.redis_losses = Counter("sluice_redis_losses", "How often Redis was lost.", registry=self.registry)
        self.gateways = Gauge("sluice_gateways", "Gateways that share this database.", registry=self.registry)
        self.limits_shared.set(1)
        self.writer_age = Gauge(
            "sluice_writer_oldest_seconds", "Age of the oldest unanswered ledger operation.", registry=self.registry
        )
        place = ["deployment", "node"]  # a replica
        self.ready = Gauge("sluice_deployment_ready", "1 when it takes work.", place, registry=self.registry)
        self.running = Gauge("sluice_deployment_running", "Running requests.", place, registry=self.registry)
        self.waiting = Gauge("sluice_deployment_waiting", "Queued requests.", place, registry=self.registry)
        self.kv_used = Gauge("sluice_deployment_kv_used", "Used share of KV blocks.", place, registry=self.registry)

    def follow(self, *, holds: Callable[[], int], writer_age: Callable[[], float], waiting: Callable[[], int]) -> None:
        """Show what these functions return at each scrape: open holds, the writer's age, requests in tenants'
        queues.
        """
        self.open_holds.set_function(holds)
        self.writer_age.set_function(writer_age)
        self.queued.set_function(waiting)

    def answered(self, endpoint: str, status: int) -> None:
        """Count one answer."""
        self._of(self.requests, endpoint, str(status)).inc()

    def settled(self, model: str, classes: Mapping[str, int], charge: int) -> None:
        """Count what one request was charged for."""
        for name, count in classes.items():
            self._of(self.tokens, model, name).inc(count)
        self._of(self.credits, model).inc(charge)

    def generation_ended(self, model: str, reason: str, *, ttft_ms: int | None, duration_ms: int | None) -> None:
        """Count an ended generation and its times."""
        self._of(self.generations, model, reason).inc()
        if ttft_ms is not None:
            self._of(self.ttft, model).observe(ttft_ms / 1000)
        if duration_ms is not None:
            self._of(self.duration, model).observe(duration_ms / 1000)

    def _of(self, metric: M, *labels: str) -> M:
        """Return `metric.labels(*labels)`, which checks its names anew and takes a lock at each call, kept."""
        child = self._labelled.get((metric, *labels))
        if child is None:
            child = self._labelled[metric, *labels] = metric.labels(*labels)
        return cast("M", child)

    def deployment_seen(self, name: str, node: str, health: Health) -> None:
        """Show the latest health of a deployment on a node."""
        self.ready.labels(name, node).set(health.ready)
        self.running.labels(name, node).set(health.running)
        self.waiting.labels(name, node).set(health.waiting)
        self.kv_used.labels(name, node).set(health.kv_used)

    def deployment_gone(self, name: str, node: str) -> None:
        """Forget a replica that left the catalogue."""
        for gauge in (self.ready, self.running, self.waiting, self.kv_used):
            gauge.remove(name, node)

    def render(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)
