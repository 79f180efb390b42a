"""Metrics whose values are read at each scrape, and cost nothing between two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from gateway.logs import lines_dropped

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
