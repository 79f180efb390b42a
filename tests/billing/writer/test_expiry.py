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
)

START = datetime(2030, 1, 1, tzinfo=UTC)
SOME = UUID(int=1)
LIVES = 1_500
KINDS = ("extend", "repin", "settle", "settle", "estimate", "release", "true-up", "void", "adjust", "roll")


class Books:
    """A wallet in memory: gives `decide` what a database would, and keeps what it writes."""

    def __init__(self, chance):
        self.chance = chance
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
            id=UUID(int=next(self.numbers)),
        )

    def schedule(self):
        begins = self.now + timedelta(seconds=self.chance.choice([1, 2]))
        ends = begins + timedelta(seconds=self.chance.choice([1, 3]))
        some, terms = UUID(int=next(self.numbers)), (None, None)
        if self.chance.random() < 0.7:
            terms = self.terms[some] = self.chance.choice([5, 20, 100]), ends + timedelta(seconds=2)
        self.scheduled.append(ScheduledRow(some, SOME, 40, begins, ends, 50, "plan", "", "", "", *terms))
        self.scheduled.sort(key=lambda one: one.begins_at)
        self.next_change = min(filter(None, (self.next_change, begins)))

    def reserve(self, amount):
        self.requests.append(uuid7())
        return Reserve(self.requests[-1], SOME, amount, 1, SOME, SOME, SOME, SOME, SOME, None, "m")

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
                return Repin(request, SOME, amount + self.chance.choice([0, 10, 500]), 0, SOME, SOME, "m")
            case "release":
                return Release(request, SOME)
            case "roll" | "void":
                return ExpireGrants(SOME)
            case "true-up":
                record = self.records.get(request)
                free = max(self.posted - self.held + self.limit - self.dead(), 0)
                return TrueUp(request, SOME, self.chance.randint(0, (record.charge if record else 0) + free), {})
            case how:
                return Settle(
                    request, SOME, self.chance.choice([amount, amount, amount // 2]), {}, exact=how == "settle"
                )

    def dead(self):
        return sum(one.remaining for one in self.grants.values() if one.has_ended_by(self.now))

    def flush(self, operations):
        wallet = WalletRow(SOME, self.posted, self.held, self.limit, True, self.next_change)
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
        for op, amount, _ in changes.reserved:
            self.holds[op.request] = HoldRow(op.request, SOME, 0, amount, SOME, self.now)
        for request, amount in changes.extended.items():
            self.holds[request].amount = amount
        for closing in changes.closed:
            request = closing.operation.request
            burns = [PostedBurn(burn.amount, burn.grant) for burn in changes.burns if burn.request == request]
            reserved_at = self.holds.pop(request).reserved_at
            self.records[request] = RecordRow(request, SOME, 0, closing.charge, closing.exact, reserved_at, burns=burns)
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


@pytest.mark.parametrize("seed", range(4))
def test_every_hold_can_be_paid_whenever_grants_end(seed):
    reserved = closed = rolled = lost = 0
    for life in range(LIVES):
        books = Books(random.Random(f"{seed}:{life}"))
        try:
            for _ in range(14):
                match books.chance.randint(0, 5):
                    case 0:
                        books.flush([books.grant()])
                    case 1 if books.chance.random() < 0.4:
                        books.schedule()
                    case 1 | 2:
                        books.now += timedelta(seconds=1)
                answers = books.flush([books.operation()])
                reserved += isinstance(answers[0], Held)
                closed += not isinstance(answers[0], Stale | Held)
                if books.chance.random() < 0.5:
                    books.check()
            rolled += len(books.rolled)
            lost += sum(amount > 0 for amount in books.lost.values())
        except AssertionError as error:
            error.add_note(f"in life {life} of seed {seed}")
            raise
    assert min(reserved, closed) > LIVES  # there was something to see
    assert min(rolled, lost) > LIVES / 100
