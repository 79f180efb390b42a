"""The schedulers of a loaded model: one of its answers, and one of its vectors."""

from __future__ import annotations

from collections.abc import Callable

from inference.config import EngineConfig
from inference.core.config import SchedulerConfig
from inference.core.encoder_scheduler import EncodeScheduler
from inference.core.fairness import Prices
from inference.core.prefix import PrefixKeys
from inference.core.rows import Drafting
from inference.core.scheduler import Scheduler
from inference.execution.backend import LoadedModel
from inference.speculative.ngram import NgramProposer

DRAFTING_ROWS = 2  # sequences that may run while steps have drafts


def prefix_keys(config: EngineConfig, model: LoadedModel, secret: bytes) -> PrefixKeys:
    """Return the keys of the model's cached blocks."""
    dtype = str(model.details.get("dtype", config.dtype))
    return PrefixKeys(secret, model=config.source, dtype=dtype, block_size=model.block_size)


def may_draft(config: EngineConfig, model: LoadedModel) -> bool:
    """Whether steps may have drafts: where they overlap, the next is planned before the tokens that drafts continue."""
    return bool(config.speculation) and not model.runner.overlaps


def generating(
    config: EngineConfig,
    model: LoadedModel,
    keys: PrefixKeys,
    clock: Callable[[], float],
    *,
    ends: frozenset[int],
    pause_seconds: float,
) -> Scheduler:
    """Return the scheduler of a model's answers, which the tokens `ends` end."""
    bounds = SchedulerConfig.of(
        config,
        config.sizes(model.sizes),
        blocks=model.kv_blocks,
        max_context=model.max_context,
        vocab_size=model.vocab_size,
        eos_ids=ends,
        pause_seconds=pause_seconds,
    )
    drafting = Drafting(NgramProposer(config.speculation), DRAFTING_ROWS) if may_draft(config, model) else None
    return Scheduler(bounds, keys, clock, drafting=drafting)


def encoding(config: EngineConfig, model: LoadedModel, clock: Callable[[], float]) -> EncodeScheduler:
    """Return the scheduler of a model's vectors, scores and classes."""
    sizes = config.sizes(model.sizes)
    return EncodeScheduler(
        max_rows=sizes.rows,
        max_step_tokens=sizes.tokens,
        max_waiting=config.max_waiting,
        max_waiting_per_tenant=config.max_waiting_per_tenant,
        clock=clock,
        prices=Prices.of(config.rates),
    )
