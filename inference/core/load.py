"""What a scheduler's steps did so far: for rates over time, and for who had how much of the device."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from inference.core.step import StepPlan
from inference.core.step_times import StepTimes
from inference.types import BOUNDS, Histogram, Work

MOST_TENANTS = 32  # of which a report tells


class Durations:
    """Durations counted in the buckets of `Histogram`."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0
        self._latest = 0.0
        self._repeats = 0  # of the latest, which are not counted yet

    def add(self, seconds: float) -> None:
        """Count one duration."""
        if seconds == self._latest:  # rows that decode together waited alike for their tokens
            self._repeats += 1
        else:
            self._count_latest()
            self._latest, self._repeats = seconds, 1

    def report(self) -> Histogram:
        """Return what was counted so far."""
        self._count_latest()
        return Histogram(tuple(self._counts), self._seconds)

    def _count_latest(self) -> None:
        self._counts[bisect_left(BOUNDS, self._latest)] += self._repeats
        self._seconds += self._latest * self._repeats
        self._repeats = 0


class Load:
    """Counts from the scheduler's start; `report` returns them.

    A step's seconds are divided between prefill and decode as `StepTimes` estimates, and between tenants by the tokens
    that their rows computed.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.rows = 0
        self.seconds = 0.0
        self.prefill_seconds = 0.0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.queued = Durations()
        self.first_tokens = Durations()
        self.gaps = Durations()
        self._tenants: Counter[str] = Counter()  # nanoseconds
        self._most: dict[str, float] = {}  # what was last reported of them
        self._most_at = float("-inf")

    def add_plan(self, plan: StepPlan, tenants: Iterable[str], times: StepTimes, seconds: float) -> None:
        """Count the step of `plan`, whose rows belong to `tenants`, here and in `times`."""
        rows = [(len(row.ids) + row.follows - row.drafts, row.start) for row in plan.rows]
        times.add(rows, seconds)
        prompts = [row for row in rows if row[0] > 1]
        prefill = seconds
        if len(prompts) < len(rows):
            prefill = sum(times.prefill_seconds(start, count) for count, start in prompts)
        self.add_step(zip(tenants, [count for count, _ in rows], strict=True), seconds, prefill)

    def add_step(self, rows: Iterable[tuple[str, int]], seconds: float, prefill_seconds: float) -> None:
        """Count a step of `rows`: the tenant and the number of tokens of each."""
        counts: dict[str, int] = {}
        for tenant, count in rows:
            counts[tenant] = counts.get(tenant, 0) + count
            self.rows += 1
        tokens = sum(counts.values()) or 1
        self.steps += 1
        self.seconds += seconds
        self.prefill_seconds += min(seconds, prefill_seconds)
        for tenant, count in counts.items():
            self._tenants[tenant] += int(seconds * 1e9) * count // tokens
        if len(self._tenants) > 64 * MOST_TENANTS:
            self._tenants = Counter(dict(self._tenants.most_common(32 * MOST_TENANTS)))

    def report(self, preemptions: dict[str, int]) -> Work:
        """Return the counts, and the device-seconds of the tenants that had most, of a tenth of a second ago."""
        if self.seconds - self._most_at >= 0.1:  # choosing them costs more than a report after each step may
            self._most_at = self.seconds
            self._most = {name: spent / 1e9 for name, spent in self._tenants.most_common(MOST_TENANTS)}
        return Work(
            steps=self.steps,
            rows=self.rows,
            seconds=self.seconds,
            prefill_seconds=self.prefill_seconds,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            preemptions=preemptions,
            tenants=self._most,
            queued=self.queued.report(),
            first_tokens=self.first_tokens.report(),
            gaps=self.gaps.report(),
        )
