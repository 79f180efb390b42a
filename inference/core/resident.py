"""The sequences that have a slot and blocks: how they get, keep and lose them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

from inference.core.block_pool import BlockPool
from inference.core.bounds import StepBounds
from inference.core.config import SchedulerConfig
from inference.core.prefix import Key, PrefixKeys
from inference.core.sequence import Sequence, Status
from inference.core.shares import Shares
from inference.core.waiting import WaitingQueue


class Cause(StrEnum):
    """Why a sequence was preempted."""

    BLOCKS = "blocks"  # another that runs needed a block
    PAUSED = "paused"  # it was at its allowance, and a new one needed room
    FAIRNESS = "fairness"  # its tenant had more than its share, and one with less waited
    MEMORY = "memory"  # steps had to become smaller


class Residents:
    """The running and paused sequences of one model, with their slots and blocks.

    `running` has those with a slot in the order of admission (paused ones with blocks included), `paused` those at
    their allowance, with blocks or without, in the order of their deadlines.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        bounds: StepBounds,
        keys: PrefixKeys,
        waiting: WaitingQueue[Sequence],
        clock: Callable[[], float],
    ) -> None:
        self.config = config
        self.bounds = bounds
        self.pool = BlockPool(config.blocks)
        self.shares = Shares(waiting, self.pool.usable)
        self.running: dict[Sequence, None] = {}
        self.paused: dict[Sequence, None] = {}
        self.preemptions: Counter[Cause] = Counter()
        self.freed = 0  # how often a sequence lost its slot and blocks
        self._keys = keys
        self._queue = waiting.queue
        self._clock = clock
        self._slots = list(range(config.rows))

    def match(self, seq: Sequence) -> list[int]:
        """Return the cached blocks of the longest prefix without the last token, which is computed for its logits.

        None for a sequence that tells of its prompt's tokens: the cache has no logits.
        """
        if not self.config.prefix_cache or seq.tells_prompt:
            return []
        count = (seq.known - 1) // self.config.block_size
        self._hash(seq, count)
        return self.pool.match(seq.keys[:count])

    def missing(self, seq: Sequence, matched: list[int]) -> set[Key]:
        """Return the key of the block that `match` didn't find behind those `matched`; none if there is none."""
        count = (seq.known - 1) // self.config.block_size
        if not self.config.prefix_cache or seq.tells_prompt or len(matched) == count:
            return set()
        return {seq.keys[len(matched)]}

    def fits(self, matched: list[int], fresh: int) -> bool:
        """True when a slot, `fresh` blocks and, if others run, the watermark are free."""
        watermark = self.config.watermark if self.running else 0
        return len(self.running) < self.bounds.rows and self.pool.fits(matched, fresh, watermark)

    def place(self, seq: Sequence, matched: list[int], fresh: int) -> bool:
        """Give the waiting `seq` a slot, the blocks `matched` and `fresh` new ones; False when there aren't enough."""
        blocks = self.pool.acquire(matched, fresh, seq.domain)
        if blocks is None:
            return False
        self._queue.remove(seq)
        seq.blocks = [*matched, *blocks]
        seq.table = tuple(seq.blocks)
        seq.slot = heapq.heappop(self._slots)
        seq.status = Status.RUNNING
        seq.scheduled = seq.computed = len(matched) * self.config.block_size
        seq.reach = seq.known
        seq.published = len(matched)
        self.running[seq] = None
        self.shares.add(seq.tenant, rows=1, blocks=len(seq.blocks))
        return True

    def grow(self, seq: Sequence, count: int) -> bool:
        """Acquire blocks for `count` more tokens of `seq` than are scheduled; False when there aren't enough."""
        end = seq.scheduled + count
        if end > len(seq.blocks) * self.config.block_size:
            short = self.config.blocks_for(end) - len(seq.blocks)
            blocks = self.pool.acquire((), short, seq.domain)
            if blocks is None:
                return False
            seq.blocks.extend(blocks)
            seq.table = tuple(seq.blocks)
            self.shares.add(seq.tenant, blocks=short)
            seq.reach = end
        return True

    def free(self, seq: Sequence) -> None:
        """Take slot and blocks from a running sequence."""
        self.freed += 1
        self.shares.add(seq.tenant, rows=-1, blocks=-len(seq.blocks))
        self.pool.release(seq.blocks)
        seq.blocks = []
        seq.table = ()
        heapq.heappush(self._slots, seq.slot)
        seq.slot = -1
        del self.running[seq]

    def publish(self, seq: Sequence) -> None:
        """Publish the blocks that are full of computed tokens."""
        full = seq.computed // self.config.block_size
        if not self.config.prefix_cache or full <= seq.published:
            return
        self._hash(seq, full)
        for index in range(seq.published, full):
            self.pool.publish(seq.blocks[index], seq.keys[index])
        seq.published = full

    def resume(self, seq: Sequence) -> None:
        """Let a paused sequence run again, or wait at the front of its tenant's queue if it was preempted."""
        del self.paused[seq]
        if seq in self.running:
            seq.status = Status.RUNNING
        else:
            seq.status = Status.WAITING
            self._queue.push(seq, front=True)

    def preempt(self, seq: Sequence, cause: Cause) -> None:
        """Take a sequence's blocks and slot; its published blocks stay cached for its return."""
        self.free(seq)
        seq.scheduled = seq.computed = seq.published = 0
        seq.preempted_at = self._clock()
        seq.bypassed = 0
        self.preemptions[cause] += 1
        if seq.status is Status.RUNNING:
            seq.status = Status.WAITING
            self._queue.push(seq, front=True)

    def preempt_excess(self) -> None:
        """Preempt sequences until no more run than a step may have rows."""
        while len(self.running) > self.bounds.rows:
            self.preempt(self.victim(spared=None), Cause.MEMORY)

    def victim(self, spared: Sequence | None) -> Sequence:
        """Choose what to preempt: a paused one, else one of the lowest band, and of the tenant served most the one of
        the lowest priority with the fewest computed tokens.
        """
        counter, paused = self._queue.counter, Status.PAUSED
        return min(
            (seq for seq in reversed(self.running) if seq is not spared),
            key=lambda seq: (seq.status is not paused, seq.band, -counter(seq.tenant), seq.priority, seq.computed),
        )

    def _hash(self, seq: Sequence, count: int) -> None:
        if len(seq.keys) < count:
            seq.root = seq.root or self._keys.root(seq.domain, seq.adapter)
            self._keys.extend(seq.keys, seq.root, seq.tokens, count)

    def check(self) -> None:
        """Raise AssertionError unless slots, blocks, shares and sequences agree."""
        self.pool.check()
        held: dict[int, int] = {}
        rows: Counter[str] = Counter()
        blocks: Counter[str] = Counter()
        for seq in self.running:
            assert seq.status in {Status.RUNNING, Status.PAUSED} or seq.in_flight
            assert self.config.blocks_for(seq.scheduled) <= len(seq.blocks) <= self.config.blocks_for(seq.reach)
            assert seq.published <= seq.computed // self.config.block_size
            rows[seq.tenant] += 1
            blocks[seq.tenant] += len(seq.blocks)
            for index, block in enumerate(seq.blocks):
                held[block] = held.get(block, 0) + 1
                assert index < seq.published or held[block] == 1, "an unpublished block is shared"
        assert [held.get(block, 0) for block in range(self.pool.size)] == self.pool.references()
        assert sorted([seq.slot for seq in self.running] + self._slots) == list(range(self.config.rows))
        assert (rows, blocks) == (self.shares.rows, self.shares.blocks)
