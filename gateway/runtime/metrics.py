"""The metrics of a gateway and of its installation, in a registry of its own for each runtime."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar, cast

from django.conf import settings
from django.db import connection
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from base import clock
from billing.models import Hold
from billing.promises import Measured
from billing.selectors.reconciliation import last_reconciliation
from gateway.logs import lines_dropped
from gateway.runtime.models import TaskState
from inference.types import BOUNDS, Finished, Health, Work
from inference.types import Histogram as Buckets
from tenancy.models import OutgoingMail

_LIMITS = (*(f"{bound:g}" for bound in BOUNDS), "+Inf")


class DurationMetric(Collector):
    """One histogram, counted on from what each place's engine told of itself.

    A `Histogram` of prometheus_client takes single observations only.
    """

    def __init__(self, name: str, text: str, labels: tuple[str, ...], registry: CollectorRegistry) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._counted: dict[tuple[str, ...], Buckets] = {}
        registry.register(self)

    def add(self, place: tuple[str, ...], now: Buckets, before: Buckets) -> None:
        """Count what came to `before` until it was `now`; an engine that counts nothing has no series."""
        if now.counts:
            last = before.counts or (0,) * len(now.counts)
            more = Buckets(tuple(a - b for a, b in zip(now.counts, last, strict=True)), now.seconds - before.seconds)
            self._counted[place] = self._counted.get(place, Buckets()) + more

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the histogram with the series of all places."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for place, counted in list(self._counted.items()):
            buckets = list(zip(_LIMITS, accumulate(counted.counts), strict=True))
            family.add_metric(place, buckets, counted.seconds)
        yield family


DELAY_INTERVAL = 0.5

_READ = {
    "sluice_open_holds": "Holds of this gateway that are open.",
    "sluice_unsettled_requests": "Ended requests of this gateway whose settlement was not answered yet.",
    "sluice_queued_requests": "Requests that wait for a place of their tenant.",
    "sluice_writer_oldest_seconds": "Age of the oldest unanswered ledger operation.",
    "sluice_writer_queued_operations": "Ledger operations without an answer.",
    "sluice_epoch_age_seconds": "Time since the catalogue's epoch was read; above 1 nobody is let in.",
    "sluice_database_calls": "Reads of the data plane that run or wait for a thread.",
    "sluice_database_connections": "Connections of the control plane's pool; 0 on SQLite, which has none.",
    "sluice_database_connections_used": "Those of them that are in use.",
    "sluice_database_connections_limit": "Most that the pool may have.",
    "sluice_database_requests_waiting": "Requests that wait for a connection of the pool.",
    "sluice_connections": "Open connections of clients, websockets included.",
    "sluice_connections_limit": "Most connections of clients that are taken.",
}


class Gauges:
    """The gauges; each shows 0 until `follow` says where its value comes from."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {name: Gauge(name, help_, registry=registry) for name, help_ in _READ.items()}
        registry.register(_LinesDropped())

    def follow(self, sources: Mapping[str, Callable[[], float]]) -> None:
        """Show what these functions return at each scrape, by the metrics' names."""
        for name, source in sources.items():
            self._gauges[name].set_function(source)


class _LinesDropped(Collector):
    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(
            "sluice_log_lines_dropped", "Lines of the log that nobody read in time.", value=lines_dropped()
        )


async def observe_delay(observe: Callable[[float], object]) -> None:
    """Tell `observe` how much later than asked timers come, until cancelled."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + DELAY_INTERVAL
        await asyncio.sleep(DELAY_INTERVAL)
        observe(max(0.0, clock() - due))


def pool_sources() -> dict[str, Callable[[], float]]:
    """Return where the metrics of the control plane's connections come from, on PostgreSQL."""
    if settings.SLUICE_EMBEDDED:
        return {}
    pool = cast("Any", connection).pool

    def statistic(name: str) -> Callable[[], float]:
        return lambda: pool.get_stats().get(name, 0)

    return {
        "sluice_database_connections": statistic("pool_size"),
        "sluice_database_connections_used": lambda: statistic("pool_size")() - statistic("pool_available")(),
        "sluice_database_connections_limit": statistic("pool_max"),
        "sluice_database_requests_waiting": statistic("requests_waiting"),
    }


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One periodic task: its last success, how long that took, and its failures since."""

    name: str
    succeeded_at: datetime | None
    seconds: float
    failures: int


@dataclass(frozen=True, slots=True)
class Installation:
    """The figures of one reading; `checked_at` and `contradictions` are of the last reconciliation, if any."""

    tasks: tuple[TaskFacts, ...]
    checked_at: datetime | None
    contradictions: int
    mail_waiting: int
    mail_failed: int
    overdue_holds: int


def read_installation() -> Installation:
    """Return the facts of this moment."""
    now, state = clock.now(), OutgoingMail.State
    tasks = TaskState.objects.values_list("name", "succeeded_at", "seconds", "failures")
    checked = last_reconciliation()
    yesterday = now - timedelta(days=1)
    return Installation(
        tasks=tuple(TaskFacts(*row) for row in tasks),
        checked_at=checked.finished_at if checked is not None else None,
        contradictions=(checked.found or 0) if checked is not None else 0,
        mail_waiting=OutgoingMail.objects.filter(state=state.WAITING).count(),
        mail_failed=OutgoingMail.objects.filter(state=state.FAILED, ended_at__gt=yesterday).count(),
        overdue_holds=Hold.objects.filter(lease_until__lt=now).count(),
    )


class InstallationMetrics:
    """Periodic work, the last check of the books, mail and holds that are overdue."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tasks: set[str] = set()  # those that are shown
        task = ["task"]
        self.task_success = Gauge(
            "sluice_task_last_success_timestamp_seconds",
            "When a periodic task succeeded last.",
            task,
            registry=registry,
        )
        self.task_seconds = Gauge(
            "sluice_task_duration_seconds", "How long its last success took.", task, registry=registry
        )
        self.task_failures = Gauge(
            "sluice_task_consecutive_failures", "How often it failed since.", task, registry=registry
        )
        self.checked_at = Gauge(
            "sluice_reconciliation_timestamp_seconds",
            "When the last check of the books ended; 0: never.",
            registry=registry,
        )
        interval = Gauge(
            "sluice_reconciliation_interval_seconds",
            "From one check of the books to the next, as the settings have it.",
            registry=registry,
        )
        interval.set(3600 * settings.SLUICE_RECONCILE_HOURS)
        self.contradictions = Gauge(
            "sluice_reconciliation_findings", "Contradictions that it found.", registry=registry
        )
        self.mail_waiting = Gauge("sluice_mail_waiting", "Mails that are to be sent.", registry=registry)
        self.mail_failed = Gauge("sluice_mail_failed", "Mails given up within a day.", registry=registry)
        self.overdue_holds = Gauge("sluice_overdue_holds", "Holds whose lease is over.", registry=registry)

    def seen(self, seen: Installation) -> None:
        """Show the latest reading of what all gateways share."""
        gone = self._tasks - {task.name for task in seen.tasks}
        for gauge in (self.task_success, self.task_seconds, self.task_failures):
            for name in gone:
                with suppress(KeyError):  # one that never succeeded
                    gauge.remove(name)
        self._tasks = {task.name for task in seen.tasks}
        for task in seen.tasks:
            if task.succeeded_at is not None:
                self.task_success.labels(task.name).set(task.succeeded_at.timestamp())
            self.task_seconds.labels(task.name).set(task.seconds)
            self.task_failures.labels(task.name).set(task.failures)
        if seen.checked_at is not None:
            self.checked_at.set(seen.checked_at.timestamp())
        self.contradictions.set(seen.contradictions)
        self.mail_waiting.set(seen.mail_waiting)
        self.mail_failed.set(seen.mail_failed)
        self.overdue_holds.set(seen.overdue_holds)


class CheckMetrics:
    """Each check that was made lately: this gateway's own, and those of the periodic work."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "1 while a check is fine, 0 while it fails; its name is the doctor's."
        self._gauge = Gauge("sluice_check", text, ["name", "severity"], registry=registry)
        self._shown: set[tuple[str, str]] = set()

    def seen(self, found: Mapping[str, tuple[str, bool]]) -> None:
        """Show each check's severity and whether it is fine, and no other."""
        for gone in self._shown - {(name, severity) for name, (severity, _) in found.items()}:
            self._gauge.remove(*gone)
        self._shown = {(name, severity) for name, (severity, _) in found.items()}
        for name, (severity, is_fine) in found.items():
            self._gauge.labels(name, severity).set(is_fine)


PLACE = ("deployment", "node")


class ReplicaMetrics:
    """Gauges of the last health of each replica, and counters of what its engine did since this gateway saw it first.

    Engines tell totals since they were loaded; where any is below the last one, the engine was loaded anew.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"sluice_deployment_{name}", text, PLACE, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"sluice_engine_{name}", text, (*PLACE, *labels), registry=registry)

        def durations(name: str, text: str) -> DurationMetric:
            return DurationMetric(f"sluice_engine_{name}_seconds", text, PLACE, registry)

        self._ready = gauge("ready", "1 when it takes work.")
        self._running = gauge("running", "Running requests.")
        self._waiting = gauge("waiting", "Queued requests.")
        self._circuit = gauge("circuit_open", "1 from when it failed again and again until a request succeeds.")
        self._kv_used = gauge("kv_used", "Share of KV blocks that requests hold.")
        self._kv_cached = gauge("kv_cached", "Share of KV blocks that only keep prefixes for later prompts.")
        self._steps = counter("steps", "Steps of the model.")
        self._rows = counter("rows", "Rows of all steps; divided by the steps, the mean batch.")
        self._seconds = counter("seconds", "Time in steps, by phase: prefill (prompts) and decode (answers).", "phase")
        self._tokens = counter("tokens", "Tokens: computed of prompts, cached of prompts, and output.", "kind")
        self._preemptions = counter("preemptions", "Requests that lost their place in the batch for a while.", "cause")
        self._queued = durations("queue", "How long requests waited in an engine of ours before their first step.")
        self._first = durations("first_token", "Time from a request's arrival at its engine to its first token.")
        self._gaps = durations("inter_token", "Time from one token of a request to the next; of all tokens.")
        self._last: dict[tuple[str, str], Work] = {}
        self._shown: dict[tuple[str, str], tuple[Health, bool]] = {}

    def seen(self, deployment: str, node: str, health: Health, *, is_circuit_open: bool) -> None:
        """Show the latest health of a replica."""
        place = (deployment, node)
        shown = (health, is_circuit_open)
        if self._shown.get(place) == shown:  # an engine at rest, which is asked all the time
            return
        self._shown[place] = shown
        self._ready.labels(*place).set(health.ready)
        self._running.labels(*place).set(health.running)
        self._waiting.labels(*place).set(health.waiting)
        self._circuit.labels(*place).set(is_circuit_open)
        self._kv_used.labels(*place).set(health.kv_used)
        self._kv_cached.labels(*place).set(health.kv_cached)
        if health.work is not None:
            self._add(place, health.work)

    def gone(self, deployment: str, node: str) -> None:
        """Forget a replica that left the catalogue; its counters stay, as those of everything that was."""
        place = (deployment, node)
        self._last.pop(place, None)
        self._shown.pop(place, None)
        for gauge in (self._ready, self._running, self._waiting, self._circuit, self._kv_used, self._kv_cached):
            gauge.remove(*place)

    def _add(self, place: tuple[str, str], work: Work) -> None:
        last = self._last.get(place, Work())
        if not work.follows(last):
            last = Work()
        self._last[place] = work
        self._steps.labels(*place).inc(work.steps - last.steps)
        self._rows.labels(*place).inc(work.rows - last.rows)
        prefill = work.prefill_seconds - last.prefill_seconds
        self._seconds.labels(*place, "prefill").inc(prefill)
        self._seconds.labels(*place, "decode").inc(max(0.0, work.seconds - last.seconds - prefill))
        for kind, now, before in (
            ("computed", work.prompt_tokens, last.prompt_tokens),
            ("cached", work.cached_tokens, last.cached_tokens),
            ("output", work.output_tokens, last.output_tokens),
        ):
            self._tokens.labels(*place, kind).inc(now - before)
        self._queued.add(place, work.queued, last.queued)
        self._first.add(place, work.first_tokens, last.first_tokens)
        self._gaps.add(place, work.gaps, last.gaps)
        for cause, number in work.preemptions.items():
            self._preemptions.labels(*place, cause).inc(number - last.preemptions.get(cause, 0))


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
        text = "Ended requests of plans with a promise: kept, missed_… (ttft, rate, ttft_rate) or not_counted."
        self.promises = counter("sluice_promise_requests", text, ["plan", "outcome"])
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
        self.checks = CheckMetrics(self.registry)
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

    def promised(self, plan: str, kept: Measured) -> None:
        """Count how one request did by its plan's promise."""
        outcome = "not_counted" if kept.not_counted else "_".join(("missed", *kept.missed)) if kept.missed else "kept"
        self._of(self.promises, plan, outcome).inc()

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
