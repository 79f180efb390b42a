"""One request while the engine works on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from inference.core.prefix import Key
from inference.types import EngineFault, FinishReason, SamplingParams, Usage


class Status(Enum):
    """Where a sequence is. A paused one that was preempted stays paused, without blocks."""

    WAITING = auto()
    RUNNING = auto()
    PAUSED = auto()
    FINISHED = auto()


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sequence ends: `stop` is the stop string or id that did it."""

    reason: FinishReason
    stop: str | int | None = None
    error: EngineFault | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """A generation: what the worker submits, and what its scheduler knows about it.

    The worker sets the first group of fields; `max_output` is the most tokens it may generate, `allowance` how many
    of them are permitted so far, and with `is_final` no more will be. `keys` may be given as hashed when the prompt was
    prepared (`PrefixKeys.keys`). The rest is the scheduler's: `computed` counts the tokens whose KV a committed step
    wrote and chases `known`, the prompt and what was generated; `scheduled` runs ahead of it by what is in flight.
    """

    request_id: str
    tenant: str
    domain: str
    prompt: tuple[int, ...]
    max_output: int
    allowance: int
    is_final: bool = False
    weight: int = 1000
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    keys: list[Key] = field(default_factory=list)

    status: Status = Status.WAITING
    tokens: list[int] = field(init=False)
    blocks: list[int] = field(default_factory=list)
    table: tuple[int, ...] = ()  # `blocks` as the rows carry it, rebuilt when it grows
    root: Key = b""
    slot: int = -1
    scheduled: int = 0
    computed: int = 0
    published: int = 0  # blocks at the head of the table that need no publishing any more
    in_flight: int = 0
    failures: int = 0  # failed steps at the same place; while not 0 it runs alone
    bypassed: int = 0
    ending: Ending | None = None

    begun: bool = False  # named in a plan's `begins`
    started: bool = False  # said so in an output
    cached_tokens: int | None = None  # of the prompt, fixed at the first admission
    prefilled: int = 0  # greatest part of the prompt that was ever computed or cached
    pause_ends: float = 0.0
    submitted_at: float = 0.0
    admitted_at: float | None = None
    sampled_at: float | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def known(self) -> int:
        return len(self.tokens)

    @property
    def due(self) -> int:
        """Tokens that a next step could compute."""
        return len(self.tokens) - self.scheduled

    @property
    def output(self) -> int:
        """Generated tokens so far."""
        return len(self.tokens) - len(self.prompt)

    @property
    def usage(self) -> Usage:
        """What ran so far: nothing before the first committed step, and nothing twice after a preemption."""
        if not self.prefilled:
            return Usage()
        cached = self.cached_tokens or 0
        return Usage(input=self.prefilled - cached, cache_read=cached, output=self.output)

    @property
    def uncomputed(self) -> int:
        """Prompt tokens that were charged at admission and never computed."""
        if self.cached_tokens is None:
            return 0
        return len(self.prompt) - max(self.prefilled, self.cached_tokens)
