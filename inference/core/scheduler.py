"""The scheduler of a generating model: which tokens the next step computes, and how requests end.

    submit ──▶ WAITING ──── admitted: slot, blocks ────▶ RUNNING ──────── stop, length, cancel, failure ──▶ FINISHED
                  ▲                                      │  │  ▲                                               ▲
                  ├───── preempted: front of queue ──────┘  │  │ extended                                      │
                  │                                         ▼  │                                               │
                  └── extended after it was preempted ──── PAUSED ───── final, or `pause_seconds` went by ─────┘

    loop:  plan() ──▶ run it ──▶ commit(plan, result)     tokens accepted, full blocks published, requests ended
                         └─────▶ abandon(plan, error)     as if never planned; then its rows run alone

There are no separate prefill and decode phases: each row computes some of the known tokens (prompt and output so far)
that are not computed yet, and one that reaches the last known token samples the next. The same rule holds for
preempted, cached and chunked sequences.

The next step may be planned while one is in flight, whose tokens nobody knows yet: a row of it follows the token that
its sequence samples there. What is learned one step late (an end, a cancellation) discards what the sequence has in
flight; its blocks are released when no step in flight uses them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from inference.core.base import BaseScheduler
from inference.core.bounds import StepBounds
from inference.core.config import SchedulerConfig
from inference.core.load import Load
from inference.core.output import Output, Stats
from inference.core.planner import Planner
from inference.core.prefix import PrefixKeys
from inference.core.rows import Drafting, next_row
from inference.core.sequence import Ending, Sequence, Status
from inference.core.step import NOTHING_SAMPLED, Row, RowFailure, RowResult, StepPlan, StepResult
from inference.core.validation import check_sequence
from inference.core.waiting import WaitingQueue
from inference.types import EngineFault, Finished, FinishReason, PositionLogprobs, Started


class Scheduler(BaseScheduler[Sequence]):
    """Plans the steps of one generating model.

    One further step may be planned before the last one is committed; none is preempted for it. With `drafting`, rows
    carry drafts; a commit accepts those that are what would have been sampled.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        keys: PrefixKeys,
        clock: Callable[[], float],
        *,
        drafting: Drafting | None = None,
    ) -> None:
        waiting: WaitingQueue[Sequence] = WaitingQueue(config.max_waiting, config.max_waiting_per_tenant, config.prices)
        super().__init__(waiting, StepBounds(config.rows, config.max_step_tokens), clock)
        self.config = config
        self._planner = Planner(config, self.bounds, keys, waiting, clock)
        self._residents = self._planner.residents
        self._suspects = self._planner.suspects
        self._load = Load()
        self._drafting = drafting
        self._vocab_size = config.vocab_size
        self._block_size = config.block_size

    def extend(self, request_id: str, allowance: int, is_final: bool) -> None:
        """Permit `allowance` output tokens in all (never fewer than before), with `is_final` for the last time.

        A paused request goes on when it may generate more, and ends when it may not and `is_final` is set. Ended and
        unknown requests: no effect.
        """
        seq = self._live.get(request_id)
        if seq is None:
            return
        seq.permit(allowance, is_final=is_final)
        if seq.status is Status.PAUSED:
            if seq.known < seq.limit:
                self._residents.resume(seq)
            elif seq.is_final:
                self._end(seq, Ending(FinishReason.ALLOWANCE))

    def submit(self, request: Sequence, *, bounded: bool = True) -> None:
        super().submit(request, bounded=bounded)
        request.chunk = self.config.prefill_chunk
        eos = frozenset() if request.sampling.ignore_eos else self.config.eos_ids
        request.stops = eos.union(request.sampling.stop_token_ids)
        if request.sampling.min_tokens:
            request.banned = tuple(sorted(request.stops))

    def truncate(self, request_id: str, output: int) -> None:
        """Keep only the first `output` generated tokens of a request, behind which its text was found to end."""
        seq = self._live.get(request_id)
        if seq is not None and seq.output > output:
            self.waiting.queue.charge(seq.tenant, output=output - seq.output)
            del seq.tokens[len(seq.prompt) + output :]

    def plan(self) -> StepPlan | None:
        self._expire_queue()
        self._expire_pauses()
        self._suspects.decide()
        drafting = self._drafting if self._drafting is not None and self._drafting.is_on(self._residents) else None
        if not self._flights:
            self._residents.preempt_excess()
        elif drafting is not None or (self._drafting and any(row.drafts for row in self._flights[-1].plan.rows)):
            return None
        counts = self._planner.choose(in_flight=bool(self._flights))
        if not counts:
            if not self._flights and not self._residents.running and self.waiting.queue:
                self._fail_first_waiting()
                return self.plan()
            return None
        begins = [seq for seq in counts if not seq.begun]
        for seq in begins:
            seq.begun_at = self.clock()
            self._load.queued.add(seq.begun_at - seq.submitted_at)
        drafts: dict[Sequence, tuple[int, ...]] = {}
        if drafting is not None:
            drafts = drafting.drafts(counts, self._residents, self.bounds.tokens - sum(counts.values()))
        if drafts:
            rows = tuple([next_row(seq, count, drafts.get(seq, ())) for seq, count in counts.items()])
        else:
            rows = tuple([next_row(seq, count) for seq, count in counts.items()])
        plan = StepPlan(number=self.steps, rows=rows, begins=tuple([seq.request_id for seq in begins]))
        return self._launch(plan, tuple(counts))

    def commit(self, plan: StepPlan, result: StepResult) -> list[Output]:
        self._verify(plan, result)
        flight, seconds = self._land()
        if len(plan.rows) > 1 or not flight.requests[0].failures:  # a suspect alone doesn't tell whether several fit
            self.bounds.note_success()
        self._load.add_plan(plan, [seq.tenant for seq in flight.requests], self._planner.times, seconds)
        accepted: dict[str, int] = {}
        ended: list[tuple[Sequence, RowResult]] = []
        for seq, row, answer in zip(flight.requests, plan.rows, result.rows, strict=True):
            seq.in_flight -= 1
            seq.expected -= row.samples
            if seq.status is Status.FINISHED:
                self._release(seq)
            elif isinstance(answer, RowFailure):
                self._end(
                    seq, Ending(FinishReason.ERROR, error=EngineFault(answer.code, answer.message, param=answer.param))
                )
            else:
                known = len(seq.tokens)
                visible = self._take(seq, row, answer)
                if more := len(seq.tokens) - known:
                    accepted[seq.tenant] = accepted.get(seq.tenant, 0) + more
                if seq.ending is not None:
                    ended.append((seq, visible))
                elif visible.tokens or visible.prompt_logprobs or not seq.started:
                    self._emit(seq, visible)
        # A tenant may be forgotten with the end of its last sequence, so what it got is charged before.
        for tenant, output in accepted.items():
            self._load.output_tokens += output
            self.waiting.queue.charge(tenant, output=output)
        for seq, visible in ended:
            self._finish(seq, visible)
        return self.take_outputs()

    def abandon(self, plan: StepPlan, error: BaseException) -> list[Output]:
        flight = self._take_newest(plan)
        # With an older step in flight it ran on what that one left, and nobody knows whose fault it was.
        if not self._flights:
            self._suspects.note_failure(plan, flight.requests, error)
        for seq, row in zip(flight.requests, plan.rows, strict=True):
            seq.in_flight -= 1
            seq.expected -= row.samples
            seq.scheduled = row.start
            if seq.status is Status.FINISHED:
                self._release(seq)
                continue
            if seq.failures > 1:
                self._end(seq, Ending(FinishReason.ERROR, error=self._fault(error, "request")))
            elif seq.ending is not None:
                self._finish(seq)
        return self.take_outputs()

    def next_deadline(self) -> float | None:
        """The clock's time at which the first pause or the first wait in the queue ends; None when there is none."""
        ends = [seq.pause_ends for seq in self._residents.paused if seq.pause_expires]
        queued = super().next_deadline()
        return min(ends if queued is None else [*ends, queued], default=None)

    def stats(self) -> Stats:
        """Return the state now."""
        pool = self._residents.pool
        return Stats(
            running=len(self._residents.running),
            paused=len(self._residents.paused),
            waiting=len(self.waiting.queue),
            kv_used=(pool.usable - pool.free) / pool.usable,
            kv_cached=pool.cached / pool.usable,
            steps=self.steps,
            preemptions=sum(self._residents.preemptions.values()),
            work=self._load.report({cause.value: count for cause, count in self._residents.preemptions.items()}),
        )

    def check(self) -> None:
        """Raise AssertionError unless the sequences and the pool agree (tests call it after every step)."""
        self._planner.check()
        assert 0 < self.bounds.rows <= self.bounds.tokens
        paused, running = self._residents.paused, self._residents.running
        for seq in self._live.values():
            assert seq.computed <= seq.scheduled
            assert seq.expected <= seq.in_flight <= len(self._flights)
            assert (seq in running) == bool(seq.blocks) == (seq.slot >= 0)
            assert (seq.status is Status.WAITING) == (seq in self.waiting.queue)
            assert (seq.status is Status.PAUSED) == (seq in paused)
        ended = {seq for flight in self._flights for seq in flight.requests if seq.status is Status.FINISHED}
        assert set(running) | set(paused) <= set(self._live.values()) | ended
        assert ended <= set(running)
        assert set(self._suspects) == {seq for seq in self._live.values() if seq.failures}
        assert len(self.waiting.queue) == sum(seq.status is Status.WAITING for seq in self._live.values())

    # Planning ---------------------------------------------------------------------------------------------------

    def _fail_first_waiting(self) -> None:
        """Fail the first waiting request, which doesn't fit though nothing runs: it would wait for ever."""
        head = self.waiting.queue.peek()
        assert head is not None
        fault = EngineFault("unschedulable", "the request fits in no step of this engine")
        self._end(head, Ending(FinishReason.ERROR, error=fault))

    # Committing -------------------------------------------------------------------------------------------------

    def _verify(self, plan: StepPlan, result: StepResult) -> None:
        self._require_oldest(plan)
        if len(result.rows) != len(plan.rows):
            raise ValueError(f"step {plan.number}: {len(result.rows)} answers for {len(plan.rows)} rows")
        for row, answer in zip(plan.rows, result.rows, strict=True):
            if isinstance(answer, RowFailure):
                continue
            surplus = len(answer.tokens) - row.samples
            if surplus and not 0 < surplus <= row.drafts:
                raise ValueError(f"step {plan.number}: {len(answer.tokens)} tokens of a row with {row.drafts} drafts")

    def _take(self, seq: Sequence, row: Row, answer: RowResult) -> RowResult:
        """Count what the row computed, accept its tokens and publish full blocks; return what is to be told of them."""
        start = row.start
        if start != seq.computed:
            return NOTHING_SAMPLED  # an earlier row of the sequence failed
        tokens = answer.tokens
        accepted = shown = 0
        for token in tokens:
            if seq.ending is not None:
                break
            if not 0 <= token < self._vocab_size:
                fault = EngineFault("bad_token", "the model answered with a token outside its vocabulary")
                seq.ending = Ending(FinishReason.ERROR, error=fault)
                break
            shown += self._accept(seq, token)
            accepted += 1
        # The newest token has no K/V yet, and those of the drafts that weren't accepted will be overwritten.
        seq.computed = start + len(row.ids) + row.follows
        if row.drafts:
            seq.computed += max(0, accepted - 1) - row.drafts
            seq.scheduled = seq.computed
        if seq.failures or seq.exhausted:
            self._suspects.acquit(seq)
        if seq.prefilled < len(seq.prompt):
            self._count_prompt(seq)
        if seq.computed >= (seq.published + 1) * self._block_size:
            self._residents.publish(seq)
        if answer.prompt_logprobs or shown < len(tokens):
            told = _untold(seq, start + 1, answer.prompt_logprobs)
            answer = RowResult(tokens[:shown], answer.logprobs[:shown], told)
        return answer

    def _count_prompt(self, seq: Sequence) -> None:
        before = seq.prefilled
        # After a preemption fewer tokens may be cached than at the first admission, whose number counts.
        seq.prefilled = max(before, seq.cached_tokens or 0, min(seq.computed, len(seq.prompt)))
        cached = 0 if before else seq.cached_tokens or 0
        self._load.cached_tokens += cached
        self._load.prompt_tokens += seq.prefilled - before - cached

    def _accept(self, seq: Sequence, token: int) -> bool:
        """Append a sampled token, and pause or end the sequence if it has to; return whether the token is text."""
        now = self._landed_at
        if seq.sampled_at is None:
            seq.sampled_at = now
            self._load.first_tokens.add(now - seq.submitted_at)
        else:
            gap = now - seq.last_sampled_at
            seq.gaps.append(gap)
            self._load.gaps.add(gap)
        seq.last_sampled_at = now
        seq.tokens.append(token)
        if token in seq.stops:
            is_eos = token in self.config.eos_ids and not seq.sampling.ignore_eos
            seq.ending = Ending(FinishReason.STOP, None if is_eos else token)
            return False
        if len(seq.tokens) >= seq.limit:
            self._stop_at_limit(seq)
        return True

    def _stop_at_limit(self, seq: Sequence) -> None:
        """End a sequence that has all the tokens that it may have, or pause it where more may be permitted."""
        if seq.output >= seq.max_output:
            seq.ending = Ending(FinishReason.LENGTH)
        elif seq.is_final:
            seq.ending = Ending(FinishReason.ALLOWANCE)
        else:
            seq.status = Status.PAUSED
            seq.pause_ends = self._landed_at + self.config.pause_seconds if seq.pause_expires else math.inf
            self._residents.paused[seq] = None

    # Pausing and ending -----------------------------------------------------------------------------------------

    def _expire_pauses(self) -> None:
        now = self.clock()
        for seq in [seq for seq in self._residents.paused if seq.pause_ends <= now]:
            self._end(seq, Ending(FinishReason.ALLOWANCE))

    def _finish(self, seq: Sequence, visible: RowResult = NOTHING_SAMPLED) -> None:
        # What it has in flight is discarded; but of a prompt in flight it is still to be counted what was computed.
        if seq.in_flight and seq.prefilled < len(seq.prompt):
            return
        self.waiting.queue.remove(seq)
        self._residents.paused.pop(seq, None)
        self._suspects.forget(seq)
        del self._live[seq.request_id]
        seq.status = Status.FINISHED
        uncomputed, cached = seq.unserved
        if uncomputed or cached:
            self.waiting.queue.charge(seq.tenant, prompt=-uncomputed, cached=-cached)
        now = self.clock()
        if not seq.begun:
            self._load.queued.add(now - seq.submitted_at)
        self._emit(seq, visible, seq.finished(now))
        self._release(seq)

    def _release(self, seq: Sequence) -> None:
        """Give back what an ended sequence holds, once no step in flight uses it."""
        if seq.in_flight:
            return
        if seq in self._residents.running:
            self._residents.free(seq)
        self.waiting.leave(seq)

    def _emit(self, seq: Sequence, visible: RowResult, finished: Finished | None = None) -> None:
        started = None
        if not seq.started and seq.prefilled:
            seq.started = True
            started = Started(seq.cached_tokens or 0, seq.seed)
        self._outputs.append(Output(seq.request_id, seq.usage, started, *visible, finished))

    def _validate(self, seq: Sequence) -> None:
        check_sequence(seq, self.config)


def _untold(seq: Sequence, first: int, told: tuple[PositionLogprobs, ...]) -> tuple[PositionLogprobs, ...]:
    """Return what of the prompt's tokens from place `first` on is news: after a preemption they are computed again."""
    news = told[max(0, seq.told - first) :]
    seq.told = max(seq.told, first + len(told))
    return news
