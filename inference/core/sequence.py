"""One request while the engine works on it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from inference.core.fairness import Turn
from inference.core.grammar import Grammar
from inference.core.prefix import Key
from inference.types import EngineFault, Finished, FinishReason, Resumed, SamplingParams, Usage


class Status(Enum):
    """The state of a sequence. A paused one that is preempted stays paused, without blocks."""

    WAITING = auto()
    RUNNING = auto()
    PAUSED = auto()
    FINISHED = auto()


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a request ends; `stop` is the stop string or id that ended it."""

    reason: FinishReason
    stop: str | int | None = None
    error: EngineFault | None = None


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """A chat request. The engine sets the first group of fields, the others are the scheduler's.

    `max_output` is the most tokens that it may generate, `allowance` how many of them are permitted so far, and with
    `is_final` no more will be. `keys` may be given as they were hashed when the prompt was prepared
    (`PrefixKeys.keys`). A `resumed` one begins like one that was preempted behind those tokens. `computed` counts the
    tokens whose K/V a committed step has written, `scheduled` also those in flight; `expected` counts the tokens that
    steps in flight sample, at least one each, and that nobody knows yet. What each of its tokens and rows is compared
    with is worked out once: `stops`, `limit` and `history`.
    """

    request_id: str
    tenant: str
    domain: str
    prompt: tuple[int, ...]
    max_output: int
    allowance: int
    is_final: bool = False
    weight: int = 1000
    band: int = 0
    priority: int = 0
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    resumed: Resumed | None = None
    queue_seconds: float = 0.0
    keys: list[Key] = field(default_factory=list)
    adapter: str = ""
    grammar: Grammar | None = None
    pause_expires: bool = True  # or it waits at its allowance until it is extended or cancelled

    status: Status = Status.WAITING
    tokens: list[int] = field(init=False)
    history: Iterable[int] = ()  # `tokens` itself where sampling needs to see them
    limit: int = field(init=False)  # with so many tokens, prompt included, it pauses or ends
    stops: frozenset[int] = frozenset()  # the ids that end it
    blocks: list[int] = field(default_factory=list)
    table: tuple[int, ...] = ()  # `blocks` as the rows carry it, rebuilt when it grows
    banned: tuple[int, ...] = ()  # with min_tokens: its `stops`
    root: Key = b""
    slot: int = -1
    turn: Turn = (0, 0, 0)  # its tenant's when it got its slot
    scheduled: int = 0
    computed: int = 0
    published: int = 0  # blocks at the start of the table that were published or matched
    reach: int = 0  # the most tokens, drafts included, that it got blocks for since it has its slot
    expected: int = 0
    in_flight: int = 0
    failures: int = 0  # failed steps since the last committed one; while it isn't 0, the sequence runs alone
    exhausted: int = 0  # steps beside others since the last committed one that ran out of memory
    chunk: int = 0  # the most of its tokens in one step; fewer after it ran out of memory alone
    bypassed: int = 0  # sequences admitted before it because it didn't fit
    ending: Ending | None = None

    told: int = 1  # prompt tokens whose log-probabilities were told, or need not be: the first has none

    begun: bool = False  # it was in a plan's `begins`
    started: bool = False  # an output had `started`
    cached_tokens: int | None = None  # of the prompt, as at the first admission
    prefilled: int = 0  # the most prompt tokens that were ever computed or cached
    pause_ends: float = 0.0
    submitted_at: float = 0.0
    preempted_at: float = 0.0
    begun_at: float | None = None  # it may have its slot for longer: a step that was full had no time for its prompt
    sampled_at: float | None = None
    last_sampled_at: float = 0.0
    gaps: array[float] = field(default_factory=lambda: array("f"))  # seconds from one token to the next

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        if self.grammar is not None or self.sampling.penalises:
            self.history = self.tokens
        if self.sampling.prompt_logprobs is None:
            self.told = len(self.prompt)
        self.permit(self.allowance, is_final=self.is_final)
        if self.resumed is not None:
            self.tokens += self.resumed.tokens
            self.prefilled, self.cached_tokens = len(self.prompt), self.resumed.usage.cache_read
            self.told = len(self.prompt)

    def permit(self, allowance: int, *, is_final: bool) -> None:
        """Let it generate `allowance` tokens in all (never fewer than before), with `is_final` for the last time."""
        self.allowance = max(self.allowance, allowance)
        self.is_final = is_final
        self.limit = len(self.prompt) + min(self.max_output, self.allowance)

    @property
    def may_yield(self) -> bool:
        """Whether it may be refused though it waits: nothing of it has run, here or elsewhere."""
        return not self.begun and self.resumed is None

    @property
    def tells_prompt(self) -> bool:
        """Whether log-probabilities of prompt tokens are still to be told: then it computes them, cached or not."""
        return self.told < len(self.prompt)

    @property
    def known(self) -> int:
        """Prompt and generated tokens so far."""
        return len(self.tokens)

    @property
    def due(self) -> int:
        """Tokens that no step has computed or is computing: known ones, and then one that a step in flight samples.

        The last token that it may generate isn't among them, since none is sampled behind it.
        """
        due = len(self.tokens) + self.expected - self.scheduled
        if self.expected and len(self.tokens) + self.expected >= self.limit:
            return due - 1
        return due

    @property
    def output(self) -> int:
        """Generated tokens so far."""
        return len(self.tokens) - len(self.prompt)

    @property
    def usage(self) -> Usage:
        """The usage so far: zero before the first commit; tokens computed again after a preemption count once."""
        if not self.prefilled:
            return Usage()
        cached = self.cached_tokens or 0
        return Usage(self.prefilled - cached, cached, len(self.tokens) - len(self.prompt))

    def finished(self, now: float) -> Finished:
        """Return the last word on it, which has ended `now`."""
        assert self.ending is not None
        begun = self.begun_at if self.begun_at is not None else now
        sampled = self.sampled_at if self.sampled_at is not None else now
        gap, gap_p99 = gap_percentiles(self.gaps)
        return Finished(
            reason=self.ending.reason,
            usage=self.usage,
            error=self.ending.error,
            stop=self.ending.stop,
            queued_ms=(begun - self.submitted_at) * 1000,
            prefill_ms=(sampled - begun) * 1000,
            decode_ms=(now - sampled) * 1000,
            gap_ms=gap * 1000,
            gap_p99_ms=gap_p99 * 1000,
        )

    @property
    def unserved(self) -> tuple[int, int]:
        """Prompt tokens to compute, and cached ones, that were charged at admission and aren't in its usage."""
        if self.cached_tokens is None:
            return 0, 0
        if not self.prefilled:
            return len(self.prompt) - self.cached_tokens, self.cached_tokens
        return len(self.prompt) - self.prefilled, 0


def gap_percentiles(gaps: Iterable[float]) -> tuple[float, float]:
    """Return the median of `gaps` and what all but one in a hundred don't exceed; zeros of none."""
    ordered = sorted(gaps)
    return _percentile(ordered, 0.5), _percentile(ordered, 0.99)


def _percentile(ordered: list[float], part: float) -> float:
    """The least of the `ordered` values that at least this `part` of them don't exceed; 0 of none."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else 0.0
