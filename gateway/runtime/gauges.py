"""Metrics whose values are read at each scrape, and cost nothing between two of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from django.conf import settings
from django.db import connection
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from gateway.logs import lines_dropped

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
