"""A wallet's grants: given, ended by time or by hand, and burnt in one order.

Why no wallet falls below its limit by time alone: a hold may burn every grant that had not ended when it was made
(`burnable`), so an earlier hold may burn whatever a later one may. As long as the holds made at or after any moment
have no more than the grants that ended later, every hold can be paid. A reserve keeps that, since it stands on what is
free once each ended grant has lost all that no hold can need; a charge keeps it, since it burns ended grants before
live ones; and expiry keeps it, since what it leaves covers as much of the holds as can be covered.

A *pool* is what is left of the grants that are restricted to the same models. Two pools of a wallet have no model in
common, so holds are covered in two layers, each of them by that rule: those of a pool's models by the pool, the latest
first, and what is then lacking, like the holds of all other models, by the grants for every model. A hold stands on
what both layers leave (`WalletRow.available_for`), and its charge is taken from each as far as that covers it.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from base.ids import uuid7
from base.units import format_credits
from billing.codes import Code
from billing.writer.changes import Changes, NewGrant, Transfer
from billing.writer.operations import Adjust, Grant, Moved, Refused, Void
from billing.writer.view import GrantRow, HoldRow, Pool, View, WalletRow, models_in, overlapping

ROLLOVER = "rollover"
GIFTS = ("promotional", "goodwill")
ISSUANCE = {
    "promotional": "issuance_promo",
    "goodwill": "issuance_goodwill",
    "plan": "issuance_plan",
    "paid": "issuance_paid",
    ROLLOVER: ROLLOVER,
}
"""The ledger account that a kind of grant comes from. Credit that rolls over passes through its own."""

ADJUSTMENT = "adjustment"

MAX_POSTED = 10**18
"""µcr: far above any use, and so far below 2⁶³ that no sum of a wallet becomes a floating-point number on SQLite."""

MOST_OPEN_GRANTS = 1000
"""Grants with credit left with which a wallet gets no further gift: a charge makes a transfer for each that
it is taken from, in one transaction that nobody should wait for. All other credit always comes in.
"""

MOST_POOLS = 32
"""Sets of models that a wallet's grants are restricted to at the same time: every hold looks at each."""

Ended = tuple[UUID, datetime | None, int, str]
"""A grant that has ended: id, end, µcr left, the models it is restricted to."""

Open = tuple[datetime, int, str, UUID]
"""An open hold: when it was reserved, its amount, model and request."""


def roll(wallet: WalletRow, view: View, changes: Changes) -> int:
    """Give the wallet its scheduled grants that begin by now, as far as it may hold so much, roll over or move to
    breakage what no open hold can need of its ended ones, and return the µcr that went to breakage.
    """
    if wallet.id not in view.open_holds:
        return 0
    waiting = view.scheduled.get(wallet.id, [])
    while waiting and waiting[0].begins_at <= view.now:
        one = waiting.pop(0)
        changes.begun.append(one.id)
        if (amount := min(one.amount, MAX_POSTED - wallet.posted)) <= 0:
            continue
        row = GrantRow(
            *(one.id, one.wallet, amount, one.begins_at, one.expires_at, amount, False, one.priority, one.kind),
            *(one.models, one.rollover, one.rollover_until),
        )
        made = NewGrant(row, one.source, one.paid_amount, one.currency, one.paid_reference)
        _give(made, _filling(row, one.source, one.actor, one.reason), wallet, view, changes)
    count_pools(wallet, view, changes)
    ended = _ended(wallet, view)
    kept = kept_for_holds(_as_ended(ended), _holds(wallet, view), _rests(wallet))
    lost = 0
    for grant in ended:
        if part := grant.remaining - kept[grant.id]:
            over = rolling_over(grant, part, view.now)
            changes.expire(grant, part - over, wallet)
            lost += part - over
            if over:
                _roll_over(grant, over, wallet, view, changes)
    return lost


class Rolling(Protocol):
    """What decides how much of a grant rolls over."""

    @property
    def rollover(self) -> int | None: ...

    @property
    def rollover_until(self) -> datetime | None: ...


def rolling_over(grant: Rolling, free: int, now: datetime) -> int:
    """Return how much of what is `free` of a grant that has ended becomes a rollover."""
    until = grant.rollover_until
    return 0 if until is None or until <= now else min(free, grant.rollover or 0)


def _roll_over(ended: GrantRow, amount: int, wallet: WalletRow, view: View, changes: Changes) -> None:
    """Let `amount` µcr of a grant that has ended go on as a grant of their own."""
    end = ended.expires_at
    assert end is not None, "it has ended"
    changes.roll_over(ended, amount, wallet)
    out = (0, None, None, "sluice", "")
    changes.transfers.append(Transfer(Code.ROLLOVER, wallet.id, "wallet", ROLLOVER, amount, ended.id, end, *out))
    terms = (amount, False, ended.priority, ROLLOVER, ended.models)
    row = GrantRow(uuid7(), wallet.id, amount, end, ended.rollover_until, *terms)
    filling = Transfer(Code.ROLLOVER, wallet.id, ROLLOVER, "wallet", amount, row.id, end, *out)
    _give(NewGrant(row, f"rollover:{ended.id}"), filling, wallet, view, changes)


def give(op: Grant, view: View, changes: Changes) -> Moved:
    """Return the answer to a Grant, and note it in `changes`; ValueError that names the field where it can't be."""
    wallet = view.wallet(op.wallet)
    roll(wallet, view, changes)
    if op.expires_at is not None and op.expires_at <= view.now:
        raise ValueError("expires_at: must be in the future")
    row = GrantRow(
        *(op.id, op.wallet, op.amount, view.now, op.expires_at, op.amount, False, op.priority, op.kind),
        *(op.models, op.rollover, op.rollover_until),
    )
    made = NewGrant(row, op.source, op.paid_amount, op.currency, op.paid_reference)
    _check_room(row, wallet, view)
    check_pool(op.models, [*_rests(wallet), *(one.models for one in view.scheduled.get(wallet.id, ()))])
    _give(made, _filling(row, op.key, op.actor, op.reason), wallet, view, changes)
    return Moved(op.amount)


def void(op: Void, view: View, changes: Changes) -> Moved:
    """Return the answer to a Void, and note it in `changes`.

    Every open hold was made before this, whatever the clocks say: the grant must have been live for each.
    """
    wallet = view.wallet(op.wallet)
    roll(wallet, view, changes)
    present = _with_credit(wallet, view)
    voided = next((grant for grant in present if grant.id == op.grant and not grant.has_ended_by(view.now)), None)
    if voided is None:
        return Moved(0)
    earlier = _ended(wallet, view)
    holds, end = _holds(wallet, view), voided.expires_at
    voided.expires_at = max([view.now, *(reserved_at + timedelta(microseconds=1) for reserved_at, *_ in holds)])
    kept = kept_for_holds(_as_ended([*earlier, voided]), holds, _rests(wallet))
    taken = voided.remaining - kept[voided.id]
    if is_part := op.most is not None and op.most < voided.remaining:
        taken, voided.expires_at = min(taken, op.most), end
    if taken:
        code = Code.REFUND if op.is_refund else Code.VOID
        _take_out(op, taken, voided, wallet, changes, to=ISSUANCE[voided.kind], code=code, key=op.key)
        changes.move(wallet, posted=-taken)
    if not is_part:
        voided.is_voided, voided.rollover = not voided.remaining, None
        changes.voided[voided.id] = voided
    return Moved(taken)


def adjust(op: Adjust, view: View, changes: Changes) -> Moved | Refused:
    """Return the answer to an Adjust, and note it in `changes`: what it takes is taken from grants for every model
    first, and from others only what is free of their pools.
    """
    wallet = view.wallet(op.wallet)
    roll(wallet, view, changes)
    if op.amount > 0:
        row = GrantRow(op.grant, op.wallet, op.amount, view.now, None, op.amount, is_voided=False)
        _check_room(row, wallet, view)
        filling = _filling(row, op.key, op.actor, op.reason, code=Code.ADJUSTMENT, source=ADJUSTMENT)
        _give(NewGrant(row, "adjustment"), filling, wallet, view, changes)
        return Moved(op.amount)
    room = {models: pool.free for models, pool in wallet.pools.items()}
    room[""] = max(wallet.posted - wallet.held - wallet.restricted, 0)
    left, parts = -op.amount, []
    for grant in sorted(_with_credit(wallet, view), key=lambda one: one.models != ""):
        part = 0 if grant.has_ended_by(view.now) else min(left, grant.remaining, room[grant.models])
        if part:
            parts.append((grant, part))
            left, room[grant.models] = left - part, room[grant.models] - part
    if left:
        return Refused("wallet", -op.amount - left)
    for order, (grant, part) in enumerate(parts):
        key = f"{op.key}:{order}" if order else op.key
        _take_out(op, part, grant, wallet, changes, to=ADJUSTMENT, code=Code.ADJUSTMENT, key=key, order=order)
    changes.move(wallet, posted=op.amount)
    return Moved(-op.amount)


def note_next_changes(view: View, changes: Changes) -> None:
    """Note when the next grant ends or begins of each wallet where one did: in the past while holds keep some of it."""
    for identifier in view.open_holds:
        ends = [grant.expires_at for grant in view.grants.get(identifier, ()) if grant.remaining and grant.expires_at]
        begins = [one.begins_at for one in view.scheduled.get(identifier, ())]
        changes.note_next_change(view.wallets[identifier], min(ends + begins, default=None))


def kept_for_holds(ended: Sequence[Ended], holds: Iterable[Open], rests: Mapping[str, int]) -> dict[UUID, int]:
    """Return per ended grant how much of it the open holds may need; `rests` are what is left of each pool, that of its
    ended grants included.

    A hold counts for a grant if it was made before the grant's end, and only once over all grants: together they keep
    no more than these holds have, and as much of it as can be. Earlier grants in the order given keep first. Of grants
    for every model, holds need what their pools don't cover.
    """
    need = _Need(holds)
    kept = need.fill_from_pools(ended, rests)
    return kept | {one: need.fill(left, end) for one, end, left, models in ended if not models}


class _Need:
    """What open holds need that no grant covers yet, the latest hold first: earlier ones may burn more grants."""

    def __init__(self, holds: Iterable[Open]) -> None:
        self._latest_first = sorted(holds, reverse=True)
        self._left = [amount for _, amount, _, _ in self._latest_first]

    def fill(self, amount: int, end: datetime | None, models: str = "") -> int:
        """Return how much holds need of so many µcr, which are there for those made before the end, of the models."""
        left, names = amount, models_in(models)
        for position, (reserved_at, _, model, _) in enumerate(self._latest_first):
            if left and (end is None or reserved_at < end) and (not names or model in names):
                part = min(left, self._left[position])
                self._left[position] -= part
                left -= part
        return amount - left

    def fill_from_pools(self, ended: Sequence[Ended], rests: Mapping[str, int]) -> dict[UUID, int]:
        """Cover what the pools do, and return how much of each of their ended grants that takes."""
        kept = {}
        for pool, rest in rests.items():
            live = rest
            for identifier, end, left, models in ended:
                if models == pool:
                    kept[identifier] = self.fill(left, end, models)
                    live -= left
            self.fill(live, None, pool)
        return kept

    def covered(self, request: UUID) -> int:
        """Return how much of the request's hold is covered."""
        found = zip(self._latest_first, self._left, strict=True)
        return next(amount - left for (_, amount, _, one), left in found if one == request)


def burnable(hold: HoldRow, wallet: WalletRow, view: View) -> Iterator[tuple[GrantRow, int]]:
    """Yield the grants that a charge under the hold is taken from, in order, each with the most that may be.

    First the grants that ended since the hold was made, by their end: no later hold can burn them. Then the live ones
    that the hold was made over, then the live ones that came after it, both in burn order. All that for the grants of
    the hold's pool, then for those that are for every model: of what the latter have kept past their end, another hold
    could burn nothing, so while there is something, the pool pays what it covers of this hold, and the rest at last.
    """
    ended: list[GrantRow] = []
    before: list[GrantRow] = []
    since: list[GrantRow] = []
    for grant in view.grants.get(hold.wallet, ()):
        if not grant.has_ended_by(view.now):
            (before if grant.effective_at <= hold.reserved_at else since).append(grant)
        elif not grant.has_ended_by(hold.reserved_at):
            ended.append(grant)
    if ended:
        ended.sort(key=lambda grant: grant.expires_at or view.now)
    ordered = [*ended, *before, *since]
    if not wallet.pools:
        yield from [(grant, grant.remaining) for grant in ordered]
        return
    pool = wallet.pool_of(hold.model)
    mine = [grant for grant in ordered if pool and grant.models == pool]
    left = hold.amount
    if mine and wallet.id in view.open_holds and (all_ended := _ended(wallet, view)):
        need = _Need(_holds(wallet, view))
        need.fill_from_pools(_as_ended(all_ended), _rests(wallet))
        left = need.covered(hold.id)
    elif mine:
        left = wallet.pools[pool].rest
    for grant in mine:
        most = min(left, grant.remaining)
        yield grant, most
        left -= most
    for grant in [*(grant for grant in ordered if not grant.models), *mine]:
        yield grant, grant.remaining


def moved(hold: HoldRow, model: str, wallet: WalletRow, view: View) -> WalletRow:
    """Return the wallet as it would be if the hold were one of a model in another pool, and took all that it may: less
    what is kept of ended grants for it alone, as it is, and then for none.
    """
    pools = {models: Pool(pool.rest, pool.held) for models, pool in wallet.pools.items()}
    found = replace(wallet, counted_pools=pools)
    if wallet.id in view.open_holds and (ended := _ended(wallet, view)):
        others = [one for one in _holds(wallet, view) if one[-1] != hold.id]
        holds = [*others, (hold.reserved_at, MAX_POSTED, model, hold.id)]
        kept = kept_for_holds(_as_ended(ended), holds, _rests(wallet))
        for grant in ended:
            free_of = grant.remaining - kept[grant.id]
            lost = free_of - rolling_over(grant, free_of, view.now)
            found.posted -= lost
            if grant.models:
                pools[grant.models].rest -= lost
    return found


def for_model(model: str, grants: Sequence[GrantRow]) -> Sequence[GrantRow]:
    """Return the grants that a request of the model may be paid from, those restricted to it first."""
    mine = [grant for grant in grants if grant.models and model in models_in(grant.models)]
    return [*mine, *(grant for grant in grants if not grant.models)]


def count_pools(wallet: WalletRow, view: View, changes: Changes) -> None:
    """Count the wallet's pools by its grants and open holds, which have been read."""
    found: dict[str, Pool] = {}
    for grant in _with_credit(wallet, view):
        if grant.models:
            found.setdefault(grant.models, Pool(0, 0)).rest += grant.remaining
    if found or wallet.pools:
        for models, pool in found.items():
            holds = view.open_holds[wallet.id].values()
            pool.held = sum(hold.amount for hold in holds if hold.model in models_in(models))
        if found != wallet.pools:
            wallet.counted_pools = found
            changes.pooled.add(wallet.id)


def clashing(models: str, wallet: WalletRow, view: View) -> str | None:
    """Return which pool, or scheduled grant, names some of these models without naming the same; None where none."""
    coming = (one.models for one in view.scheduled.get(wallet.id, ()))
    return overlapping(models, [*_rests(wallet), *coming]) if models else None


def check_pool(models: str, others: Iterable[str]) -> None:
    """Raise ValueError where no grant can be restricted to these models beside those that are restricted to others."""
    present = {one for one in others if one}
    if not models or models in present:
        return
    if (other := overlapping(models, present)) is not None:
        names = ", ".join(sorted(models_in(other)))
        raise ValueError(
            f"models: credit for {names} alone is left or coming, and two sets of models are the same or have none in "
            "common: name exactly those, or void that grant first"
        )
    if len(present) >= MOST_POOLS:
        raise ValueError(f"models: the wallet has credit for {MOST_POOLS} sets of models; name one of those")


def _filling(
    grant: GrantRow, key: str, actor: str, reason: str, *, code: Code = Code.GRANT, source: str = ""
) -> Transfer:
    """Return the transfer that fills a new grant from its issuance account, or from `source`."""
    debit, said = source or ISSUANCE[grant.kind], (0, None, key, actor, reason)
    return Transfer(code, grant.wallet, debit, "wallet", grant.amount, grant.id, grant.effective_at, *said)


def _give(made: NewGrant, filling: Transfer, wallet: WalletRow, view: View, changes: Changes) -> None:
    """Add a grant to the wallet, and repay from it what the wallet is overdrawn by: through the adjustment account, out
    of the grant, then into the wallet without a grant. A restricted one repays nothing: other models may have made it.
    """
    grant = made.row
    present = view.grants.setdefault(wallet.id, [])
    overdrawn = sum(one.remaining for one in present) - wallet.posted
    bisect.insort(present, grant, key=operator.attrgetter("order"))
    changes.given.append(made)
    changes.transfers.append(filling)
    changes.move(wallet, posted=grant.amount)
    if grant.models:
        count_pools(wallet, view, changes)
    elif repaid := min(max(overdrawn, 0), grant.amount):
        changes.take(grant, repaid, wallet)
        code, now = Code.OVERDRAFT_REPAID, changes.now
        changes.transfers += (
            Transfer(code, wallet.id, "wallet", ADJUSTMENT, repaid, grant.id, now),
            Transfer(code, wallet.id, ADJUSTMENT, "wallet", repaid, None, now, order=1),
        )


def _take_out(
    op: Void | Adjust,
    amount: int,
    grant: GrantRow,
    wallet: WalletRow,
    changes: Changes,
    *,
    to: str,
    code: Code,
    key: str,
    order: int = 0,
) -> None:
    """Take `amount` µcr from a grant, and transfer them out of the wallet."""
    changes.take(grant, amount, wallet)
    said = (order, None, key, op.actor, op.reason)
    changes.transfers.append(Transfer(code, op.wallet, "wallet", to, amount, grant.id, changes.now, *said))


def _check_room(grant: GrantRow, wallet: WalletRow, view: View) -> None:
    """Raise ValueError where the wallet can't take the grant."""
    if wallet.posted + grant.amount > MAX_POSTED:
        raise ValueError(f"amount: a wallet holds at most {format_credits(MAX_POSTED, separator=',')} credits")
    present = len(_with_credit(wallet, view))
    if present >= MOST_OPEN_GRANTS and grant.kind in GIFTS:
        raise ValueError(f"wallet: it has {present} grants with credit left; only paid credit and its plan's come in")


def _with_credit(wallet: WalletRow, view: View) -> list[GrantRow]:
    return [grant for grant in view.grants.get(wallet.id, ()) if grant.remaining]


def _ended(wallet: WalletRow, view: View) -> list[GrantRow]:
    return [grant for grant in _with_credit(wallet, view) if grant.has_ended_by(view.now)]


def _as_ended(grants: Iterable[GrantRow]) -> list[Ended]:
    return [(grant.id, grant.expires_at, grant.remaining, grant.models) for grant in grants]


def _rests(wallet: WalletRow) -> dict[str, int]:
    """Return what is left of each of the wallet's pools."""
    return {models: pool.rest for models, pool in wallet.pools.items() if pool.rest}


def _holds(wallet: WalletRow, view: View) -> list[Open]:
    """Return the wallet's open holds."""
    holds = view.open_holds[wallet.id].values()
    return [(hold.reserved_at, hold.amount, hold.model, hold.id) for hold in holds]
