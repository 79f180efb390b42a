"""Thousands of short lives of a wallet through `decide` alone: every hold can be paid, whenever grants end."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from base.ids import uuid7
from billing.codes import Code
from billing.writer.decide import decide
from billing.writer.operations import (
    Adjust,
    ExpireGrants,
    Extend,
    Grant,
    Held,
    Refused,
    Release,
    Repin,
    Reserve,
    Settle,
    Stale,
    TrueUp,
    Void,
)
from billing.writer.view import (
    CREDIT,
    Demand,
    FollowUp,
    HoldRow,
    PostedBurn,
    RecordRow,
    ScheduledRow,
    View,
    WalletRow,
    models_in,
    read_pools,
)
from tests.billing.writer.reference import room_for

START = datetime(2030, 1, 1, tzinfo=UTC)
SOME = UUID(int=1)
LIVES = 1_500
KINDS = ("extend", "repin", "settle", "settle", "estimate", "release", "true-up", "void", "adjust", "roll")


class Books:
    """A wallet in memory: gives `decide` what a database would, and keeps what it writes."""

    def __init__(self, chance, restrictions=("",)):
        self.chance = chance
        self.restrictions = restrictions  # of grants; what they name overlaps here and there
        self.pools = ""
        self.refusals = 0
        self.now = START
        self.limit = chance.choice([0, 0, 25])
        self.posted = self.held = 0
        self.next_change = None
        self.grants = {}  # in burn order
        self.scheduled = []
        self.holds = {}
        self.requests = []
        self.records = {}
        self.numbers = itertools.count(1)
        self.terms = {}  # of grants that roll over: cap, until
        self.rolled = Counter()
        self.lost = Counter()

    def grant(self):
        seconds = self.chance.choice([None, 1, 2, 3])
        return Grant(
            wallet=SOME,
            amount=self.chance.choice([10, 40, 40]),
            kind=self.chance.choice(["promotional", "plan", "paid"]),
            priority=self.chance.choice([0, 50, 100]),
            expires_at=seconds and self.now + timedelta(seconds=seconds),
            key="",
            actor="",
            reason="",
            models=self.chance.choice(self.restrictions),
            id=UUID(int=next(self.numbers)),
        )

    def give(self):
        """Make a grant; one is refused only for what its models overlap with."""
        one = self.grant()
        present = [grant.models for grant in self.grants.values() if grant.remaining]
        present += [coming.models for coming in self.scheduled]
        clashes = [other for other in present if other != one.models and models_in(other) & models_in(one.models)]
        if clashes and not any(left.has_ended_by(self.now) for left in self.grants.values() if left.remaining):
            self.refusals += 1
            with pytest.raises(ValueError, match=r"^models: "):
                self.flush([one])
        elif not clashes:
            self.flush([one])

    def schedule(self):
        begins = self.now + timedelta(seconds=self.chance.choice([1, 2]))
        ends = begins + timedelta(seconds=self.chance.choice([1, 3]))
        models = self.chance.choice(self.restrictions)
        present = [*filter(None, (grant.models for grant in self.grants.values())), *(s.models for s in self.scheduled)]
        if any(other != models and models_in(other) & models_in(models) for other in present):
            models = ""  # the service refuses it
        some, terms = UUID(int=next(self.numbers)), (None, None)
        if self.chance.random() < 0.7:
            terms = self.terms[some] = self.chance.choice([5, 20, 100]), ends + timedelta(seconds=2)
        self.scheduled.append(ScheduledRow(some, SOME, 40, begins, ends, 50, "plan", "", "", models, "", *terms))
        self.scheduled.sort(key=lambda one: one.begins_at)
        self.next_change = min(filter(None, (self.next_change, begins)))

    def reserve(self, amount):
        self.requests.append(uuid7())
        return Reserve(self.requests[-1], SOME, amount, 1, SOME, SOME, SOME, SOME, SOME, None, self.model())

    def model(self):
        return self.chance.choice("mno")

    def room(self, model, besides=None):
        """What a request of the model may hold now, by the rows alone."""
        overdrawn = sum(one.remaining for one in self.grants.values()) - self.posted
        grants = [(one.remaining, one.expires_at, one.models) for one in self.grants.values()]
        for one in self.scheduled:
            if one.begins_at <= self.now:
                repaid = 0 if one.models else min(max(overdrawn, 0), one.amount)
                grants.append((one.amount - repaid, one.expires_at, one.models))
                overdrawn -= repaid
        holds = [(one.reserved_at, one.amount, one.model) for one in self.holds.values() if one is not besides]
        since = besides.reserved_at if besides else self.now
        return room_for(model, since, grants, holds, self.limit - overdrawn)

    def ask(self):
        """Apply an operation of a request; what it may hold is what the rows leave, and with restricted grants what
        they leave once pools have paid what they can of holds that others' ended credit was kept for, and credit has
        rolled over.
        """
        op = self.operation()
        is_rolling = any(one.rollover for one in (*self.grants.values(), *self.scheduled))
        if len(self.restrictions) > 1 or is_rolling or not isinstance(op, Reserve):
            self.flush([ExpireGrants(SOME)])
        hold = self.holds.get(getattr(op, "request", None))
        had, model = (hold.amount, hold.model) if hold else (0, getattr(op, "model", ""))
        room = self.room(getattr(op, "model", model), hold)
        [answer] = self.flush([op])
        match op, answer:
            case Reserve(), Held():
                assert answer.total == min(op.amount, room)
            case ((Reserve() | Extend() | Repin()), Refused()):
                assert answer.available == room - had < op.least - had, "refused with room left"
            case ((Extend() | Repin()), Held()) if answer.total < op.amount:
                assert answer.total == room
        if isinstance(answer, Held):
            assert answer.available == self.room(self.holds[op.request].model)
        return answer

    def operation(self):  # noqa: PLR0911 - one operation each
        if not self.requests or self.chance.random() < 0.35:
            return self.reserve(self.chance.choice([10, 40, 500]))
        request = self.chance.choice(self.requests[-4:])
        hold = self.holds.get(request)
        amount = hold.amount if hold else 0
        match self.chance.choice(KINDS):
            case "void" if self.grants:
                some = self.chance.choice([*self.grants])
                return Void(wallet=SOME, grant=some, key="", actor="", reason="")
            case "adjust":
                some, amount = UUID(int=next(self.numbers)), self.chance.choice([-500, -40, -10, 10])
                return Adjust(wallet=SOME, amount=amount, key="", actor="", reason="", grant=some)
            case "extend":
                return Extend(request, SOME, amount + self.chance.choice([10, 500]), 0)
            case "repin":
                raised, least = amount + self.chance.choice([0, 10, 500]), self.chance.choice([0, amount])
                return Repin(request, SOME, raised, least, SOME, SOME, self.model())
            case "release":
                return Release(request, SOME)
            case "roll" | "void":
                return ExpireGrants(SOME)
            case "true-up":
                record = self.records.get(request)
                most = record.charge + self.room(record.model) if record else 0
                return TrueUp(request, SOME, self.chance.randint(0, most), {})
            case how:
                return Settle(
                    request, SOME, self.chance.choice([amount, amount, amount // 2]), {}, exact=how == "settle"
                )

    def dead(self):
        return sum(one.remaining for one in self.grants.values() if one.has_ended_by(self.now))

    def flush(self, operations):
        wallet = WalletRow(SOME, self.posted, self.held, self.limit, True, self.next_change, kept_pools=self.pools)
        holds = {op.request for op in operations if not isinstance(op, CREDIT)} & self.holds.keys()
        view = View(self.now, {SOME: wallet}, {one: self.holds[one] for one in holds}, {SOME: [*self.grants.values()]})
        view.records = {op.request: self.records[op.request] for op in operations if
                        isinstance(op, TrueUp) and op.request in self.records}  # fmt: skip
        due = FollowUp.of(operations, Demand.of(operations), view).due
        view.add_open_holds(due, self.holds.values() if due else ())
        view.add_scheduled(self.scheduled if due else ())
        answers, changes = decide(operations, view)
        self.note_ends(changes)
        self.grants = {one.id: one for one in view.grants[SOME]}
        self.scheduled = [one for one in self.scheduled if one.id not in self.grants]
        self.posted, self.held, self.next_change = wallet.posted, wallet.held, wallet.next_grant_change_at
        self.pools = changes.pools.get(SOME, self.pools)
        for op, amount, _ in changes.reserved:
            self.holds[op.request] = HoldRow(op.request, SOME, 0, amount, SOME, self.now, model=op.model)
        for request, amount in changes.extended.items():
            self.holds[request].amount = amount
        for closing in changes.closed:
            request = closing.operation.request
            burns = [PostedBurn(burn.amount, burn.grant) for burn in changes.burns if burn.request == request]
            hold = self.holds.pop(request)
            found = RecordRow(request, SOME, 0, closing.charge, closing.exact, hold.reserved_at, burns=burns)
            found.model, self.records[request] = hold.model, found
        for one in changes.corrections:
            record = self.records[one.operation.request]
            record.revision, record.charge, record.is_exact = one.revision, one.operation.charge, True
        return answers

    def note_ends(self, changes):
        """Count what rolled over of each grant, and what was lost while more of it might have."""
        for one in changes.transfers:
            if one.code == Code.ROLLOVER and one.debit == "wallet":
                self.rolled[one.grant] += one.amount
        for grant, amount in changes.expired.values():
            cap, until = self.terms.get(grant.id, (0, self.now))
            if until > self.now:
                self.lost[grant.id] += amount
                assert not amount or self.rolled[grant.id] == cap, "lost below the cap"
        voided = {one.id for one in changes.voided.values()}
        self.terms = {some: terms for some, terms in self.terms.items() if some not in voided}

    def check(self):
        held = sum(hold.amount for hold in self.holds.values())
        assert self.held == held
        assert None not in map(self.room, "mn"), "an open hold can't be paid"
        self.check_pools()
        assert self.posted - held >= -self.limit, "an open hold can't be paid"
        dead = 0 if self.next_change and self.next_change <= self.now else self.dead()
        assert not dead, "what has ended stays, and nobody will look for it"
        ends = [one.expires_at for one in self.grants.values() if one.remaining and one.expires_at]
        assert not ends or (self.next_change and self.next_change <= min(ends))
        assert not self.scheduled or self.next_change <= self.scheduled[0].begins_at
        self.flush([ExpireGrants(SOME)])
        assert not self.scheduled or self.scheduled[0].begins_at > self.now
        assert self.posted - held >= -self.limit, "an open hold stood on credit that had ended"
        alive = sum(one.remaining for one in self.grants.values() if not one.has_ended_by(self.now))
        assert self.posted - held <= alive, "what has ended is free"
        assert all(self.rolled[some] <= terms[0] for some, terms in self.terms.items()), "beyond the cap"
        assert all(one.remaining <= one.amount for one in self.grants.values() if one.kind == "rollover")

    def check_pools(self):
        rests = {}
        for one in self.grants.values():
            if one.models and one.remaining:
                rests[one.models] = rests.get(one.models, 0) + one.remaining
        held = {
            models: sum(hold.amount for hold in self.holds.values() if hold.model in models.split("\n"))
            for models in rests
        }
        found = read_pools(self.pools)
        assert {models: (pool.rest, pool.held) for models, pool in found.items()} == {
            models: (rest, held[models]) for models, rest in rests.items()
        }
        names = [name for models in rests for name in models.split("\n")]
        assert len(names) == len(set(names)), "two pools have a model in common"


RESTRICTED = ("", "", "m", "m", "n\no", "n\no", "m\nn")


@pytest.mark.parametrize(
    ("seed", "restrictions", "lives"),
    [*((seed, ("",), LIVES) for seed in range(4)), *((seed, RESTRICTED, LIVES // 2) for seed in range(2))],
)
def test_every_hold_can_be_paid_whenever_grants_end(seed, restrictions, lives):
    reserved = closed = refusals = rolled = lost = 0
    for life in range(lives):
        books = Books(random.Random(f"{seed}:{life}"), restrictions)
        try:
            for _ in range(14):
                match books.chance.randint(0, 5):
                    case 0:
                        books.give()
                    case 1 if books.chance.random() < 0.4:
                        books.schedule()
                    case 1 | 2:
                        books.now += timedelta(seconds=1)
                answer = books.ask()
                reserved += isinstance(answer, Held)
                closed += not isinstance(answer, Stale | Held)
                if books.chance.random() < 0.5:
                    books.check()
            refusals += books.refusals
            rolled += len(books.rolled)
            lost += sum(amount > 0 for amount in books.lost.values())
        except AssertionError as error:
            error.add_note(f"in life {life} of seed {seed}")
            raise
    assert min(reserved, closed) > lives  # there was something to see
    assert (refusals > lives // 10) is (len(restrictions) > 1)
    assert min(rolled, lost) > lives / 100
