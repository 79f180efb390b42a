"""What the writer must equal: one operation at a time over plain dictionaries, written without looking at it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from billing.writer.operations import (
    Extend,
    Held,
    Moved,
    Refund,
    Refused,
    Release,
    Renewed,
    Repin,
    Rerate,
    Reserve,
    Settle,
    Settled,
    Stale,
    TrueUp,
)

FOREVER = 10**9


@dataclass
class Grant:
    id: object
    remaining: int
    order: tuple
    since: int = 0
    until: int = FOREVER


@dataclass
class Purse:
    posted: int = 0
    held: int = 0
    overdraft: int = 0
    grants: list = field(default_factory=list)

    @property
    def available(self):
        return self.posted - self.held + self.overdraft


@dataclass
class Closed:
    """A closed request: its last revision, and what its charge stands on, the last taken last."""

    charge: int
    classes: dict
    exact: bool
    pricing: tuple
    taken: list
    refunded: int = 0
    run: object = None
    booked: int = 0  # transfers of its corrections

    @property
    def price(self):
        return self.charge + self.refunded


@dataclass
class Reference:
    purses: dict
    now: int = 0
    holds: dict = field(default_factory=dict)  # request → [wallet, amount, owner, moment, checkpoint]
    pins: dict = field(default_factory=dict)  # request → (deployment, card, model, facts), then the record's
    records: dict = field(default_factory=dict)  # request → (charge, classes, held)
    transfers: set = field(default_factory=set)  # (request, order, grant, amount)
    closed: dict = field(default_factory=dict)  # request → Closed
    revisions: dict = field(default_factory=dict)  # request → [(charge, refunded, classes, exact, card, multiplier)]
    corrections: set = field(default_factory=set)  # (request, code, order, grant, signed amount for the wallet)

    def apply(self, op):  # noqa: PLR0911 - one rule per operation
        self.now += 1
        if isinstance(op, Reserve):
            purse = self.purses[op.wallet]
            if op.request in self.holds:
                return Held(self.holds[op.request][1], purse.available)
            take = min(op.amount, purse.available)
            if purse.available < 0 or take < op.least:
                return Refused("wallet", purse.available, purse.available + purse.held)
            purse.held += take
            self.holds[op.request] = [op.wallet, take, op.owner, self.now, {}]
            self.pin(op)
            return Held(take, purse.available)
        if isinstance(op, Extend | Repin):
            if op.request not in self.holds:
                return Stale()
            purse, hold = self.purses[op.wallet], self.holds[op.request]
            reach = hold[1] + purse.available
            target = min(op.amount, reach)
            target = max(target, hold[1])
            if target < op.least:
                return Refused("wallet", purse.available, purse.available + purse.held)
            purse.held += target - hold[1]
            hold[1] = target
            if isinstance(op, Repin):
                self.pin(op)
            return Held(target, purse.available)
        if isinstance(op, TrueUp | Refund | Rerate):
            return self.correct(op)
        if isinstance(op, Settle | Release):
            charge = op.charge if isinstance(op, Settle) else 0
            purse = self.purses[op.wallet]
            if op.request not in self.holds:
                latest = self.closed.get(op.request)
                same = latest is not None and latest.price == charge
                return Settled(charge, purse.posted, purse.held) if same else Stale()
            _, amount, _, moment, _ = self.holds.pop(op.request)
            purse.held -= amount
            purse.posted -= charge
            if op.facts.route is not None:
                self.pins[op.request][3]["route"] = op.facts.route
            self.records[op.request] = (charge, dict(op.classes) if isinstance(op, Settle) else {}, amount)
            first = [g for g in purse.grants if g.since <= moment < g.until]
            second = [g for g in purse.grants if moment < g.since <= self.now < g.until]
            taken = []
            classes = dict(op.classes) if isinstance(op, Settle) else {}
            exact = not isinstance(op, Settle) or op.exact
            self.closed[op.request] = Closed(charge, classes, exact, (self.pins[op.request][1], 10_000), taken)
            number = 0
            for one in sorted(first, key=lambda g: g.order) + sorted(second, key=lambda g: g.order):
                part = min(charge, one.remaining)
                if part:
                    one.remaining -= part
                    charge -= part
                    self.transfers.add((op.request, number, one.id, part))
                    taken.append((one.id, part))
                    number += 1
            if charge:
                taken.append((None, charge))
                self.transfers.add((op.request, number, None, charge))
            return Settled(self.records[op.request][0], purse.posted, purse.held)
        renewed = set()
        for request, classes in op.checkpoints.items():
            if request in self.holds and self.holds[request][2] == op.owner:
                if classes:
                    self.holds[request][4] = dict(classes)
                renewed.add(request)
        return Renewed(frozenset(renewed))

    def pin(self, op):
        self.pins[op.request] = (op.deployment, op.card_version, op.model, msgspec.to_builtins(op.facts))

    def correct(self, op):  # noqa: PLR0911 - one rule per operation
        """An estimate becomes exact once; a request is given back what it was charged at most; another price is charged
        once by each run, and what was refunded of the old one stays so.
        """
        purse, closed = self.purses[op.wallet], self.closed.get(op.request)
        if closed is None:
            return Stale()
        if isinstance(op, Refund):
            if op.amount > closed.charge:
                return Refused("charge", closed.charge)
            self.revise(op, closed, closed.charge - op.amount, closed.refunded + op.amount, int(op.code))
            return Moved(op.amount)
        if isinstance(op, TrueUp):
            if closed.exact:
                same = op.request in self.revisions and closed.price == op.charge
                return Settled(closed.charge, purse.posted, purse.held) if same else Stale()
            closed.exact, closed.classes = True, dict(op.classes)
        elif closed.run == op.run:
            return Settled(closed.charge, purse.posted, purse.held)
        elif op.revision != len(self.revisions.get(op.request, [])):
            return Stale()
        else:
            closed.run, closed.pricing = op.run, (op.card_version, op.multiplier_bp)
        whole = closed.refunded > 0 and closed.charge == 0
        refunded = op.charge if whole else min(closed.refunded, op.charge)
        self.revise(op, closed, op.charge - refunded, refunded, 3 if isinstance(op, TrueUp) else 10)
        return Settled(closed.charge, purse.posted, purse.held)

    def revise(self, op, closed, charge, refunded, code):
        """What it costs more is taken, what it costs less undone from the end."""
        purse, difference = self.purses[op.wallet], charge - closed.charge
        closed.charge, closed.refunded = charge, refunded
        purse.posted -= difference
        by_id = {one.id: one for one in purse.grants}
        parts = []
        if difference > 0:
            for one in sorted(purse.grants, key=lambda g: g.order):
                if one.since <= self.now < one.until and one.remaining and difference:
                    part = min(one.remaining, difference)
                    one.remaining -= part
                    difference -= part
                    parts.append((one.id, -part))
            if difference:
                parts.append((None, -difference))
            closed.taken += [(source, -part) for source, part in parts]
        while difference < 0:
            source, amount = closed.taken.pop()
            part = min(amount, -difference)
            difference += part
            if part < amount:
                closed.taken.append((source, amount - part))
            if source is not None:
                by_id[source].remaining += part
            parts.append((source, part))
        for number, (source, part) in enumerate(parts, start=closed.booked):
            self.corrections.add((op.request, code, number, source, part))
        closed.booked += len(parts)
        revision = (charge, refunded, dict(closed.classes), closed.exact, *closed.pricing)
        self.revisions.setdefault(op.request, []).append(revision)
