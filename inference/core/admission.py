"""Which waiting sequences get a slot and blocks, and from whom room is taken back for them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from inference.core.fairness import Turn
from inference.core.prefix import Key
from inference.core.resident import Cause, Residents
from inference.core.sequence import Sequence
from inference.core.waiting import WaitingQueue


class Admission:
    """Admits sequences in the order of their tenants' turns.

    An admission takes the blocks of all known tokens at once, so that two half-computed prompts can't block each other.
    One that doesn't fit is bypassed by those behind it, `max_bypass` times at most, and only by the next few tenants
    and the newest: what a step looks at doesn't grow with the number that waits. A tenant has what the order of turns
    gives it, its share of rows and blocks or more, as long as no tenant that was served less waits with less than its
    share: for that one, room is taken back (`reclaim`), as it is for any such from a tenant that has nothing waiting.
    """

    def __init__(self, residents: Residents, waiting: WaitingQueue[Sequence], clock: Callable[[], float]) -> None:
        self._residents = residents
        self._config = residents.config
        self._queue = waiting.queue
        self._clock = clock
        self._window = residents.config.max_bypass + 1
        self._blocked_state: tuple[object, ...] | None = None  # the state in which none could be admitted
        self._missing: set[Key] = set()  # prefixes of those that didn't fit, which may be published

    def tenants(self) -> list[str]:
        """Return the tenants of which one may be admitted next; none after `next` has found none that fits."""
        if self._state() == self._blocked_state:
            return []
        return [seq.tenant for seq in self._candidates()]

    def next(self, before: Turn | None = None, among: Container[str] | None = None) -> Sequence | None:
        """Admit the first sequence of the queue or, if it doesn't fit, one that may bypass it; None if none fits.

        With `before`, only when the first one's turn comes before that; with `among`, of these tenants only.
        """
        head = self._queue.peek()
        if head is None or (before is not None and self._queue.turn(head.tenant) >= before):
            return None
        state = self._state()
        if state == self._blocked_state:
            return None
        self._missing = set()
        is_first = tried_all = True
        for seq in self._candidates():
            if among is not None and seq.tenant not in among:
                tried_all = False
                continue
            if is_first and before is not None and self._queue.turn(seq.tenant) >= before:
                return None
            is_first = False
            if self.admit(seq, may_preempt=seq is head):
                if seq is not head and (among is None or head.tenant in among):
                    head.bypassed += 1
                return seq
        if tried_all:
            self._blocked_state = state
            self._residents.pool.awaited = self._missing
        return None

    def _state(self) -> tuple[object, ...]:
        """When none fits, none will until this changes.

        Blocks or a slot are freed, the queue changes, one pauses, or what one of them would share is published.
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
        matched = residents.match(seq)
        fresh = self._config.blocks_for(seq.known) - len(matched)
        if not residents.fits(matched, fresh) and not (may_preempt and self._preempt_paused(matched, fresh)):
            self._missing |= residents.missing(seq, matched)
            return False
        return self._place(seq, matched, fresh)

    def reclaim(self, *, in_flight: bool) -> bool:
        """Take room back for waiting tenants below their shares from tenants above theirs.

        From those that were served more, or have nothing waiting. A tenant with less than half of its share gets
        another row in each step; one with more, each `reclaim_seconds`, since tenants that always wait have now more
        and now less. Of the tenant that was served most, the sequences with the fewest computed tokens are preempted;
        nothing happens when all of those above the shares would not be enough. One that has waited `reclaim_seconds`
        takes what it lacks of its share from lower bands, whatever these have. With a step `in_flight` none is
        preempted: return True when one would have to be.
        """
        residents, queue = self._residents, self._queue
        rows = residents.bounds.rows
        above = [tenant for tenant in residents.shares.rows if residents.shares.is_above(tenant, rows)]
        head = queue.peek()
        if not above and (head is None or all(one.band >= head.band for one in residents.running)):
            return False
        for seq in self._candidates():
            if self._is_due(seq):
                matched = residents.match(seq)
                fresh = self._config.blocks_for(seq.known) - len(matched)
                if (
                    residents.shares.is_below(seq.tenant, rows, fresh)
                    and not residents.fits(matched, fresh)
                    and not (seq is head and self._preempt_paused(matched, fresh))
                    and (victims := self._victims(seq, above, matched, fresh))
                ):
                    if in_flight:
                        return True
                    if self._take_back(victims, matched, fresh) and self._place(seq, matched, fresh):
                        residents.shares.reclaimed_at[seq.tenant] = self._clock()
                        if seq is not head and head is not None:
                            head.bypassed += 1
        return False

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

    def _is_due(self, seq: Sequence) -> bool:
        """Whether its tenant has few rows, or has waited for more long enough."""
        shares = self._residents.shares
        return shares.has_few(seq.tenant, self._residents.bounds.rows) or self._has_waited(seq)

    def _has_waited(self, seq: Sequence) -> bool:
        since = max(seq.submitted_at, seq.preempted_at, self._residents.shares.reclaimed_at.get(seq.tenant, 0.0))
        return self._clock() - since >= self._config.reclaim_seconds

    def _victims(self, seq: Sequence, above: list[str], matched: list[int], fresh: int) -> list[Sequence]:
        """Return what to preempt so that `seq` fits; none when that is not enough."""
        residents, turn = self._residents, self._queue.turn
        shares, rows = residents.shares, residents.bounds.rows
        band, counter, _ = turn(seq.tenant)

        def lends(tenant: str) -> bool:
            # One of a higher band keeps what it has, and one that was served less and waits for more.
            theirs = turn(tenant)
            return theirs[:2] >= (band, counter) or (theirs[0] == band and not self._queue.waiting(tenant))

        lenders = sorted(filter(lends, above), key=turn, reverse=True)
        victims: list[Sequence] = []
        released, shared = 0, set(matched)

        def freed(victim: Sequence) -> int:
            # What `seq` would share with it is no gain.
            return residents.pool.exclusive([block for block in victim.blocks if block not in shared])

        for tenant in lenders:
            theirs = sorted((one for one in residents.running if one.tenant == tenant), key=lambda one: one.computed)
            given_blocks = 0
            for given_rows, victim in enumerate(theirs):
                if not shares.is_above(tenant, rows, given_rows, given_blocks):
                    break
                victims.append(victim)
                given_blocks += len(victim.blocks)
                released += freed(victim)
                if residents.pool.fits(matched, fresh, self._config.watermark - released):
                    return victims
        if not self._has_waited(seq):
            return []
        lower = [one for one in residents.running if turn(one.tenant)[0] > band and one not in victims]
        for victim in sorted(lower, key=lambda one: (turn(one.tenant), -one.computed), reverse=True):
            victims.append(victim)
            released += freed(victim)
            if residents.pool.fits(matched, fresh, self._config.watermark - released):
                return victims
        return []

    def _take_back(self, victims: list[Sequence], matched: list[int], fresh: int) -> bool:
        for victim in victims:
            self._residents.preempt(victim, Cause.FAIRNESS)
        return self._residents.fits(matched, fresh)

    def _place(self, seq: Sequence, matched: list[int], fresh: int) -> bool:
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
