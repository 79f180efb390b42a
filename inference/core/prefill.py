"""How the prompt tokens of one step are divided between tenants."""

from __future__ import annotations

from collections import deque
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


@dataclass(slots=True)
class _Rest:
    """Tokens and seconds that are left of a step, or of a tenant's part of it."""

    tokens: int
    seconds: float
    is_whole: bool = True  # nothing was taken of it

    def take(self, tokens: int, seconds: float) -> None:
        self.tokens -= tokens
        self.seconds -= seconds
        self.is_whole = False

    def __bool__(self) -> bool:
        return self.tokens > 0 and self.seconds > 0


@dataclass(slots=True)
class _Step:
    """What is left of the step, how many tokens of each sequence it computes, and the prompts it may go on with."""

    rest: _Rest
    counts: dict[Sequence, int]
    prompts: list[Sequence]
    may_admit: bool
    computed: dict[Sequence, int] = field(default_factory=dict)  # prompt tokens among the counts


class Prefill:
    """Divides what a step has for prompts between those that run and new ones.

    First each tenant with a prompt, running or waiting, gets the part of tokens and time that its weight gives it, so
    that the long prompts of one don't hold up the next, whose turn may be only a little later. What they leave is lent,
    in the order of their turns. A tenant that leads the lowest counter by more than a full batch's worth of service has
    no part, and a lower band has none beside a higher one: they get what is left.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        bounds: StepBounds,
        times: StepTimes,
        waiting: WaitingQueue[Sequence],
        admission: Admission,
    ) -> None:
        self._config = config
        self._bounds = bounds
        self._times = times
        self._waiting = waiting
        self._queue = waiting.queue
        self._admission = admission
        self._division = 0
        self._last: dict[str, int] = {}  # the number of the division in which each tenant's part was last used

    def divide(self, counts: dict[Sequence, int], prompts: list[Sequence], budget: int, *, may_admit: bool) -> None:
        """Add to `counts`, which has the step's decode rows, how many of `budget` tokens each prompt gets.

        `prompts` are running sequences; with `may_admit` others are admitted.
        """
        if not prompts and not self._queue:
            return
        step = _Step(_Rest(budget, self._seconds(counts)), counts, prompts, may_admit)
        parts = self._parts(step)
        if len(parts) > 1:
            self._division += 1
            self._give_parts(step, parts)
        self._lend(step)

    def _seconds(self, decoding: dict[Sequence, int]) -> float:
        """How much longer the prompts may make a step with these decode rows.

        A newcomer's first token waits for the step that runs when it comes and for its own. So that both take no longer
        than three steps with every row, or than 2 · SHORT where that is more, the step takes at most one and a half of
        those, or SHORT. Until steps with every row were measured, they are taken to be what the others tell: no longer
        than these, as long as all had about as many rows.
        """
        setting = self._config.prefill_seconds
        if not decoding or not setting:
            return UNBOUNDED
        rows, context = len(decoding), sum(seq.scheduled for seq in decoding)
        short = min(SHORT, setting / 2)
        step = self._times.decode_seconds(rows, context)
        if not step:
            return 2 * short
        every = self._bounds.rows
        full = self._times.full_seconds or self._times.decode_seconds(every, context * every // rows)
        return min(setting, max(1.5 * full - step, short - step, step / 2))

    def _parts(self, step: _Step) -> dict[str, _Rest]:
        """Return the part of each tenant that has one."""
        tenants = dict.fromkeys(seq.tenant for seq in step.prompts)
        if step.may_admit:
            tenants |= dict.fromkeys(self._admission.tenants())
        if len(tenants) < 2:
            return {}
        weights = self._waiting.weights
        turns = {tenant: self._queue.turn(tenant) for tenant in tenants}
        band, lowest, _ = min(turns.values())
        batch = self._config.cache_tokens * self._queue.prices.output * 1_000_000
        sharing = [
            tenant for tenant, turn in turns.items() if turn[0] == band and turn[1] <= lowest + batch // weights[tenant]
        ]
        total = sum(weights[tenant] for tenant in sharing)
        rest = step.rest
        return {
            tenant: _Rest(-(-rest.tokens * weights[tenant] // total), rest.seconds * weights[tenant] / total)
            for tenant in sharing
        }

    def _give_parts(self, step: _Step, parts: dict[str, _Rest]) -> None:
        """Give each sequence what its tenant's part has for it.

        New tenants first, then those whose prompts got something longest ago: on a machine that is too slow for all of
        them in one step, each has its turn.
        """
        last = self._last = {tenant: self._last.get(tenant, 0) for tenant in parts}
        prompts = deque(sorted(step.prompts, key=lambda seq: (last.get(seq.tenant, 0), self._queue.turn(seq.tenant))))
        step.prompts = []
        while step.rest:
            busy = {seq.tenant for seq in prompts}
            seq = self._admit(step, None, [tenant for tenant, part in parts.items() if part and tenant not in busy])
            if seq is None:
                if not prompts:
                    break
                seq = prompts.popleft()
            part = parts.get(seq.tenant)
            if not part:
                step.prompts.append(seq)
            elif self._compute(step, seq, part):
                last[seq.tenant] = self._division
        step.prompts += prompts

    def _lend(self, step: _Step) -> None:
        """Give the sequences what is left of the step, in the order of their tenants' turns."""
        turn = self._queue.turn
        prompts = deque(sorted(step.prompts, key=lambda seq: turn(seq.tenant)))
        while step.rest:
            seq = self._admit(step, turn(prompts[0].tenant) if prompts else None)
            if seq is None:
                if not prompts:
                    break
                seq = prompts.popleft()
            self._compute(step, seq, step.rest)

    def _admit(self, step: _Step, before: Turn | None, among: list[str] | None = None) -> Sequence | None:
        """Admit the next sequence that may be, if the step may have more."""
        if not step.may_admit or len(step.counts) >= self._bounds.rows:
            return None
        return self._admission.next(before, among)

    def _compute(self, step: _Step, seq: Sequence, part: _Rest) -> bool:
        """Let the step compute as many more tokens of `seq` as `part` and what is left of the step permit, if any."""
        rest, done = step.rest, step.computed.get(seq, 0)
        most = min(min(seq.due, seq.chunk) - done, rest.tokens, part.tokens)
        start = seq.scheduled + done
        count = self._times.tokens_within(min(rest.seconds, part.seconds), start, most)
        least = min(most, self._config.block_size)
        if count < least:
            # Crumbs of a prompt cost steps: a tenant's first has a block, as long as the step has time. And the step's
            # first has one in any case, so that it goes on, however slow the machine is.
            fits = part.is_whole and self._times.prefill_seconds(start, least) <= rest.seconds
            count = least if fits or not step.computed else 0
        if not count:
            part.seconds = 0.0
            step.prompts.append(seq)
            return False
        step.computed[seq] = step.counts[seq] = done + count
        seconds = self._times.prefill_seconds(start, count)
        rest.take(count, seconds)
        if part is not rest:
            part.take(count, seconds)
        if step.computed[seq] < min(seq.due, seq.chunk):
            step.prompts.append(seq)
        return True
