"""Admission of waiting sequences to slots and blocks, and the sequences from which room is taken back for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from inference.core.fairness import BEGUN, Turn
from inference.core.prefix import Key
from inference.core.resident import Cause, Residents
from inference.core.sequence import Sequence, Status
from inference.core.step_times import StepTimes
from inference.core.waiting import WaitingQueue

OWED = 2  # of so many rows one may be taken from an answer that waits then


class Admission:
    """Admits sequences in the order of their tenants' turns.

    An admission takes the blocks of all known tokens at once, so that two half-computed prompts can't block each other.
    One that doesn't fit is bypassed by those behind it, `max_bypass` times at most, and only by the next few tenants
    and the newest: what a step looks at doesn't grow with the number that waits. A tenant has what the order of turns
    gives it, its share of rows and blocks or more, as long as no tenant that was served less waits with less than its
    share: for that one, room is taken back (`reclaim`), as it is for any such from a tenant that has nothing waiting.
    """

    def __init__(
        self,
        residents: Residents,
        waiting: WaitingQueue[Sequence],
        times: StepTimes,
        clock: Callable[[], float],
    ) -> None:
        self._residents = residents
        self._times = times
        self._config = residents.config
        self._queue = waiting.queue
        self._clock = clock
        self._window = residents.config.max_bypass + 1
        self._blocked_state: tuple[object, ...] | None = None  # the state in which none could be admitted
        self._missing: set[Key] = set()  # prefixes of those that didn't fit, which may be published
        self._owed: list[Sequence] = []  # answers that gave their tenants' last rows and wait for one

    def next(self, before: Turn | None = None, suits: Callable[[Sequence], bool] | None = None) -> Sequence | None:
        """Admit the first sequence of the queue or, if it doesn't fit, one that may bypass it; None if none fits.

        With `before`, only of tenants whose turn comes before that; with `suits`, only one that it takes, the shortest.
        """
        residents, head = self._residents, self._queue.peek()
        state = self._state()
        if head is None or state == self._blocked_state:
            return None
        for seq in self._still_owed():
            if self.admit(seq, may_preempt=False):
                return seq
        self._missing = set()
        all_tried = True
        for seq in self._candidates() if suits is None else self._shortest_first():
            is_later = before is not None and self._queue.turn(seq.tenant) >= before
            if is_later or (suits is not None and not suits(seq)):
                all_tried = False
            elif self.admit(seq, may_preempt=seq is head):
                if seq is not head and not residents.fits(*self._wanted(head)):
                    head.bypassed += 1
                return seq
        if all_tried:
            self._blocked_state = state
            residents.pool.awaited = self._missing
        return None

    def left(self, seq: Sequence) -> int:
        """How many tokens of `seq`, running or waiting, are still to be computed."""
        if seq.blocks:
            return seq.due
        return seq.known - self._config.block_size * len(self._residents.match(seq))

    def is_short(self, seq: Sequence) -> bool:
        """Whether what is left of `seq` takes little of a step: a block, or `prefill_seconds` and 3/4 of its tokens."""
        left, config = self.left(seq), self._config
        if left <= config.block_size:
            return True
        most = min(config.prefill_chunk, 3 * self._residents.bounds.tokens // 4)
        return left <= most and self._times.prefill_seconds(seq.known - left, left) <= (config.prefill_seconds or 0.1)

    def is_newcomer(self, seq: Sequence) -> bool:
        """Whether `seq`, which waits, is short, and its tenant has few rows."""
        return self._residents.shares.has_few(seq.tenant, self._residents.bounds.rows) and self.is_short(seq)

    def _wanted(self, seq: Sequence) -> tuple[list[int], int]:
        """Return the cached blocks of `seq`, which waits, and how many more it needs."""
        matched = self._residents.match(seq)
        return matched, self._config.blocks_for(seq.known) - len(matched)

    def _state(self) -> tuple[object, ...]:
        """Changes whenever a sequence that didn't fit might fit: blocks or a slot are freed, the queue changes, one
        pauses, or blocks that one would share are published. Until then nothing is tried again.
        """
        residents = self._residents
        first = self._queue.peek() if residents.paused else None
        arrivals = residents.pool.arrivals
        return residents.freed, self._queue.changes, residents.bounds.rows, arrivals, *residents.paused, first

    def admit(self, seq: Sequence, *, may_preempt: bool) -> bool:
        """Give `seq` a slot and blocks for all its known tokens, and return True; or change nothing but preemptions.

        With `may_preempt`, paused sequences are preempted for it.
        """
        residents = self._residents
        if len(residents.running) >= residents.bounds.rows and not (may_preempt and residents.paused):
            return False
        matched, fresh = self._wanted(seq)
        if not residents.fits(matched, fresh) and not (may_preempt and self._preempt_paused(matched, fresh)):
            self._missing |= residents.missing(seq, matched)
            return False
        return self._place(seq, matched, fresh)

    def reclaim(self, *, in_flight: bool) -> bool:
        """Take room back for waiting tenants below their shares from tenants above theirs.

        From those that were served more, or have nothing waiting. A tenant with less than half of its share gets
        another row in each step; one with more, each `reclaim_seconds`, since tenants that always wait have now more
        and now less. Of the tenant that was served most, the sequences with the fewest computed tokens are preempted;
        nothing happens when all that give room would not be enough. Last rows are given too, one in a step. With a step
        `in_flight` none is preempted: return True when one would have to be.
        """
        residents, shares, queue = self._residents, self._residents.shares, self._queue
        rows, head = residents.bounds.rows, queue.peek()
        if (
            queue.waiting_tenants <= shares.rows.keys()
            and not any(shares.is_above(tenant, rows) for tenant in shares.rows)
            and (head is None or all(one.band >= head.band for one in residents.running))
        ):
            return False
        for seq in self._shortest_first():
            if not self._is_due(seq):
                continue
            matched, fresh = self._wanted(seq)
            if (
                not shares.is_below(seq.tenant, rows, fresh)
                or residents.fits(matched, fresh)
                or (seq is head and self._preempt_paused(matched, fresh))
            ):
                continue
            lent = self._lent(seq)
            if not (victims := self._victims(lent, matched, fresh)):
                victims = self._victims([*lent, *self._last_rows(seq, lent)], matched, fresh)
            if victims and in_flight:
                return True
            if victims and self._take_back(victims, matched, fresh) and self._place(seq, matched, fresh):
                shares.reclaimed_at[seq.tenant] = self._clock()
                if head is not None and seq is not head:
                    head.bypassed += 1
                if len(victims) > len(lent):
                    self._owed += [one for one in victims[len(lent) :] if one.known > len(one.prompt)]
                    break
        return False

    def _still_owed(self) -> list[Sequence]:
        """Return the answers that gave their last rows and have none again: they get the next that are free."""
        if self._owed:
            self._owed = [one for one in self._owed if one.status is Status.WAITING]
        return self._owed

    def _candidates(self) -> Iterator[Sequence]:
        """The first sequence of the queue and those that may bypass it: of the next tenants, and of the newest.

        Once it was bypassed `max_bypass` times only tenants with few rows may, and only if its own has one. Suspects
        are admitted by the planner, since they run alone.
        """
        heads = self._queue.heads(self._window)
        shares, most = self._residents.shares, self._residents.bounds.rows
        for seq in dict.fromkeys((*heads, *self._queue.newest())):
            head = heads[0]
            is_held_back = seq is not head and head.bypassed >= self._config.max_bypass
            if is_held_back and not (shares.rows[head.tenant] and shares.has_few(seq.tenant, most)):
                continue
            if not seq.failures:
                yield seq

    def _shortest_first(self) -> list[Sequence]:
        """The candidates of the highest band by what is left of their prompts: one that takes little waits little."""
        return sorted(self._candidates(), key=lambda seq: (-seq.band, self.left(seq)))

    def _is_due(self, seq: Sequence) -> bool:
        """Whether its tenant has few rows, or has waited for more long enough."""
        shares = self._residents.shares
        return shares.has_few(seq.tenant, self._residents.bounds.rows) or self._has_waited(seq)

    def _has_waited(self, seq: Sequence) -> bool:
        since = max(seq.submitted_at, seq.preempted_at, self._residents.shares.reclaimed_at.get(seq.tenant, 0.0))
        return self._clock() - since >= self._config.reclaim_seconds

    def _lent(self, seq: Sequence) -> list[Sequence]:
        """Return what tenants above their shares give to `seq`, the first to be preempted first."""
        residents, turn = self._residents, self._queue.turn
        shares, rows = residents.shares, residents.bounds.rows
        place = turn(seq.tenant)[:2]
        found: list[Sequence] = []
        for tenant in sorted(shares.rows, key=turn, reverse=True):
            theirs = turn(tenant)[:2]
            # One of a higher band keeps what it has, and one that was served less and waits for more.
            if theirs < place and (theirs[0] < place[0] or self._queue.waiting(tenant)):
                continue
            if not shares.is_above(tenant, rows):
                continue
            given_blocks = 0
            for given_rows, one in enumerate(self._by_work(tenant)):
                if not shares.is_above(tenant, rows, given_rows, given_blocks):
                    break
                found.append(one)
                given_blocks += len(one.blocks)
        return found

    def _by_work(self, tenant: str) -> list[Sequence]:
        return sorted((one for one in self._residents.running if one.tenant == tenant), key=lambda one: one.computed)

    def _last_rows(self, seq: Sequence, lent: list[Sequence]) -> list[Sequence]:
        """Return what tenants give to `seq` of their last rows: a row without work first, then of the one served most.

        One that has waited takes what it lacks of its share from lower bands. Of its own band, where all rows are
        taken, a tenant without one takes one for a request of which nothing ran, if that is short or others took its
        place too often: of a long prompt of which nothing is computed, or of an answer whose tenant was served more. An
        answer gives once, and only while few wait that have given: where more come than can be served, each would end
        another's, and none be done.
        """
        turn, residents = self._queue.turn, self._residents
        band, counter, _ = turn(seq.tenant)
        has_waited = self._has_waited(seq)
        lacks_row = len(residents.running) >= residents.bounds.rows and not residents.shares.rows[seq.tenant]
        may_take = lacks_row and not seq.begun and (seq.bypassed >= self._config.max_bypass or self.is_short(seq))
        may_end = may_take and OWED * len(self._still_owed()) < residents.bounds.rows

        def gives(one: Sequence) -> bool:
            theirs = turn(one.tenant)
            if theirs[0] != band:
                return theirs[0] > band and has_waited
            if one.computed:
                is_new = not one.preempted_at and one.computed >= len(one.prompt)
                return may_end and is_new and theirs[1] > counter
            return may_take and one.bypassed < self._config.max_bypass and not self.is_short(one)

        given = [one for one in residents.running if one not in lent and gives(one)]
        return sorted(given, key=lambda one: (not one.computed, turn(one.tenant), -one.computed), reverse=True)

    def _victims(self, given: list[Sequence], matched: list[int], fresh: int) -> list[Sequence]:
        """Return what of `given` to preempt so that one fits; none when all is not enough."""
        pool, shared = self._residents.pool, set(matched)
        released = 0
        for number, one in enumerate(given, 1):
            # What is shared with the one that is to fit is no gain.
            released += pool.exclusive([block for block in one.blocks if block not in shared])
            if pool.fits(matched, fresh, self._config.watermark - released):
                return given[:number]
        return []

    def _take_back(self, victims: list[Sequence], matched: list[int], fresh: int) -> bool:
        for victim in victims:
            self._residents.preempt(victim, Cause.FAIRNESS)
        return self._residents.fits(matched, fresh)

    def _place(self, seq: Sequence, matched: list[int], fresh: int) -> bool:
        band, counter, _ = self._queue.turn(seq.tenant)
        seq.turn = band, counter, BEGUN
        if not self._residents.place(seq, matched, fresh):
            return False
        if seq.cached_tokens is None:
            seq.cached_tokens = seq.computed
            self._queue.charge(seq.tenant, prompt=len(seq.prompt) - seq.computed, cached=seq.computed)
        return True

    def _preempt_paused(self, matched: list[int], fresh: int) -> bool:
        """Preempt paused sequences until the blocks fit; none when all of them would not be enough."""
        residents = self._residents
        idle = [seq for seq in residents.paused if seq.blocks and not seq.in_flight]
        alone = len(idle) == len(residents.running)
        watermark = 0 if alone else self._config.watermark
        if not idle or not residents.pool.fits(matched, fresh, watermark - sum(len(seq.blocks) for seq in idle)):
            return False
        for seq in idle:
            residents.preempt(seq, Cause.PAUSED)
            if residents.fits(matched, fresh):
                return True
        return False  # they shared blocks with running ones, so fewer became free
