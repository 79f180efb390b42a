"""A wallet's grants: given, ended by time or by hand, and burnt in one order.

Why no wallet falls below its limit by time alone: a hold may burn every grant that had not ended when it was made
(`burnable`), so an earlier hold may burn whatever a later one may. As long as the holds made at or after any moment
have no more than the grants that ended later, every hold can be paid. A reserve keeps that, since it stands on what is
free once each ended grant has lost all that no hold can need; a charge keeps it, since it burns ended grants before
live ones; and expiry keeps it, since what it leaves covers as much of the holds as can be covered.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from base.ids import uuid7
from base.units import format_credits
from billing.codes import Code
from billing.writer.changes import Changes, NewGrant, Transfer
from billing.writer.operations import Adjust, Grant, Moved, Refused, Void
from billing.writer.view import GrantRow, HoldRow, View, WalletRow

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


def roll(wallet: WalletRow, view: View, changes: Changes) -> int:
    """Give the wallet its scheduled grants that begin by now, roll over or move to breakage what no open hold can need
    of its ended ones, and return the µcr that went to breakage.
    """
    if wallet.id not in view.open_holds:
        return 0
    waiting = view.scheduled.get(wallet.id, [])
    while waiting and waiting[0].begins_at <= view.now:
        one = waiting.pop(0)
        row = GrantRow(
            *(one.id, one.wallet, one.amount, one.begins_at, one.expires_at, one.amount, False, one.priority, one.kind),
            *(one.rollover, one.rollover_until),
        )
        made = NewGrant(row, one.source, one.paid_amount, one.currency, one.paid_reference)
        _give(made, _filling(row, one.source, one.actor, one.reason), wallet, view, changes)
        changes.begun.append(one.id)
    ended = [grant for grant in _with_credit(wallet, view) if grant.has_ended_by(view.now)]
    kept = kept_for_holds([(grant.id, grant.expires_at, grant.remaining) for grant in ended], _holds(wallet, view))
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
    row = GrantRow(uuid7(), wallet.id, amount, end, ended.rollover_until, amount, False, ended.priority, ROLLOVER)
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
        *(op.rollover, op.rollover_until),
    )
    made = NewGrant(row, op.source, op.paid_amount, op.currency, op.paid_reference)
    _check_room(row, wallet, view)
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
    earlier = [grant for grant in present if grant.has_ended_by(view.now)]
    holds, end = _holds(wallet, view), voided.expires_at
    voided.expires_at = max([view.now, *(reserved_at + timedelta(microseconds=1) for reserved_at, _ in holds)])
    kept = kept_for_holds([(grant.id, grant.expires_at, grant.remaining) for grant in (*earlier, voided)], holds)
    taken = voided.remaining - kept[voided.id]
    if is_part := op.most is not None and op.most < voided.remaining:
        taken, voided.expires_at = min(taken, op.most), end
    if taken:
        code = Code.REFUND if op.is_refund else Code.VOID
        _take_out(op, taken, voided, ISSUANCE[voided.kind], changes, code=code, key=op.key)
        changes.move(wallet, posted=-taken)
    if not is_part:
        voided.is_voided, voided.rollover = not voided.remaining, None
        changes.voided[voided.id] = voided
    return Moved(taken)


def adjust(op: Adjust, view: View, changes: Changes) -> Moved | Refused:
    """Return the answer to an Adjust, and note it in `changes`."""
    wallet = view.wallet(op.wallet)
    roll(wallet, view, changes)
    if op.amount > 0:
        row = GrantRow(op.grant, op.wallet, op.amount, view.now, None, op.amount, is_voided=False)
        _check_room(row, wallet, view)
        filling = _filling(row, op.key, op.actor, op.reason, code=Code.ADJUSTMENT, source=ADJUSTMENT)
        _give(NewGrant(row, "adjustment"), filling, wallet, view, changes)
        return Moved(op.amount)
    live = [grant for grant in _with_credit(wallet, view) if not grant.has_ended_by(view.now)]
    available = min(wallet.posted - wallet.held, sum(grant.remaining for grant in live))
    left = -op.amount
    if available < left:
        return Refused("wallet", max(available, 0))
    for order, grant in enumerate(live):
        if part := min(left, grant.remaining):
            key = f"{op.key}:{order}" if order else op.key
            _take_out(op, part, grant, ADJUSTMENT, changes, code=Code.ADJUSTMENT, order=order, key=key)
            left -= part
    changes.move(wallet, posted=op.amount)
    return Moved(-op.amount)


def note_next_changes(view: View, changes: Changes) -> None:
    """Note when the next grant ends or begins of each wallet where one did: in the past while holds keep some of it."""
    for identifier in view.open_holds:
        ends = [grant.expires_at for grant in view.grants.get(identifier, ()) if grant.remaining and grant.expires_at]
        begins = [one.begins_at for one in view.scheduled.get(identifier, ())]
        changes.note_next_change(view.wallets[identifier], min(ends + begins, default=None))


def kept_for_holds(
    ended: Iterable[tuple[UUID, datetime | None, int]], holds: Iterable[tuple[datetime, int]]
) -> dict[UUID, int]:
    """Return per ended grant (id, end, µcr left) how much of it the open holds (reserved at, µcr) may need.

    A hold counts for a grant if it was made before the grant's end, and only once over all grants: together they keep
    no more than these holds have, and as much of it as can be. Earlier grants in the order given keep first.
    """
    # The latest holds first: earlier ones may burn more grants.
    latest_first = sorted(holds, reverse=True)
    need = [amount for _, amount in latest_first]
    kept: dict[UUID, int] = {}
    for identifier, end, remaining in ended:
        left = remaining
        for position, (reserved_at, _) in enumerate(latest_first):
            if left and (end is None or reserved_at < end):
                part = min(left, need[position])
                need[position] -= part
                left -= part
        kept[identifier] = remaining - left
    return kept


def burnable(hold: HoldRow, view: View) -> Sequence[GrantRow]:
    """Return the grants that a charge under the hold is taken from, in order.

    First the grants that ended since the hold was made, by their end: no later hold can burn them. Then the live ones
    that the hold was made over, then the live ones that came after it, both in burn order.
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
    return [*ended, *before, *since]


def _filling(
    grant: GrantRow, key: str, actor: str, reason: str, *, code: Code = Code.GRANT, source: str = ""
) -> Transfer:
    """Return the transfer that fills a new grant from its issuance account, or from `source`."""
    debit, said = source or ISSUANCE[grant.kind], (0, None, key, actor, reason)
    return Transfer(code, grant.wallet, debit, "wallet", grant.amount, grant.id, grant.effective_at, *said)


def _give(made: NewGrant, filling: Transfer, wallet: WalletRow, view: View, changes: Changes) -> None:
    """Add a grant to the wallet, and repay from it what the wallet is overdrawn by: through the adjustment account, out
    of the grant, then into the wallet without a grant.
    """
    grant = made.row
    present = view.grants.setdefault(wallet.id, [])
    overdrawn = sum(one.remaining for one in present) - wallet.posted
    bisect.insort(present, grant, key=operator.attrgetter("order"))
    changes.given.append(made)
    changes.transfers.append(filling)
    changes.move(wallet, posted=grant.amount)
    if repaid := min(max(overdrawn, 0), grant.amount):
        changes.take(grant, repaid)
        code, now = Code.OVERDRAFT_REPAID, changes.now
        changes.transfers += (
            Transfer(code, wallet.id, "wallet", ADJUSTMENT, repaid, grant.id, now),
            Transfer(code, wallet.id, ADJUSTMENT, "wallet", repaid, None, now, order=1),
        )


def _take_out(
    op: Void | Adjust, amount: int, grant: GrantRow, to: str, changes: Changes, *, code: Code, key: str, order: int = 0
) -> None:
    """Take `amount` µcr from a grant, and transfer them out of the wallet."""
    changes.take(grant, amount)
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


def _holds(wallet: WalletRow, view: View) -> list[tuple[datetime, int]]:
    """Return when each of the wallet's open holds was reserved, and its amount."""
    return [(hold.reserved_at, hold.amount) for hold in view.open_holds[wallet.id].values()]
