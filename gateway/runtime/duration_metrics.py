"""Histograms for `/metrics` of durations that an engine has put into buckets itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from inference.types import BOUNDS, Histogram

_LIMITS = (*(f"{bound:g}" for bound in BOUNDS), "+Inf")


class DurationMetric(Collector):
    """One histogram, counted on from what each place's engine told of itself.

    A `Histogram` of prometheus_client takes single observations only.
    """

    def __init__(self, name: str, text: str, labels: tuple[str, ...], registry: CollectorRegistry) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._counted: dict[tuple[str, ...], Histogram] = {}
        registry.register(self)

    def add(self, place: tuple[str, ...], now: Histogram, before: Histogram) -> None:
        """Count what came to `before` until it was `now`; an engine that counts nothing has no series."""
        if now.counts:
            last = before.counts or (0,) * len(now.counts)
            more = Histogram(tuple(a - b for a, b in zip(now.counts, last, strict=True)), now.seconds - before.seconds)
            self._counted[place] = self._counted.get(place, Histogram()) + more

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the histogram with the series of all places."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for place, counted in list(self._counted.items()):
            buckets = list(zip(_LIMITS, accumulate(counted.counts), strict=True))
            family.add_metric(place, buckets, counted.seconds)
        yield family
