"""Which sequences hold rows and blocks, and how many tokens of each the next step computes."""

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
    """Shares rows, tokens and blocks of one model's steps between the sequences.

    Rules: what runs goes before what waits, and a decode row (one token) before a prefill chunk. An admission takes
    the blocks of every known token at once, so that two half-computed prompts can't block each other. When blocks are
    short, a victim gives up all of its own and nobody is admitted in that step.
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
        self.suspects: dict[Sequence, None] = {}  # those with `failures`, running or waiting
        self.preemptions = 0
        self._freed = 0  # how often a sequence gave its slot and blocks back
        self._in_vain: tuple[object, ...] | None = None  # the state in which nobody who waits could be admitted
        self._keys = keys
        self._queue = waiting.queue
        self._clock = clock
        self._slots = list(range(config.rows))

    def choose(self, *, in_flight: bool) -> dict[Sequence, int]:
        """Return how many tokens each sequence computes next: decode rows first, then prefill, then newcomers."""
        counts: dict[Sequence, int] = {}
        ready = [seq for seq in self.running if seq.status is Status.RUNNING and seq.ending is None and seq.due]
        alone = self._suspect(ready)
        if alone is not None:
            if in_flight:
                return counts
            ready = [alone]
        ready.sort(key=lambda seq: seq.due > 1)
        full = False
        left = self.bounds.tokens
        for seq in ready:
            if seq not in self.running:
                continue  # preempted for one before it
            count = min(seq.due, self.config.prefill_chunk, left)
            if not count:
                break
            while not self._grow(seq):
                full = True
                if in_flight:
                    break  # the blocks that would do are in flight; they come with the commit
                victim = self._victim(spared=alone)
                left += counts.pop(victim, 0)
                self._preempt(victim)
                if victim is seq:
                    break
            else:
                counts[seq] = count
                left -= count
        if alone is None and not full:
            self._admit(counts, left)
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
        """Make the blocks known that are full of computed tokens."""
        full = seq.computed // self.config.block_size
        if not self.config.prefix_cache or full <= seq.published:
            return
        self._hash(seq, full)
        for index in range(seq.published, full):
            self.pool.publish(seq.blocks[index], seq.keys[index])
        seq.published = full

    def resume(self, seq: Sequence) -> None:
        """Let a paused sequence go on: in its row, or at the front of its tenant's queue when it was preempted."""
        del self.paused[seq]
        if seq in self.running:
            seq.status = Status.RUNNING
        else:
            seq.status = Status.WAITING
            self._queue.push(seq, front=True)

    def shed(self) -> None:
        """Preempt what runs beyond the rows that a step may have now."""
        while len(self.running) > self.bounds.rows:
            self._preempt(self._victim(spared=None))

    def _admit(self, counts: dict[Sequence, int], left: int) -> None:
        while left and len(counts) < self.bounds.rows and self._queue:
            # Who couldn't be placed can't be until room comes free, the queue changes or somebody pauses.
            head = self._queue.peek() if self.paused else None
            state = (self._freed, self._queue.changes, self.bounds.rows, *self.paused, head)
            if state == self._in_vain:
                return
            seq = self._place_next()
            if seq is None:
                self._in_vain = state
                return
            counts[seq] = count = min(seq.due, self.config.prefill_chunk, left)
            left -= count

    def _suspect(self, ready: list[Sequence]) -> Sequence | None:
        """Return a running sequence that has to show whether it failed by itself, admitting one if need be."""
        if not self.suspects:
            return None
        head = self._queue.peek()
        if head is not None and head.failures and self._place(head, urgent=True):
            return head
        return next((seq for seq in ready if seq.failures), None)

    def _place_next(self) -> Sequence | None:
        """Admit the request whose turn it is, or one that may pass it because it doesn't fit."""
        head = self._queue.peek()
        assert head is not None
        for seq in self._queue.heads():
            # One that failed before is admitted by `_suspect` alone: it shares no step.
            if not seq.failures and self._place(seq, urgent=seq is head):
                if seq is not head:
                    head.bypassed += 1
                return seq
            if head.bypassed >= self.config.max_bypass:
                return None
        return None

    def _place(self, seq: Sequence, *, urgent: bool) -> bool:
        """Give `seq` a slot and blocks for every token it knows, or change nothing; `urgent` turns paused ones out."""
        matched = self._match(seq)
        fresh = self.config.blocks_for(seq.known) - len(matched)
        if not self._fits(matched, fresh) and not (urgent and self._make_room(matched, fresh)):
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
        """True when a slot and `fresh` blocks are free, and the watermark beyond unless nobody else runs."""
        watermark = self.config.watermark if self.running else 0
        return len(self.running) < self.bounds.rows and self.pool.fits(matched, fresh, watermark)

    def _make_room(self, matched: list[int], fresh: int) -> bool:
        """Turn paused sequences out until the request fits, or nobody when all of them would not be enough."""
        idle = [seq for seq in self.paused if seq.blocks and not seq.in_flight]
        alone = len(idle) == len(self.running)
        watermark = 0 if alone else self.config.watermark
        if not idle or not self.pool.fits(matched, fresh, watermark - sum(len(seq.blocks) for seq in idle)):
            return False
        for seq in idle:
            self._preempt(seq)
            if self._fits(matched, fresh):
                return True
        return False  # they shared blocks with others, so that less came free than it seemed

    def _match(self, seq: Sequence) -> list[int]:
        """Return the cached blocks of a prefix, short of its last token: that one is computed for its logits."""
        if not self.config.prefix_cache:
            return []
        count = (seq.known - 1) // self.config.block_size
        self._hash(seq, count)
        return self.pool.match(seq.keys[:count])

    def _grow(self, seq: Sequence) -> bool:
        """Hold blocks for every token that `seq` knows; False when there are none."""
        short = self.config.blocks_for(seq.known) - len(seq.blocks)
        if short > 0:
            blocks = self.pool.acquire((), short, seq.domain)
            if blocks is None:
                return False
            seq.blocks.extend(blocks)
            seq.table = tuple(seq.blocks)
        return True

    def _victim(self, spared: Sequence | None) -> Sequence:
        """Whom to preempt: a paused one, else of the tenant served most the one that is cheapest to compute again."""
        counter = self._queue.counter
        return min(
            (seq for seq in reversed(self.running) if seq is not spared),
            key=lambda seq: (seq.status is not Status.PAUSED, -counter(seq.tenant), seq.computed),
        )

    def _preempt(self, seq: Sequence) -> None:
        """Take blocks and slot away; what is published stays cached, so coming back is often cheap."""
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
