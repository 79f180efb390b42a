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
"""

from __future__ import annotations

import math
from collections.abc import Callable

from inference.core.base import BaseScheduler, Flight
from inference.core.bounds import StepBounds
from inference.core.config import SchedulerConfig
from inference.core.fairness import WaitingQueue
from inference.core.load import Load
from inference.core.output import Output, Stats
from inference.core.planner import Planner
from inference.core.prefix import PrefixKeys
from inference.core.sequence import Ending, Sequence, Status
from inference.core.step import Row, RowFailure, StepPlan, StepResult
from inference.errors import InvalidRequestError
from inference.types import EngineFault, Finished, FinishReason, Started
from inference.validation import check_ids, check_sampling


class Scheduler(BaseScheduler[Sequence]):
    """Plans the steps of one generating model.

    One further step may be planned before the last one is committed; sequences whose next token is still unknown are
    left out of it, and none is preempted for it.
    """

    def __init__(self, config: SchedulerConfig, keys: PrefixKeys, clock: Callable[[], float]) -> None:
        waiting: WaitingQueue[Sequence] = WaitingQueue(config.max_waiting, config.max_waiting_per_tenant, config.prices)
        super().__init__(waiting, StepBounds(config.rows, config.max_step_tokens), clock)
        self.config = config
        self._planner = Planner(config, self.bounds, keys, waiting, clock)
        self._residents = self._planner.residents
        self._load = Load()

    def extend(self, request_id: str, allowance: int, is_final: bool) -> None:
        """Permit `allowance` output tokens in all (never fewer than before), with `is_final` for the last time.

        A paused request goes on when it may generate more, and ends when it may not and `is_final` is set. Ended and
        unknown requests: no effect.
        """
        seq = self._live.get(request_id)
        if seq is None:
            return
        seq.allowance = max(seq.allowance, allowance)
        seq.is_final = is_final
        if seq.status is Status.PAUSED:
            if seq.output < seq.allowance:
                self._residents.resume(seq)
            elif seq.is_final:
                self._end(seq, Ending(FinishReason.ALLOWANCE))

    def submit(self, request: Sequence, *, bounded: bool = True) -> None:
        super().submit(request, bounded=bounded)
        if request.sampling.min_tokens:
            eos = frozenset() if request.sampling.ignore_eos else self.config.eos_ids
            request.ends = tuple(sorted(eos.union(request.sampling.stop_token_ids)))

    def plan(self) -> StepPlan | None:
        self._expire_queue()
        self._expire_pauses()
        if not self._flights:
            self._residents.preempt_excess()
        counts = self._planner.choose(in_flight=bool(self._flights))
        if not counts:
            if not self._flights and not self._residents.running and self.waiting.queue:
                self._fail_first_waiting()
                return self.plan()
            return None
        begins = tuple(seq.request_id for seq in counts if not seq.begun)
        rows = tuple(self._row(seq, count) for seq, count in counts.items())
        return self._launch(StepPlan(number=self.steps, rows=rows, begins=begins), tuple(counts))

    def commit(self, plan: StepPlan, result: StepResult) -> list[Output]:
        self._verify(plan, result)
        flight, seconds = self._land()
        self._measure(flight, seconds)
        for seq, row, token in zip(flight.requests, plan.rows, result.tokens, strict=True):
            seq.in_flight -= 1
            if isinstance(token, RowFailure):
                self._end(seq, Ending(FinishReason.ERROR, error=EngineFault(token.code, token.message)))
                continue
            self._advance(seq, row)
            visible: tuple[int, ...] = ()
            if token is not None and not 0 <= token < self.config.vocab_size:
                fault = EngineFault("bad_token", "the model answered with a token outside its vocabulary")
                seq.ending = seq.ending or Ending(FinishReason.ERROR, error=fault)
            elif token is not None and seq.ending is None:
                visible = self._accept(seq, token)
            if seq.ending is not None:
                self._finish(seq, visible)
            elif visible or not seq.started:
                self._emit(seq, visible)
        return self.take_outputs()

    def abandon(self, plan: StepPlan, error: BaseException) -> list[Output]:
        flight = self._take_newest(plan)
        smaller = isinstance(error, MemoryError) and self.bounds.shrink(plan)
        for seq, row in zip(flight.requests, plan.rows, strict=True):
            seq.in_flight -= 1
            seq.scheduled = row.start
            # A row that followed an abandoned row of the same sequence is not at fault.
            if row.start == seq.computed and not smaller:
                seq.failures += 1
                self._planner.suspects[seq] = None
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
        paused, running = self._residents.paused, self._residents.running
        for seq in self._live.values():
            assert seq.computed <= seq.scheduled <= seq.known
            assert (seq in running) == bool(seq.blocks) == (seq.slot >= 0)
            assert (seq.status is Status.WAITING) == (seq in self.waiting.queue)
            assert (seq.status is Status.PAUSED) == (seq in paused)
        assert set(running) | set(paused) <= set(self._live.values())
        assert set(self._planner.suspects) == {seq for seq in self._live.values() if seq.failures}
        assert len(self.waiting.queue) == sum(seq.status is Status.WAITING for seq in self._live.values())

    # Planning ---------------------------------------------------------------------------------------------------

    def _row(self, seq: Sequence, count: int) -> Row:
        start = seq.scheduled
        seq.scheduled += count
        seq.in_flight += 1
        seq.begun = True
        return Row(
            slot=seq.slot,
            request_id=seq.request_id,
            ids=tuple(seq.tokens[start : start + count]),
            start=start,
            blocks=seq.table,
            samples=seq.scheduled == seq.known,
            output_index=seq.output,
            sampling=seq.sampling,
            seed=seq.seed,
            history=seq.tokens if seq.sampling.penalises else (),
            banned=seq.ends,
        )

    def _fail_first_waiting(self) -> None:
        """Fail the first waiting request, which doesn't fit though nothing runs: it would wait for ever."""
        head = self.waiting.queue.peek()
        assert head is not None
        fault = EngineFault("unschedulable", "the request fits in no step of this engine")
        self._end(head, Ending(FinishReason.ERROR, error=fault))

    # Committing -------------------------------------------------------------------------------------------------

    def _verify(self, plan: StepPlan, result: StepResult) -> None:
        self._require_oldest(plan)
        if len(result.tokens) != len(plan.rows):
            raise ValueError(f"step {plan.number}: {len(result.tokens)} answers for {len(plan.rows)} rows")
        for row, token in zip(plan.rows, result.tokens, strict=True):
            if row.samples is (token is None) and not isinstance(token, RowFailure):
                raise ValueError(f"step {plan.number}: a token where none was sampled, or none where one was")

    def _measure(self, flight: Flight[Sequence], seconds: float) -> None:
        """Count what a step took, for the size of later ones and for who had how much of the engine."""
        rows = [(len(row.ids), row.start) for row in flight.plan.rows]
        times = self._planner.times
        times.add(rows, seconds)
        prompts = [row for row in rows if row[0] > 1]
        prefill = seconds
        if len(prompts) < len(rows):
            prefill = sum(times.prefill_seconds(start, count) for count, start in prompts)
        counts = zip((seq.tenant for seq in flight.requests), (count for count, _ in rows), strict=True)
        self._load.add_step(counts, seconds, prefill)

    def _advance(self, seq: Sequence, row: Row) -> None:
        """Count the row's tokens as computed and publish the blocks that they filled."""
        if row.start != seq.computed:
            return  # an earlier row of the sequence failed
        seq.computed += len(row.ids)
        if seq.failures:
            seq.failures = 0
            del self._planner.suspects[seq]
        # After a preemption fewer tokens may be cached than at the first admission, whose number counts.
        before = seq.prefilled
        seq.prefilled = max(seq.prefilled, seq.cached_tokens or 0, min(seq.computed, len(seq.prompt)))
        if seq.prefilled > before:
            cached = 0 if before else seq.cached_tokens or 0
            self._load.cached_tokens += cached
            self._load.prompt_tokens += seq.prefilled - before - cached
        self._residents.publish(seq)

    def _accept(self, seq: Sequence, token: int) -> tuple[int, ...]:
        """Append a sampled token, and pause or end the sequence if it has to; return the token if it is text."""
        now = self.clock()
        if seq.sampled_at is None:
            seq.sampled_at = now
        else:
            seq.gaps.append(now - seq.last_sampled_at)
        seq.last_sampled_at = now
        seq.tokens.append(token)
        self._load.output_tokens += 1
        self.waiting.queue.charge(seq.tenant, output=1)
        if token in self.config.eos_ids and not seq.sampling.ignore_eos:
            seq.ending = Ending(FinishReason.STOP)
            return ()
        if token in seq.sampling.stop_token_ids:
            seq.ending = Ending(FinishReason.STOP, token)
            return ()
        if seq.output >= seq.max_output:
            seq.ending = Ending(FinishReason.LENGTH)
        elif seq.output >= seq.allowance:
            if seq.is_final:
                seq.ending = Ending(FinishReason.ALLOWANCE)
            else:
                seq.status = Status.PAUSED
                seq.pause_ends = now + self.config.pause_seconds if seq.pause_expires else math.inf
                self._residents.paused[seq] = None
        return (token,)

    # Pausing and ending -----------------------------------------------------------------------------------------

    def _expire_pauses(self) -> None:
        now = self.clock()
        for seq in [seq for seq in self._residents.paused if seq.pause_ends <= now]:
            self._end(seq, Ending(FinishReason.ALLOWANCE))

    def _finish(self, seq: Sequence, visible: tuple[int, ...] = ()) -> None:
        if seq.in_flight:
            return
        if seq in self._residents.running:
            self._residents.free(seq)
        self.waiting.queue.remove(seq)
        self._residents.paused.pop(seq, None)
        self._planner.suspects.pop(seq, None)
        del self._live[seq.request_id]
        seq.status = Status.FINISHED
        if seq.uncomputed:
            self.waiting.queue.charge(seq.tenant, prompt=-seq.uncomputed)
        self._emit(seq, visible, self._finished(seq))
        self.waiting.leave(seq)

    def _finished(self, seq: Sequence) -> Finished:
        assert seq.ending is not None
        now = self.clock()
        admitted = seq.admitted_at if seq.admitted_at is not None else now
        sampled = seq.sampled_at if seq.sampled_at is not None else now
        gaps = sorted(seq.gaps)
        return Finished(
            reason=seq.ending.reason,
            usage=seq.usage,
            error=seq.ending.error,
            stop=seq.ending.stop,
            queued_ms=(admitted - seq.submitted_at) * 1000,
            prefill_ms=(sampled - admitted) * 1000,
            decode_ms=(now - sampled) * 1000,
            gap_ms=_percentile(gaps, 0.5) * 1000,
            gap_p99_ms=_percentile(gaps, 0.99) * 1000,
        )

    def _emit(self, seq: Sequence, visible: tuple[int, ...], finished: Finished | None = None) -> None:
        started = None
        if not seq.started and seq.prefilled:
            seq.started = True
            started = Started(seq.cached_tokens or 0, seq.seed)
        self._outputs.append(Output(seq.request_id, seq.usage, started, visible, finished=finished))

    def _validate(self, seq: Sequence) -> None:
        context = self.config.context
        if not seq.prompt:
            raise InvalidRequestError("the prompt is empty", param="messages")
        if seq.max_output < 1 or seq.allowance < 1:
            raise InvalidRequestError("a generation needs room for at least one token", param="max_tokens")
        if seq.output >= min(seq.max_output, seq.allowance):
            raise InvalidRequestError("a resumed generation needs room for one more token")
        if len(seq.prompt) + seq.max_output > context:
            raise InvalidRequestError(
                f"{len(seq.prompt)} prompt tokens and {seq.max_output} output tokens exceed the context of {context}",
                code="context_length_exceeded",
                param="max_tokens",
            )
        if min(seq.tokens) < 0 or max(seq.tokens) >= self.config.vocab_size:
            check_ids(seq.tokens, self.config.vocab_size, "messages")
        check_sampling(seq.sampling, self.config.vocab_size, self.config.eos_ids)


def _percentile(ordered: list[float], part: float) -> float:
    """The least of the `ordered` values that at least this `part` of them don't exceed; 0 of none."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else 0.0
