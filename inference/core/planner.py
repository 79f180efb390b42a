"""How many tokens of each sequence the next step computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from inference.core.admission import Admission
from inference.core.bounds import StepBounds
from inference.core.config import SchedulerConfig
from inference.core.prefill import Prefill
from inference.core.prefix import PrefixKeys
from inference.core.resident import Cause, Residents
from inference.core.sequence import Sequence, Status
from inference.core.step_times import StepTimes
from inference.core.suspects import Suspects
from inference.core.waiting import WaitingQueue


class Planner:
    """Divides the rows, tokens and blocks of one model's steps between the sequences.

    Decode rows (one token) come first. Prompts, those of running sequences and of new ones alike, share the rest of the
    step (`Prefill`), and take a bounded time of it while others decode. When a running sequence lacks a block, another
    is preempted, which loses all of its blocks; no sequence is admitted in that step. Each of the `suspects`, whose
    last step failed, runs alone until a step succeeds or it has failed alone.
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
        self.residents = Residents(config, bounds, keys, waiting, clock)
        self.times = StepTimes(config.rows)
        self.suspects = Suspects(bounds)
        self._admission = Admission(self.residents, waiting, self.times, clock)
        self._prefill = Prefill(config, bounds, self.times, waiting, self._admission, clock=clock)
        self._queue = waiting.queue

    def choose(self, *, in_flight: bool) -> dict[Sequence, int]:
        """Return how many tokens each sequence of the next step computes: decode rows, then prefill, old and new.

        With a step `in_flight`, a sequence's next token may be one that this step samples, and none is preempted;
        nothing is returned when the step has to be committed first.
        """
        counts: dict[Sequence, int] = {}
        running = self.residents.running
        alone = self._suspect() if len(self.suspects) else None
        if alone is not None:
            if in_flight:
                return counts
        elif self._queue and self._admission.reclaim(in_flight=in_flight):
            return counts
        decoding, prompts = _due(running if alone is None else [alone])
        lacks_blocks = False
        budget = self.bounds.tokens
        block_size = self.config.block_size
        for seq in decoding:
            if seq not in running:
                continue  # preempted for an earlier one
            if not budget:
                break
            # Most have room in their last block: to ask here costs less than to call.
            while seq.scheduled >= len(seq.blocks) * block_size and not self.residents.grow(seq, 1):
                if in_flight:
                    return {}  # blocks may become free with the commit, and who is preempted is decided then
                lacks_blocks = True
                victim = self.residents.victim(spared=alone)
                budget += counts.pop(victim, 0)
                self.residents.preempt(victim, Cause.BLOCKS)
                if victim is seq:
                    break
            else:
                counts[seq] = 1
                budget -= 1
        prompts = [seq for seq in prompts if seq in running]
        self._prefill.divide(counts, prompts, budget, may_admit=alone is None and not lacks_blocks)
        return counts

    def _suspect(self) -> Sequence | None:
        """Return a suspect to run alone, admitting one if need be; None when there is none."""
        head = self._queue.peek()
        if head is not None and head.failures and self._admission.admit(head, may_preempt=True):
            return head
        return next((seq for seq in self.suspects if _may_run(seq) and seq.due > 0), None)

    def check(self) -> None:
        """Raise AssertionError unless slots, blocks, turns and sequences agree."""
        self.residents.check()
        self._queue.check()


def _due(sequences: Iterable[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """Return those that decode next, and those of which more is due than a token."""
    decoding: list[Sequence] = []
    prompts: list[Sequence] = []
    for seq in sequences:
        if _may_run(seq):
            due = seq.due  # 0 where a step in flight computes all that is known
            if due == 1:
                decoding.append(seq)
            elif due:
                prompts.append(seq)
    return decoding, prompts


def _may_run(seq: Sequence) -> bool:
    return seq.status is Status.RUNNING and seq.ending is None
