"""The bounds of a scheduler: the pool's size, a step's size, and how many requests may wait."""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.config import ON_CPU, EngineConfig, StepSizes
from inference.core.fairness import Prices


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The bounds within which a `Scheduler` plans.

    `blocks` counts the whole pool, the null block included. `max_context` bounds prompt and output together.
    `max_bypass` is how many requests may be admitted before one that came first but doesn't fit. `watermark_percent` of
    the pool stays free at each admission, so that running sequences can grow without a preemption. `pause_seconds` is
    how long a sequence waits at its allowance. While others wait, a tenant with fewer rows than its share gets more
    from tenants above theirs: up to half of it at once, the rest row by row each `reclaim_seconds`. Prompt tokens take
    at most `prefill_seconds` of a step in which others decode (0: as long as they take), and such a step takes at most
    one and a half times what one with every row takes, or 25 ms (half of `prefill_seconds` where that is less); without
    others they take at most five times `prefill_seconds`.
    """

    blocks: int
    block_size: int
    max_context: int
    vocab_size: int
    eos_ids: frozenset[int] = frozenset()
    max_rows: int = ON_CPU.rows
    max_step_tokens: int = ON_CPU.tokens
    prefill_chunk: int = ON_CPU.chunk
    max_waiting: int = 256
    max_waiting_per_tenant: int = 64
    prefix_cache: bool = True
    pause_seconds: float = 2.0
    max_bypass: int = 8
    watermark_percent: int = 5
    reclaim_seconds: float = 0.25
    prefill_seconds: float = 0.1
    prices: Prices = field(default_factory=Prices)

    def __post_init__(self) -> None:
        if self.blocks < 2:
            raise ValueError("SchedulerConfig.blocks: a pool has the null block and at least one more")
        for name in ("block_size", "max_context", "vocab_size", "max_rows", "max_step_tokens", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"SchedulerConfig.{name} must be at least 1")

    @classmethod
    def of(
        cls,
        engine: EngineConfig,
        sizes: StepSizes,
        *,
        blocks: int,
        max_context: int,
        vocab_size: int,
        eos_ids: frozenset[int],
        pause_seconds: float = 2.0,
    ) -> SchedulerConfig:
        """Return the bounds of `engine` for a loaded model, whose steps have these `sizes`."""
        return cls(
            blocks=blocks,
            block_size=engine.block_size,
            max_context=max_context,
            vocab_size=vocab_size,
            eos_ids=eos_ids,
            max_rows=sizes.rows,
            max_step_tokens=sizes.tokens,
            prefill_chunk=sizes.chunk,
            max_waiting=engine.max_waiting,
            max_waiting_per_tenant=engine.max_waiting_per_tenant,
            prefix_cache=engine.prefix_cache,
            prefill_seconds=engine.prefill_seconds,
            reclaim_seconds=engine.reclaim_seconds,
            pause_seconds=pause_seconds,
            prices=Prices.of(engine.rates),
        )

    @property
    def context(self) -> int:
        """The most tokens of one request, prompt and output together: the model's bound or the pool's, if lower."""
        return min(self.max_context, self.cache_tokens)

    @property
    def rows(self) -> int:
        """The most rows of one step, no more than its tokens: each running row gets one at least."""
        return min(self.max_rows, self.max_step_tokens)

    @property
    def cache_tokens(self) -> int:
        """How many tokens all blocks hold: the most that a batch can have."""
        return (self.blocks - 1) * self.block_size

    @property
    def watermark(self) -> int:
        """How many blocks an admission leaves free while other sequences run."""
        return (self.blocks - 1) * self.watermark_percent // 100

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold `tokens` tokens."""
        return -(-tokens // self.block_size)
