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


def room_for(model, since, grants, holds, overdraft):
    """What a request of the model that began then may hold, by flow from grants to holds: `grants` are (µcr, end,
    models), the other `holds` (since, µcr, model), and `overdraft` µcr are there for all. None where the holds
    themselves aren't covered.
    """
    sources = [*grants, (overdraft, None, "")]
    sinks = [*holds, (since, FOREVER, model)]
    left, need = [one[0] for one in sources], [one[1] for one in sinks]
    moved = [[0] * len(sinks) for _ in sources]
    fits = [
        [(end is None or begun < end) and (not models or name in models.split("\n")) for begun, _, name in sinks]
        for _, end, models in sources
    ]

    def give(sink, amount, seen):
        """Find up to `amount` for the sink, also by finding others for a sink that has it: return how much."""
        for source, row in enumerate(fits):
            if not row[sink] or source in seen:
                continue
            seen.add(source)
            if part := min(left[source], amount):
                left[source] -= part
                moved[source][sink] += part
                return part
            for other, has in enumerate(moved[source]):
                if other != sink and has and (part := give(other, min(has, amount), seen)):
                    moved[source][other] -= part
                    moved[source][sink] += part
                    return part
        return 0

    for sink in range(len(sinks)):
        while need[sink] and (part := give(sink, need[sink], set())):
            need[sink] -= part
    return None if any(need[:-1]) else FOREVER - need[-1]


@dataclass
class Grant:
    id: object
    remaining: int
    order: tuple
    since: int = 0
    until: int = FOREVER
    models: tuple = ()


@dataclass
class Purse:
    posted: int = 0
    held: int = 0
    overdraft: int = 0
    grants: list = field(default_factory=list)

    def rests(self):
        """What is left of restricted grants, by their models."""
        models = {one.models for one in self.grants if one.models}
        return {some: sum(one.remaining for one in self.grants if one.models == some) for some in models}


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

    def elsewhere(self, wallet, model="", besides=None):
        """What is free of pools that the model isn't in."""
        free = 0
        for models, rest in self.purses[wallet].rests().items():
            mine = [(r, h) for r, h in self.holds.items() if h[0] == wallet and self.pins[r][2] in models]
            held = sum(amount for request, (_, amount, *_) in mine if request != besides)
            free += 0 if model in models else max(rest - held, 0)
        return free

    def room(self, wallet, model, besides=None):
        purse = self.purses[wallet]
        own = self.holds[besides][1] if besides else 0
        return purse.posted - purse.held + own + purse.overdraft - self.elsewhere(wallet, model, besides)

    def refused(self, wallet, model, room):
        purse = self.purses[wallet]
        others = sum(rest for models, rest in purse.rests().items() if model not in models)
        return Refused("wallet", room, purse.posted + purse.overdraft - others)

    def settled(self, charge, wallet):
        purse = self.purses[wallet]
        return Settled(charge, purse.posted, purse.held, self.elsewhere(wallet))

    def payers(self, purse, model):
        """The grants that a request of the model may be paid from: its own first, else in burn order."""
        return sorted(
            (g for g in purse.grants if not g.models or model in g.models), key=lambda g: (not g.models, g.order)
        )

    def apply(self, op):  # noqa: PLR0911 - one rule per operation
        self.now += 1
        if isinstance(op, Reserve):
            purse = self.purses[op.wallet]
            if op.request in self.holds:
                return Held(self.holds[op.request][1], self.room(op.wallet, self.pins[op.request][2]))
            room = self.room(op.wallet, op.model)
            take = min(op.amount, room)
            if room < 0 or take < op.least:
                return self.refused(op.wallet, op.model, room)
            purse.held += take
            self.holds[op.request] = [op.wallet, take, op.owner, self.now, {}]
            self.pin(op)
            return Held(take, self.room(op.wallet, op.model))
        if isinstance(op, Extend | Repin):
            if op.request not in self.holds:
                return Stale()
            purse, hold = self.purses[op.wallet], self.holds[op.request]
            before = self.pins[op.request][2]
            model = op.model if isinstance(op, Repin) else before
            reach = self.room(op.wallet, model, op.request)
            pools = [next((models for models, rest in purse.rests().items() if rest and one in models), ())
                     for one in (before, model)]  # fmt: skip
            if pools[0] == pools[1]:
                target = max(min(op.amount, reach), hold[1])
            else:
                target = min(max(op.amount, hold[1]), reach)
            if target < op.least:
                return self.refused(op.wallet, model, reach - hold[1])
            purse.held += target - hold[1]
            hold[1] = target
            if isinstance(op, Repin):
                self.pin(op)
            return Held(target, self.room(op.wallet, model))
        if isinstance(op, TrueUp | Refund | Rerate):
            return self.correct(op)
        if isinstance(op, Settle | Release):
            charge = op.charge if isinstance(op, Settle) else 0
            purse = self.purses[op.wallet]
            if op.request not in self.holds:
                latest = self.closed.get(op.request)
                same = latest is not None and latest.price == charge
                return self.settled(charge, op.wallet) if same else Stale()
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
            payers = self.payers(purse, self.pins[op.request][2])
            own = [g for g in payers if g.models]
            for one in (
                *(g for g in own if g in first), *(g for g in own if g in second),
                *(g for g in payers if g in first and not g.models),
                *(g for g in payers if g in second and not g.models),
            ):  # fmt: skip
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
            return self.settled(self.records[op.request][0], op.wallet)
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
        closed = self.closed.get(op.request)
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
                return self.settled(closed.charge, op.wallet) if same else Stale()
            closed.exact, closed.classes = True, dict(op.classes)
        elif closed.run == op.run:
            return self.settled(closed.charge, op.wallet)
        elif op.revision != len(self.revisions.get(op.request, [])):
            return Stale()
        else:
            closed.run, closed.pricing = op.run, (op.card_version, op.multiplier_bp)
        whole = closed.refunded > 0 and closed.charge == 0
        refunded = op.charge if whole else min(closed.refunded, op.charge)
        self.revise(op, closed, op.charge - refunded, refunded, 3 if isinstance(op, TrueUp) else 10)
        return self.settled(closed.charge, op.wallet)

    def revise(self, op, closed, charge, refunded, code):
        """What it costs more is taken, what it costs less undone from the end."""
        purse, difference = self.purses[op.wallet], charge - closed.charge
        closed.charge, closed.refunded = charge, refunded
        purse.posted -= difference
        by_id = {one.id: one for one in purse.grants}
        parts = []
        if difference > 0:
            for one in self.payers(purse, self.pins[op.request][2]):
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
