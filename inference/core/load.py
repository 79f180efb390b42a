"""Counts of a scheduler's steps so far: for rates over time, and for each tenant's share of the device."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable

from inference.core.step import StepPlan
from inference.core.step_times import StepTimes
from inference.types import BOUNDS, Histogram, Work

MOST_TENANTS = 32  # of which a report tells


class Durations:
    """Durations counted in the buckets of `Histogram`; `add` takes one, and `settle` is due after some thousands."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0
        self._added: list[float] = []
        self.add: Callable[[float], None] = self._added.append  # one is added for each token: no Python runs then

    def settle(self) -> None:
        """Count what was added."""
        for seconds, times in Counter(self._added).items():  # rows that decode together waited alike for their tokens
            self._counts[bisect_left(BOUNDS, seconds)] += times
            self._seconds += seconds * times
        self._added.clear()

    def report(self) -> Histogram:
        """Return what was counted so far."""
        self.settle()
        return Histogram(tuple(self._counts), self._seconds)


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
        context = 0
        prompts: list[tuple[int, int]] = []
        counts: dict[str, int] = {}
        for tenant, row in zip(tenants, plan.rows, strict=True):
            count = len(row.ids) + row.follows - row.drafts
            counts[tenant] = counts.get(tenant, 0) + count
            if count == 1:
                context += row.start
            else:
                prompts.append((count, row.start))
        decoding = len(plan.rows) - len(prompts)
        times.add(decoding, context, prompts, seconds)
        prefill = sum(times.prefill_seconds(start, count) for count, start in prompts) if decoding else seconds
        self.add_step(len(plan.rows), counts, seconds, prefill)

    def add_step(self, rows: int, counts: dict[str, int], seconds: float, prefill_seconds: float) -> None:
        """Count a step of so many rows, of which `counts` has the tokens of each tenant."""
        tokens = sum(counts.values()) or 1
        self.rows += rows
        self.steps += 1
        if not self.steps % 16:
            for durations in (self.queued, self.first_tokens, self.gaps):
                durations.settle()
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
