"""The decision of a flush: pure, in arrival order, over values read under the lock; one rule for both databases.

Since every wallet it touches is locked and each operation sees what the ones before it did, a flush of many
operations gives the same answers and the same rows as one transaction per operation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from billing.writer.operations import (
    Answer,
    Extend,
    Held,
    Operation,
    Refused,
    Release,
    Renew,
    Renewed,
    Reserve,
    Settle,
    Settled,
    Stale,
    TrueUp,
)
from billing.writer.state import HELD, Burn, Changes, Closing, HoldRow, View, WalletRow, counted
from billing.writer.trueup import true_up

HOLD_FACTS = {"endpoint": 40, "task": 40, "end_user": 64, "route": None, "streamed": None}
"""The keys of a Reserve's `facts`: columns of the usage record that are known before it runs with their longest texts,
and whether the answer goes out as it is made, which the sweep asks."""
FACTS = frozenset({"waived", "finish", "ttft_ms", "duration_ms"})
"""The keys of a Settle's and a Release's `facts`: columns of the usage record that only its end tells."""


@dataclass(frozen=True, slots=True)
class PutAside:
    """The wallet's grants changed by time since they were last rolled: roll it, then ask for the credit again."""

    wallet: UUID


def decide(
    operations: Sequence[Operation], view: View, rolled: Collection[UUID] = ()
) -> tuple[list[Answer | PutAside], Changes]:
    """Return one answer per operation, and everything to be written.

    `view` is moved along and must not be used again. Reserves and extends in `rolled` (request ids) have had their
    wallet rolled and aren't put aside a second time. Raises ValueError for an operation that can never be applied,
    naming it; the caller then applies the others without it.
    """
    changes = Changes(now=view.now)
    answers: list[Answer | PutAside] = []
    for operation in operations:
        match operation:
            case Reserve():
                answers.append(_reserve(operation, view, changes, operation.request in rolled))
            case Extend():
                answers.append(_extend(operation, view, changes, operation.request in rolled))
            case Renew():
                answers.append(_renew(operation, view, changes))
            case Settle():
                answers.append(_settle(operation, view, changes))
            case Release():
                answers.append(_release(operation, view, changes))
            case TrueUp():
                answers.append(true_up(operation, view, changes))
    return answers, changes


def _reserve(op: Reserve, view: View, changes: Changes, is_rolled: bool) -> Answer | PutAside:
    if op.amount < 0 or op.least < 0:
        raise ValueError(f"reserve {op.request}: a negative amount")
    for name, value in op.facts.items():  # checked here, since the usage record would be refused only when all has run
        longest = HOLD_FACTS.get(name, 0)
        if longest is not None and len(value) > longest:
            raise ValueError(f"reserve {op.request}: no such fact, or too long: {name}")
    wallet = view.wallet(op.wallet)
    hold = view.holds.get(op.request)
    if hold is not None:  # asked before: the answer got lost, or an extension made more of it since
        _check_wallet(op.request, hold, op.wallet)
        return Held(hold.amount, wallet.available)
    if not wallet.is_open:
        return Refused("wallet_frozen", 0)
    if not is_rolled and _has_expired_for(view.now, wallet, view):
        return PutAside(wallet.id)
    amount = min(op.amount, wallet.available)
    if amount < op.least:  # so also when the wallet is overdrawn: `least` is never below zero
        return Refused("wallet", wallet.available)
    changes.move(wallet, held=amount)
    changes.reserved.append((op, amount))
    view.holds[op.request] = HoldRow(op.request, op.wallet, HELD, amount, op.owner, view.now, is_new=True)
    return Held(amount, wallet.available)


def _extend(op: Extend, view: View, changes: Changes, is_rolled: bool) -> Answer | PutAside:
    if op.amount < 0 or op.least < 0:
        raise ValueError(f"extend {op.request}: a negative amount")
    wallet = view.wallet(op.wallet)
    hold = view.holds.get(op.request)
    if hold is None or hold.state != HELD:
        return Stale()
    _check_wallet(op.request, hold, op.wallet)
    if not is_rolled and _has_expired_for(hold.reserved_at, wallet, view):
        return PutAside(wallet.id)
    amount = max(min(op.amount, hold.amount + wallet.available), hold.amount)
    if amount < op.least:
        return Refused("wallet", wallet.available)
    if amount > hold.amount:
        changes.move(wallet, held=amount - hold.amount)
        hold.amount = changes.amounts[op.request] = amount
    return Held(amount, wallet.available)


def _has_expired_for(reserved_at: datetime, wallet: WalletRow, view: View) -> bool:
    """True when credit that a hold of this moment may not stand on is perhaps still in the wallet's sums."""
    change = wallet.next_grant_change_at
    return change is not None and change <= view.now and change <= reserved_at


def _renew(op: Renew, view: View, changes: Changes) -> Answer:
    renewed = set()
    for request, checkpoint in op.checkpoints.items():
        hold = view.holds.get(request)
        if hold is not None and hold.state == HELD and hold.owner == op.owner:
            changes.renewed[request] = counted(request, checkpoint)
            renewed.add(request)
    return Renewed(frozenset(renewed))


def _settle(op: Settle, view: View, changes: Changes) -> Answer:
    if op.charge < 0:
        raise ValueError(f"settle {op.request}: a negative charge")
    counted(op.request, op.classes)
    wallet = view.wallet(op.wallet)
    hold = view.holds.get(op.request)
    if hold is None:
        return _closed_before(op.request, op.charge, wallet, view)
    _close(Closing(op, op.charge, op.exact), hold, wallet, view, changes)
    return Settled(op.charge, wallet.posted, wallet.held)


def _release(op: Release, view: View, changes: Changes) -> Answer:
    wallet = view.wallet(op.wallet)
    hold = view.holds.get(op.request)
    if hold is None:
        return _closed_before(op.request, 0, wallet, view)
    _close(Closing(op, 0, exact=True), hold, wallet, view, changes)
    return Settled(0, wallet.posted, wallet.held)


def _close(closing: Closing, hold: HoldRow, wallet: WalletRow, view: View, changes: Changes) -> None:
    op, charge = closing.operation, closing.charge
    _check_wallet(op.request, hold, op.wallet)
    unknown = op.facts.keys() - FACTS
    if unknown:
        raise ValueError(f"close {op.request}: no such facts: {', '.join(sorted(unknown))}")
    changes.burns += _burn(op.request, charge, hold, view, changes)
    changes.move(wallet, posted=-charge, held=-hold.amount)
    changes.closed.append(closing)
    del view.holds[op.request]
    view.charges[op.request] = charge


def _burn(request: UUID, charge: int, hold: HoldRow, view: View, changes: Changes) -> Iterator[Burn]:
    """Yield the transfers of a charge: grants that were live when the hold was made, in burn-down order; then, for a
    charge above its hold, grants that came since; the rest is overdraft.
    """
    left, order = charge, 0
    grants = view.grants.get(hold.wallet, [])
    eligible = [grant for grant in grants if grant.is_live_at(hold.reserved_at)]
    since = [grant for grant in grants if grant.effective_at > hold.reserved_at and grant.is_live_at(view.now)]
    for grant in eligible + since:
        part = min(left, grant.remaining)
        if part:
            changes.take(grant, part)
            yield Burn(hold.wallet, request, order, part, grant.id)
            left, order = left - part, order + 1
    if left:
        yield Burn(hold.wallet, request, order, left, None)


def _closed_before(request: UUID, charge: int, wallet: WalletRow, view: View) -> Answer:
    """The answer to closing what isn't open: done, if it was closed with this very charge; else somebody else did."""
    if view.charges.get(request) == charge:
        return Settled(charge, wallet.posted, wallet.held)
    return Stale()


def _check_wallet(request: UUID, hold: HoldRow, wallet: UUID) -> None:
    if hold.wallet != wallet:
        raise ValueError(f"request {request}: its hold is on wallet {hold.wallet}, not on {wallet}")
