"""The prompts that one step computes, and how many tokens of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from inference.core.admission import Admission
from inference.core.bounds import StepBounds
from inference.core.config import SchedulerConfig
from inference.core.fairness import Turn
from inference.core.sequence import Sequence
from inference.core.step_times import StepTimes
from inference.core.waiting import WaitingQueue

UNBOUNDED = float("inf")
SHORT = 0.025  # seconds that a step may take in any case: small models' full steps take a few milliseconds
ALONE = 5  # times `prefill_seconds` that the prompts of a step without decode rows may take
RECENTLY = 5.0  # seconds for which a step without decode rows counts as one beside them
NEWCOMERS = 0.75  # of a step's tokens and seconds for prompts: the most that short prompts of newcomers take


@dataclass(slots=True)
class _Rest:
    """Tokens and seconds that are left of a step, or of a part of it."""

    tokens: int
    seconds: float
    is_whole: bool = True  # nothing was taken of it

    def part(self, share: float) -> _Rest:
        """Return this share of what is left."""
        return _Rest(round(self.tokens * share), self.seconds * share)

    def take(self, tokens: int, seconds: float) -> None:
        self.tokens -= tokens
        self.seconds -= seconds
        self.is_whole = False

    def __bool__(self) -> bool:
        return self.tokens > 0 and self.seconds > 0


@dataclass(slots=True)
class _Step:
    """The rest of the step, the number of tokens that it computes of each sequence, and the running prompts by turn."""

    rest: _Rest
    counts: dict[Sequence, int]
    prompts: list[Sequence]
    may_admit: bool
    computed: dict[Sequence, int] = field(default_factory=dict)  # prompt tokens among the counts


class Prefill:
    """Serves prompts by turn: each as far as the step goes, before the next one in the order of turns begins.

        newcomers' short prompts, 3/4 of the step, or else smaller prompts, 1/2 │ the first │ the next …

    A prompt keeps the turn at which it was admitted, so that the first is done before others begin: a step divided
    among all of them would let each wait for all. So that a long one doesn't hold up the rest either, two kinds of
    prompts needn't wait for it. Short ones of tenants with few rows go before it. And others that have at most half as
    much left as the first share the step with it, by turn and weight: they are done long before it would be without
    them. The first gets tokens in every third step at least, however slow the machine is.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        bounds: StepBounds,
        times: StepTimes,
        waiting: WaitingQueue[Sequence],
        admission: Admission,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._bounds = bounds
        self._times = times
        self._weights = waiting.weights
        self._queue = waiting.queue
        self._admission = admission
        self._clock = clock
        self._decoded_at = float("-inf")  # when a step with decode rows was last planned
        self._first: Sequence | None = None  # of the last step
        self._passed_over = 0  # steps in a row that computed nothing of it

    def divide(self, counts: dict[Sequence, int], prompts: list[Sequence], budget: int, *, may_admit: bool) -> None:
        """Add to `counts`, which has the step's decode rows, how many of `budget` tokens each prompt gets.

        `prompts` are running sequences; with `may_admit` others are admitted.
        """
        if counts:
            self._decoded_at = self._clock()
        if not prompts and not self._queue:
            return
        rest = _Rest(budget, self._seconds(counts))
        decodes = bool(counts)
        step = _Step(rest, counts, sorted(prompts, key=_turn), may_admit)
        first = step.prompts[0] if step.prompts else None
        if first is not self._first:
            self._first, self._passed_over = first, 0
        if self._passed_over < 2 and self._serve_newcomers(step) and not decodes:
            rest.seconds = min(rest.seconds, self._config.prefill_seconds or UNBOUNDED)  # they wait for this step
        if not self._passed_over and not step.computed:
            self._serve_smaller(step)
        self._serve(step, rest, sorted(step.prompts, key=_turn))
        self._passed_over = 0 if first is None or first in step.computed else self._passed_over + 1

    def _seconds(self, decoding: dict[Sequence, int]) -> float:
        """How much longer the prompts may make a step with these decode rows.

        A newcomer's first token waits for the step that runs when it comes and for its own. So that both take no longer
        than three steps with every row, or than 2 · SHORT where that is more, the step takes at most one and a half of
        those, or SHORT. Until steps with every row were measured, they are taken to be what the others tell: no longer
        than these, as long as all had about as many rows. The same holds without decode rows, if there were some a
        moment ago and several tenants have requests here; else nobody waits for the step but who may come.
        """
        setting, most = self._config.prefill_seconds, self._bounds.seconds
        if not setting:
            return most
        if not decoding and (len(self._weights) < 2 or self._clock() - self._decoded_at > RECENTLY):
            return min(ALONE * setting, most)
        rows, context = len(decoding), sum(seq.scheduled for seq in decoding)
        short = min(SHORT, setting / 2)
        step = self._times.decode_seconds(rows, context)
        if not step:
            return min(2 * short, most)
        every = self._bounds.rows
        full = self._times.full_seconds or self._times.decode_seconds(every, context * every // max(1, rows))
        return min(setting, most, max(1.5 * full - step, short - step, step / 2))

    def _serve_newcomers(self, step: _Step) -> bool:
        """Give newcomers' short prompts their part of the step, the shortest first; return whether one is new.

        None of a tenant that leads the lowest counter by more than a full batch's worth of service, or of a lower band.
        """
        turn = self._queue.turn
        turns = [seq.turn for seq in step.prompts[:1]]
        if step.may_admit and (head := self._queue.peek()) is not None:
            turns.append(turn(head.tenant))
        if not turns:
            return False
        band, lowest, _ = min(turns)
        batch = self._config.cache_tokens * self._queue.prices.output * 1_000_000
        reading = {seq.tenant for seq in step.prompts}

        def suits(seq: Sequence) -> bool:
            theirs = turn(seq.tenant)
            is_near = theirs[0] == band and theirs[1] <= lowest + batch // seq.weight
            return is_near and seq.tenant not in reading and self._admission.is_newcomer(seq)

        begun = [seq for seq in step.prompts[1:] if seq.turn[0] == band and self._admission.is_short(seq)]
        return self._serve(step, step.rest.part(NEWCOMERS), sorted(begun, key=self._admission.left), suits)

    def _serve_smaller(self, step: _Step) -> None:
        """Let smaller prompts of others share the step with the first one, by the weight of the earliest of them."""
        first = next((seq for seq in step.prompts if seq not in step.computed), None)
        head = self._queue.peek()
        if first is None or not step.rest or (head is not None and self._queue.turn(head.tenant) < first.turn):
            return
        band, left = first.turn[0], self._admission.left(first)

        def suits(seq: Sequence) -> bool:
            is_other = seq.tenant != first.tenant and self._queue.turn(seq.tenant)[0] == band
            return is_other and 2 * self._admission.left(seq) <= left

        begun = deque(seq for seq in step.prompts if seq not in step.computed and suits(seq))
        part = step.rest
        while part and step.rest:
            seq = begun.popleft() if begun else self._admit(step, part, None, suits)
            if seq is None:
                break
            if part is step.rest:
                ours, theirs = self._weights[seq.tenant], self._weights[first.tenant]
                part = part.part(ours / (ours + theirs))
            self._compute(step, seq, part)

    def _serve(
        self, step: _Step, part: _Rest, prompts: list[Sequence], suits: Callable[[Sequence], bool] | None = None
    ) -> bool:
        """Give these `prompts` of the step's what `part` has for them, and waiting ones whose turn comes before, or
        with `suits` those that it takes, before all; return whether one was admitted.
        """
        ours = deque(prompts)
        has_admitted = False
        while part and step.rest:
            seq = self._admit(step, part, ours[0].turn if ours and suits is None else None, suits)
            if seq is not None:
                has_admitted = True
            elif ours:
                seq = ours.popleft()
            else:
                break
            self._compute(step, seq, part)
        return has_admitted

    def _admit(
        self, step: _Step, part: _Rest, before: Turn | None, suits: Callable[[Sequence], bool] | None
    ) -> Sequence | None:
        """Admit the next sequence that may be, if the step may have more and `part` has time for some of it."""
        seconds = step.rest.seconds if part.is_whole else min(step.rest.seconds, part.seconds)
        has_time = not step.computed or self._times.prefill_seconds(0, self._config.block_size) <= seconds
        if not step.may_admit or not has_time or len(step.counts) >= self._bounds.rows:
            return None
        seq = self._admission.next(before, suits)
        if seq is not None:
            step.prompts.append(seq)
        return seq

    def _compute(self, step: _Step, seq: Sequence, part: _Rest) -> None:
        """Let the step compute as many more tokens of `seq` as `part` and what is left of the step permit, if any."""
        rest, done = step.rest, step.computed.get(seq, 0)
        wanted = min(seq.due, seq.chunk) - done
        if wanted <= 0:
            return
        most = min(wanted, rest.tokens, part.tokens)
        start = seq.scheduled + done
        count = self._times.tokens_within(min(rest.seconds, part.seconds), start, most)
        least = min(most, self._config.block_size)
        if count < least:
            # Crumbs of a prompt cost steps: a part's first has a block, as long as the step has time. And the step's
            # first has one in any case, so that it goes on, however slow the machine is.
            fits = part.is_whole and self._times.prefill_seconds(start, least) <= rest.seconds
            count = least if fits or not step.computed else 0
        if not count:
            part.seconds = 0.0
            return
        step.computed[seq] = step.counts[seq] = done + count
        seconds = self._times.prefill_seconds(start, count)
        rest.take(count, seconds)
        if part is not rest:
            part.take(count, seconds)


def _turn(seq: Sequence) -> Turn:
    return seq.turn
