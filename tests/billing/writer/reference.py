"""What the writer must equal: one operation at a time over plain dictionaries, written without looking at it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from billing.writer.operations import (
    Extend,
    Held,
    Refused,
    Release,
    Renewed,
    Repin,
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
class Reference:
    purses: dict
    now: int = 0
    holds: dict = field(default_factory=dict)  # request → [wallet, amount, owner, moment, checkpoint]
    pins: dict = field(default_factory=dict)  # request → (deployment, card, model, facts), then the record's
    records: dict = field(default_factory=dict)  # request → (charge, classes, held)
    transfers: set = field(default_factory=set)  # (request, order, grant, amount)
    estimates: dict = field(default_factory=dict)  # request → [wallet, [(grant, amount) its charge was taken from]]
    corrections: dict = field(default_factory=dict)  # request → (charge, classes)
    true_ups: set = field(default_factory=set)  # (request, order, grant, signed amount for the wallet)

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
        if isinstance(op, TrueUp):
            return self.true_up(op)
        if isinstance(op, Settle | Release):
            charge = op.charge if isinstance(op, Settle) else 0
            purse = self.purses[op.wallet]
            if op.request not in self.holds:
                latest = self.corrections.get(op.request) or self.records.get(op.request)
                same = latest is not None and latest[0] == charge
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
            if isinstance(op, Settle) and not op.exact:
                self.estimates[op.request] = [op.wallet, taken]
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

    def true_up(self, op):
        """An estimate becomes exact once; what it was short of is taken, what was too much undone from its end."""
        purse = self.purses[op.wallet]
        if op.request in self.corrections and self.corrections[op.request][0] == op.charge:
            return Settled(op.charge, purse.posted, purse.held)
        if op.request not in self.estimates:
            return Stale()
        _, taken = self.estimates.pop(op.request)
        difference = op.charge - self.records[op.request][0]
        self.corrections[op.request] = (op.charge, dict(op.classes))
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
        else:
            excess = -difference
            for source, amount in reversed(taken):
                part = min(amount, excess)
                if part:
                    excess -= part
                    if source is not None:
                        by_id[source].remaining += part
                    parts.append((source, part))
        self.true_ups |= {(op.request, number, source, part) for number, (source, part) in enumerate(parts)}
        return Settled(op.charge, purse.posted, purse.held)
