"""An engine's abilities, work and health, as they cross the engine seam."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from itertools import zip_longest

from inference.types.requests import Kind
from inference.values import value

# Seconds: the upper bounds of the buckets, six to a power of ten from a millisecond to a hundred seconds.
BOUNDS: tuple[float, ...] = (*(step * 10**power / 1e4 for power in range(1, 6) for step in (1, 1.5, 2, 3, 5, 7)), 100.0)


@value
class Histogram:
    """How many durations lay in each bucket, and what they came to together.

    `counts[i]` are those above `BOUNDS[i - 1]` and at most `BOUNDS[i]`, one more count has the longer ones. With no
    counts nothing was counted, or whoever tells doesn't count it.
    """

    counts: tuple[int, ...] = ()
    seconds: float = 0.0

    def __add__(self, other: Histogram) -> Histogram:
        """Return both together."""
        pairs = zip_longest(self.counts, other.counts, fillvalue=0)
        return Histogram(tuple([mine + theirs for mine, theirs in pairs]), self.seconds + other.seconds)

    def follows(self, earlier: Histogram) -> bool:
        """Whether this may be `earlier` with more counted."""
        pairs = zip_longest(self.counts, earlier.counts, fillvalue=0)
        return all(mine >= before for mine, before in pairs) and self.seconds >= earlier.seconds

    @property
    def is_possible(self) -> bool:
        """Whether durations can have come to this."""
        counts = self.counts
        fits = len(counts) in {0, len(BOUNDS) + 1} and min(counts, default=0) >= 0
        return fits and 0.0 <= self.seconds < math.inf

    @property
    def total(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)

    def percentile(self, part: float) -> float | None:
        """Return the least bound that at least this `part` of the durations don't exceed; None where there are none.

        Infinity where that part takes durations above the last bound.
        """
        due, seen = part * self.total, 0
        for bound, count in zip(BOUNDS, self.counts, strict=False):
            seen += count
            if seen and seen >= due:
                return bound
        return math.inf if self.total else None


class Feature(StrEnum):
    """An ability of a model in chats beside answering in text."""

    TOOLS = "tools"
    REASONING = "reasoning"  # its thought stands apart from its answer, and can be bounded
    STRUCTURED_OUTPUTS = "structured_outputs"


@value
class EngineInfo:
    """The abilities and bounds of a deployment's engine, as its worker announced them.

    `max_context` bounds prompt and output together, `max_input` one prompt or one embedding input, both in tokens.
    `revision` identifies the settings that it was loaded with. `details` are texts for operators (dtype, size of the
    K/V cache, how the model was proved) and may name paths.
    With `nests_vectors` the first dimensions of an embedding, made one long again, are a shorter embedding.
    An engine that can't extend (`can_extend`) generates at most the allowance that a request begins with. With
    `shares_prefixes` requests of different domains share cached prefixes, as their operator has accepted. `features`
    are those that are known, and `max_output` bounds one answer, where the context doesn't alone (0).
    `adapters` has those that were offered and read: why each can't be served, "" where it can.
    """

    deployment: str
    model: str
    kinds: frozenset[Kind]
    max_context: int
    max_input: int
    block_size: int = 16
    kv_blocks: int = 0
    vector_width: int = 0
    revision: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    can_extend: bool = True
    shares_prefixes: bool = False
    features: frozenset[Feature] = frozenset()
    max_output: int = 0
    nests_vectors: bool = False
    adapters: Mapping[str, str] = field(default_factory=dict)


MOST_CAUSES = 16  # of preemptions: each is a series for ever where the engine's work is shown
LOADING = "loading"  # `Health.reason` while the model is being loaded


@value
class Work:
    """Work of an engine since it was loaded.

    `rows` is the sum over all steps, `seconds` what they took, `prefill_seconds` the part of that for prompts.
    `prompt_tokens` were computed, `cached_tokens` of prompts taken from the prefix cache, `output_tokens`
    generated; what is computed again after a preemption isn't counted again. Each of several answers has a prompt
    here, of which further ones find all full blocks in the cache, while the request's usage has it once.
    `preemptions` counts by cause; `tenants` are the device-seconds of those that had most. `queued` has each
    request's wait for its first step, or for its end where it had none, `first_tokens` the time from a request to
    its first token, and `gaps` those from one token to the next; each of several answers counts.
    """

    steps: int = 0
    rows: int = 0
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: Mapping[str, int] = field(default_factory=dict)
    tenants: Mapping[str, float] = field(default_factory=dict)
    queued: Histogram = field(default_factory=Histogram)
    first_tokens: Histogram = field(default_factory=Histogram)
    gaps: Histogram = field(default_factory=Histogram)

    def __add__(self, other: Work) -> Work:
        """Return the work of two schedulers of one engine, or of two replicas, together."""
        return Work(
            self.steps + other.steps,
            self.rows + other.rows,
            self.seconds + other.seconds,
            self.prefill_seconds + other.prefill_seconds,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            Counter(self.preemptions) + Counter(other.preemptions),
            {name: self.tenants.get(name, 0) + other.tenants.get(name, 0) for name in {*self.tenants, *other.tenants}},
            self.queued + other.queued,
            self.first_tokens + other.first_tokens,
            self.gaps + other.gaps,
        )

    @property
    def is_possible(self) -> bool:
        """Whether an engine can have done this: no total is negative, and none is no number."""
        totals = (
            *(self.steps, self.rows, self.seconds, self.prefill_seconds),
            *(self.prompt_tokens, self.cached_tokens, self.output_tokens),
            *self.preemptions.values(),
            *self.tenants.values(),
        )
        durations = (self.queued, self.first_tokens, self.gaps)
        return (
            all(0 <= total < math.inf for total in totals)
            and len(self.preemptions) <= MOST_CAUSES
            and all(counted.is_possible for counted in durations)
        )

    def follows(self, earlier: Work) -> bool:
        """Whether this may be what the engine that told `earlier` did since: no total of it is smaller.

        `tenants` says nothing: it has those that had most, and others next time.
        """
        totals = (
            (self.steps, earlier.steps),
            (self.rows, earlier.rows),
            (self.seconds, earlier.seconds),
            (self.prefill_seconds, earlier.prefill_seconds),
            (self.prompt_tokens, earlier.prompt_tokens),
            (self.cached_tokens, earlier.cached_tokens),
            (self.output_tokens, earlier.output_tokens),
            *((self.preemptions.get(cause, 0), count) for cause, count in earlier.preemptions.items()),
        )
        return (
            all(now >= before for now, before in totals)
            and self.queued.follows(earlier.queued)
            and self.first_tokens.follows(earlier.first_tokens)
            and self.gaps.follows(earlier.gaps)
        )


@value
class Health:
    """A deployment's state now. It takes requests when `ready`; otherwise `reason` is why not.

    `reason` is fit for clients; `detail` is for operators and may name paths. `running` and `waiting` count requests,
    `kv_used` is the part of the KV blocks in use and `kv_cached` the part that only keeps prefixes (0 to 1), `steps`
    counts since loading, and `work` tells what those did where the engine is ours. `revision` identifies the
    settings that the state belongs to. `adapters` are those of `EngineInfo.adapters` that are in memory. `process`
    tells one process that serves it from the next, where the client of the engine knows.
    """

    ready: bool
    reason: str = ""
    running: int = 0
    waiting: int = 0
    kv_used: float = 0.0
    steps: int = 0
    draining: bool = False
    detail: str = ""
    revision: str = ""
    kv_cached: float = 0.0
    work: Work | None = None
    adapters: tuple[str, ...] = ()
    process: str = ""

    @property
    def is_possible(self) -> bool:
        """Whether an engine can be so: no count is negative, and what are parts are."""
        counts = (self.running, self.waiting, self.steps)
        parts = (self.kv_used, self.kv_cached)
        return (
            min(counts) >= 0
            and all(0.0 <= part <= 1.0 for part in parts)
            and (self.work is None or self.work.is_possible)
        )
