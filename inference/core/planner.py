"""Which sequences have slots and blocks, and how many tokens of each the next step computes."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from inference.core.block_pool import BlockPool
from inference.core.bounds import StepBounds
from inference.core.config import SchedulerConfig
from inference.core.fairness import WaitingQueue
from inference.core.prefix import PrefixKeys
from inference.core.sequence import Sequence, Status


class Planner:
    """Divides the rows, tokens and blocks of one model's steps between the sequences.

    Running sequences come before waiting ones, and decode rows (one token) before prefill chunks. An admission takes
    the blocks of all known tokens at once, so that two half-computed prompts can't block each other. When a running
    sequence lacks a block, another is preempted, which loses all of its blocks; no sequence is admitted in that step.
    `suspects` are the sequences whose last step failed: each runs alone until a step succeeds or it has failed alone.
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
        self.running: dict[Sequence, None] = {}  # in the order of admission; paused ones with blocks included
        self.paused: dict[Sequence, None] = {}  # with blocks or without, in the order of their deadlines
        self.suspects: dict[Sequence, None] = {}  # running or waiting
        self.preemptions = 0
        self._freed = 0  # how often a sequence lost its slot and blocks
        self._blocked_state: tuple[object, ...] | None = None  # the state in which none could be admitted
        self._keys = keys
        self._queue = waiting.queue
        self._clock = clock
        self._slots = list(range(config.rows))

    def choose(self, *, in_flight: bool) -> dict[Sequence, int]:
        """Return how many tokens each sequence of the next step computes: decode rows, then prefill, then new ones.

        With a step `in_flight`, sequences without a known next token are left out and none is preempted.
        """
        counts: dict[Sequence, int] = {}
        ready = [seq for seq in self.running if seq.status is Status.RUNNING and seq.ending is None and seq.due]
        alone = self._suspect(ready)
        if alone is not None:
            if in_flight:
                return counts
            ready = [alone]
        ready.sort(key=lambda seq: seq.due > 1)
        lacks_blocks = False
        budget = self.bounds.tokens
        for seq in ready:
            if seq not in self.running:
                continue  # preempted for an earlier one
            count = min(seq.due, self.config.prefill_chunk, budget)
            if not count:
                break
            while not self._grow(seq):
                lacks_blocks = True
                if in_flight:
                    break  # blocks may become free with the commit
                victim = self._victim(spared=alone)
                budget += counts.pop(victim, 0)
                self._preempt(victim)
                if victim is seq:
                    break
            else:
                counts[seq] = count
                budget -= count
        if alone is None and not lacks_blocks:
            self._admit(counts, budget)
        return counts

    def free(self, seq: Sequence) -> None:
        """Take slot and blocks from a running sequence."""
        self._freed += 1
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

    def preempt_excess(self) -> None:
        """Preempt sequences until no more run than a step may have rows."""
        while len(self.running) > self.bounds.rows:
            self._preempt(self._victim(spared=None))

    def _admit(self, counts: dict[Sequence, int], budget: int) -> None:
        while budget and len(counts) < self.bounds.rows and self._queue:
            # No waiting sequence fits until blocks or a slot become free, the queue changes or one pauses.
            head = self._queue.peek() if self.paused else None
            state = (self._freed, self._queue.changes, self.bounds.rows, *self.paused, head)
            if state == self._blocked_state:
                return
            seq = self._admit_next()
            if seq is None:
                self._blocked_state = state
                return
            counts[seq] = count = min(seq.due, self.config.prefill_chunk, budget)
            budget -= count

    def _suspect(self, ready: list[Sequence]) -> Sequence | None:
        """Return a suspect to run alone, admitting one if need be; None when there is none."""
        if not self.suspects:
            return None
        head = self._queue.peek()
        if head is not None and head.failures and self._try_admit(head, may_preempt=True):
            return head
        return next((seq for seq in ready if seq.failures), None)

    def _admit_next(self) -> Sequence | None:
        """Admit the first sequence of the queue or, if it doesn't fit, one that may bypass it; None if none fits."""
        head = self._queue.peek()
        assert head is not None
        for seq in self._queue.heads():
            # Suspects are admitted by `_suspect`, since they run alone.
            if not seq.failures and self._try_admit(seq, may_preempt=seq is head):
                if seq is not head:
                    head.bypassed += 1
                return seq
            if head.bypassed >= self.config.max_bypass:
                return None
        return None

    def _try_admit(self, seq: Sequence, *, may_preempt: bool) -> bool:
        """Give `seq` a slot and blocks for all its known tokens, and return True; or change nothing but preemptions.

        With `may_preempt`, paused sequences are preempted for it.
        """
        matched = self._match(seq)
        fresh = self.config.blocks_for(seq.known) - len(matched)
        if not self._fits(matched, fresh) and not (may_preempt and self._preempt_paused(matched, fresh)):
            return False
        blocks = self.pool.acquire(matched, fresh, seq.domain)
        if blocks is None:
            return False
        self._queue.remove(seq)
        seq.blocks = [*matched, *blocks]
        seq.table = tuple(seq.blocks)
        seq.slot = heapq.heappop(self._slots)
        seq.status = Status.RUNNING
        seq.bypassed = 0
        seq.scheduled = seq.computed = len(matched) * self.config.block_size
        seq.published = len(matched)
        self.running[seq] = None
        if seq.cached_tokens is None:
            seq.cached_tokens = seq.computed
            seq.admitted_at = self._clock()
            self._queue.charge(seq.tenant, prompt=len(seq.prompt) - seq.computed, cached=seq.computed)
        return True

    def _fits(self, matched: list[int], fresh: int) -> bool:
        """True when a slot, `fresh` blocks and, if others run, the watermark are free."""
        watermark = self.config.watermark if self.running else 0
        return len(self.running) < self.bounds.rows and self.pool.fits(matched, fresh, watermark)

    def _preempt_paused(self, matched: list[int], fresh: int) -> bool:
        """Preempt paused sequences until the blocks fit; none when all of them would not be enough."""
        idle = [seq for seq in self.paused if seq.blocks and not seq.in_flight]
        alone = len(idle) == len(self.running)
        watermark = 0 if alone else self.config.watermark
        if not idle or not self.pool.fits(matched, fresh, watermark - sum(len(seq.blocks) for seq in idle)):
            return False
        for seq in idle:
            self._preempt(seq)
            if self._fits(matched, fresh):
                return True
        return False  # they shared blocks with running ones, so fewer became free

    def _match(self, seq: Sequence) -> list[int]:
        """Return the cached blocks of the longest prefix without the last token, which is computed for its logits."""
        if not self.config.prefix_cache:
            return []
        count = (seq.known - 1) // self.config.block_size
        self._hash(seq, count)
        return self.pool.match(seq.keys[:count])

    def _grow(self, seq: Sequence) -> bool:
        """Acquire blocks for all known tokens of `seq`; False when there aren't enough."""
        short = self.config.blocks_for(seq.known) - len(seq.blocks)
        if short > 0:
            blocks = self.pool.acquire((), short, seq.domain)
            if blocks is None:
                return False
            seq.blocks.extend(blocks)
            seq.table = tuple(seq.blocks)
        return True

    def _victim(self, spared: Sequence | None) -> Sequence:
        """Choose what to preempt: a paused one, else one of the lowest priority, and of the tenant served most the one
        with fewest computed tokens.
        """
        counter = self._queue.counter
        return min(
            (seq for seq in reversed(self.running) if seq is not spared),
            key=lambda seq: (seq.status is not Status.PAUSED, seq.priority, -counter(seq.tenant), seq.computed),
        )

    def _preempt(self, seq: Sequence) -> None:
        """Take a sequence's blocks and slot; its published blocks stay cached for its return."""
        self.free(seq)
        seq.scheduled = seq.computed = seq.published = 0
        self.preemptions += 1
        if seq.status is Status.RUNNING:
            seq.status = Status.WAITING
            self._queue.push(seq, front=True)

    def _hash(self, seq: Sequence, count: int) -> None:
        if len(seq.keys) < count:
            seq.root = seq.root or self._keys.root(seq.domain)
            self._keys.extend(seq.keys, seq.root, seq.tokens, count)

    def check(self) -> None:
        """Raise AssertionError unless slots, blocks and sequences agree."""
        self.pool.check()
        held: dict[int, int] = {}
        for seq in self.running:
            assert seq.status in {Status.RUNNING, Status.PAUSED}
            assert self.config.blocks_for(seq.scheduled) <= len(seq.blocks) <= self.config.blocks_for(seq.known)
            assert seq.published <= seq.computed // self.config.block_size
            for index, block in enumerate(seq.blocks):
                held[block] = held.get(block, 0) + 1
                assert index < seq.published or held[block] == 1, "an unpublished block is shared"
        assert [held.get(block, 0) for block in range(self.pool.size)] == self.pool.references()
        assert sorted([seq.slot for seq in self.running] + self._slots) == list(range(self.config.rows))
