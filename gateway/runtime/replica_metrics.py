"""The metrics of each replica: its state, and the work of engines of ours."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.runtime.duration_metrics import DurationMetric
from inference.types import Health, Work

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
