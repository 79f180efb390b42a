"""The decision of a flush: answers and writes, from values read under the lock; the same for both databases.

Operations are decided in the order of their arrival. Every wallet is locked, and each operation sees what the ones
before it changed, so a flush of many gives the same answers and rows as a transaction for each.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from billing.writer.changes import Burn, Changes, Closing, counted
from billing.writer.corrections import refund, rerate, true_up
from billing.writer.grants import adjust, burnable, give, moved, note_next_changes, roll, void
from billing.writer.operations import (
    Adjust,
    Answer,
    ExpireGrants,
    Extend,
    Grant,
    GrantsExpired,
    Held,
    Locked,
    Operation,
    Refund,
    Refused,
    Release,
    Renew,
    Renewed,
    Repin,
    Rerate,
    Reserve,
    Settle,
    Settled,
    Stale,
    TrueUp,
    Void,
)
from billing.writer.view import HELD, HoldRow, View, WalletRow, names_in, parts_of

LONGEST = {"endpoint": 40, "task": 40, "end_user": 64, "kept": 32}
"""The most characters of a RequestFacts' texts: those of the usage record's columns."""


def decide(operations: Sequence[Operation], view: View) -> tuple[list[Answer | Locked], Changes]:
    """Return one answer per operation, and everything to be written.

    `view` is changed as if the operations were applied, and must not be used again. Raises ValueError for an operation
    that can never be applied, naming it; the caller then applies the others without it.
    """
    changes = Changes(now=view.now, booked_at=view.booked_at)
    answers: list[Answer | Locked] = [
        Locked() if view.is_locked(operation) else _RULES[type(operation)](operation, view, changes)
        for operation in operations
    ]
    note_next_changes(view, changes)
    for wallet in changes.counted:
        changes.keep_windows(view.wallets[wallet])
    for wallet in changes.pooled:
        changes.keep_pools(view.wallets[wallet])
    return answers, changes


def _reserve(op: Reserve, view: View, changes: Changes) -> Answer:
    _check(op)
    wallet = view.wallet(op.wallet)
    hold = view.holds.get(op.request)
    if hold is not None:  # repeated: the answer got lost; an extension may have raised the hold since
        _check_wallet(op.request, hold, op.wallet)
        return Held(hold.amount, wallet.available_for(hold.model))
    if not wallet.is_open:
        return Refused("wallet_frozen", 0)
    roll(wallet, view, changes)
    text = op.budgets.windows(view.now)
    windows = names_in(text)
    amount = min(op.amount, _room(wallet, windows, op.model))
    if amount < op.least:  # also when the wallet is overdrawn beyond its limit, since `least` is never negative
        return _refused(_rooms(wallet, windows, op.model), op.least)
    changes.move(wallet, held=amount, model=op.model)
    if windows:
        changes.count(wallet, windows, held=amount)
    named = text or None
    changes.reserved.append((op, amount, named))
    view.open_hold(HoldRow(op.request, op.wallet, HELD, amount, op.owner, view.now, named, op.model))
    return Held(amount, wallet.available_for(op.model))


def _extend(op: Extend | Repin, view: View, changes: Changes) -> Answer:
    _check(op)
    wallet = view.wallet(op.wallet)
    hold = view.holds.get(op.request)
    if hold is None or hold.state != HELD:
        return Stale()
    _check_wallet(op.request, hold, op.wallet)
    roll(wallet, view, changes)
    windows = names_in(hold.windows or "")
    model = op.model if isinstance(op, Repin) else hold.model
    pools = {wallet.pool_of(hold.model), wallet.pool_of(model)}
    is_moved = len(pools) > 1 and any(wallet.pools[pool].rest for pool in pools if pool)
    found = moved(hold, model, wallet, view) if is_moved else wallet
    room = _room(found, windows, model, hold)
    amount = min(max(op.amount, hold.amount), room) if is_moved else max(min(op.amount, room), hold.amount)
    if amount < op.least:
        return _refused(_rooms(found, windows, model, hold), op.least)
    if amount != hold.amount or len(pools) > 1:
        changes.move(wallet, held=-hold.amount, model=hold.model)
        changes.move(wallet, held=amount, model=model)
        if windows:
            changes.count(wallet, windows, held=amount - hold.amount)
        hold.amount = changes.extended[op.request] = amount
    if isinstance(op, Repin):
        changes.repinned[op.request] = op
        hold.model = model
    if is_moved:
        roll(wallet, view, changes)  # what was kept for it of another pool's ended grants
    return Held(amount, wallet.available_for(model))


class _Room(NamedTuple):
    """The µcr that a hold may take of one limit now, and that it might if all open holds gave back what they have."""

    now: int
    freed: int
    limit: str
    budget: int = 0


def _room(wallet: WalletRow, windows: Sequence[str], model: str, hold: HoldRow | None = None) -> int:
    """Return the µcr that a request of the model may hold in all, under all limits; `hold` is what it has by now."""
    present = 0 if hold is None else hold.amount
    room = wallet.available_for(model, hold)
    if not wallet.is_open:
        return min(room, present)
    if windows:
        found = wallet.windows
        for name in windows:
            count = found.get(name)
            if count is not None and count.is_hard and count.limit is not None:
                room = min(room, present + count.limit - count.spent - count.held)
    return room


def _rooms(wallet: WalletRow, windows: Sequence[str], model: str, hold: HoldRow | None = None) -> list[_Room]:
    """Return what each limit leaves, beyond its `hold`, for a request of the model: ``wallet`` or ``wallet_frozen``,
    and those of hard budgets in these windows. A soft budget, and one whose limit was lifted, leaves everything; so
    does one that doesn't exist.
    """
    if not wallet.is_open:
        return [_Room(0, 0, "wallet_frozen")]
    free = wallet.available_for(model, hold) - (0 if hold is None else hold.amount)
    rooms = [_Room(free, wallet.freed_for(model), "wallet")]
    for name in windows:
        count = wallet.windows.get(name)
        if count is not None and count.is_hard and count.limit is not None:
            rest = count.limit - count.spent
            rooms.append(_Room(rest - count.held, rest, "budget", parts_of(name)[0]))
    return rooms


def _refused(rooms: Sequence[_Room], least: int) -> Refused:
    """Return the answer to a hold of `least` µcr for which there is no room: it names the limit that will stand whoever
    gives back what is held, or where none will, the narrowest now.
    """
    lasting = min(rooms, key=operator.attrgetter("freed"))
    named = lasting if lasting.freed < least else min(rooms)
    return Refused(named.limit, named.now, lasting.freed, named.budget)


def _expire(op: ExpireGrants, view: View, changes: Changes) -> Answer:
    wallet = view.wallet(op.wallet)
    return GrantsExpired(roll(wallet, view, changes), wallet.posted, wallet.held)


def _renew(op: Renew, view: View, changes: Changes) -> Answer:
    renewed = set()
    for request, checkpoint in op.checkpoints.items():
        hold = view.holds.get(request)
        if hold is not None and hold.state == HELD and hold.owner == op.owner:
            changes.renewed[request] = counted(request, checkpoint) or changes.renewed.get(request, {})
            renewed.add(request)
    return Renewed(frozenset(renewed), view.locked & op.checkpoints.keys())


def _settle(op: Settle, view: View, changes: Changes) -> Answer:
    if op.charge < 0:
        raise ValueError(f"settle {op.request}: a negative charge")
    counted(op.request, op.classes)
    wallet = view.wallet(op.wallet)
    hold = view.holds.get(op.request)
    if hold is None:
        return _closed_before(op.request, op.charge, wallet, view)
    _close(Closing(op, op.charge, op.exact), hold, wallet, view, changes)
    return Settled(op.charge, wallet.posted, wallet.held, wallet.restricted)


def _release(op: Release, view: View, changes: Changes) -> Answer:
    wallet = view.wallet(op.wallet)
    hold = view.holds.get(op.request)
    if hold is None:
        return _closed_before(op.request, 0, wallet, view)
    _close(Closing(op, 0, exact=True), hold, wallet, view, changes)
    return Settled(0, wallet.posted, wallet.held, wallet.restricted)


def _close(closing: Closing, hold: HoldRow, wallet: WalletRow, view: View, changes: Changes) -> None:
    op, charge = closing.operation, closing.charge
    _check_wallet(op.request, hold, op.wallet)
    changes.burns += _burn(charge, hold, wallet, view, changes)
    changes.move(wallet, posted=-charge, held=-hold.amount, model=hold.model)
    if hold.windows:
        changes.count(wallet, names_in(hold.windows), held=-hold.amount, spent=charge)
    changes.closed.append(closing)
    view.close_hold(hold)
    view.charges[op.request] = charge
    roll(wallet, view, changes)


def _burn(charge: int, hold: HoldRow, wallet: WalletRow, view: View, changes: Changes) -> Iterator[Burn]:
    """Yield the transfers of a charge: from the grants that the hold may burn; the rest is overdraft."""
    left, order = charge, 0
    for grant, most in burnable(hold, wallet, view):
        part = min(left, most)
        if part:
            changes.take(grant, part, wallet)
            yield Burn(hold.wallet, hold.id, order, part, grant.id)
            left, order = left - part, order + 1
    if left:
        yield Burn(hold.wallet, hold.id, order, left, None)


def _check(op: Reserve | Extend | Repin) -> None:
    """Raise ValueError where it could never be applied, or where its facts fit no usage record: that would be refused
    only after the request ran.
    """
    what = type(op).__name__.lower()
    if op.amount < 0 or op.least < 0:
        raise ValueError(f"{what} {op.request}: a negative amount")
    if isinstance(op, Extend):
        return
    for name, longest in LONGEST.items():
        if len(getattr(op.facts, name)) > longest:
            raise ValueError(f"{what} {op.request}: {name} has more than {longest} characters")


def _closed_before(request: UUID, charge: int, wallet: WalletRow, view: View) -> Answer:
    """Return the answer for a hold that isn't open: Settled if it was closed with this very charge, else Stale."""
    if view.charges.get(request) == charge:
        return Settled(charge, wallet.posted, wallet.held, wallet.restricted)
    return Stale()


def _check_wallet(request: UUID, hold: HoldRow, wallet: UUID) -> None:
    if hold.wallet != wallet:
        raise ValueError(f"request {request}: its hold is on wallet {hold.wallet}, not on {wallet}")


_RULES: dict[type[Operation], Callable[[Any, View, Changes], Answer]] = {
    Reserve: _reserve,
    Extend: _extend,
    Repin: _extend,
    Renew: _renew,
    Settle: _settle,
    Release: _release,
    TrueUp: true_up,
    Refund: refund,
    Rerate: rerate,
    ExpireGrants: _expire,
    Grant: give,
    Void: void,
    Adjust: adjust,
}
