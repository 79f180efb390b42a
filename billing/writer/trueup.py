"""Correcting an estimate: the exact charge of a request that was closed without knowing it, decided under the lock."""

from __future__ import annotations

from collections.abc import Iterator

from billing.writer.changes import Adjustment, Changes, Correction, Way, counted
from billing.writer.operations import Answer, Settled, Stale, TrueUp
from billing.writer.view import GrantRow, RecordRow, Taking, View, WalletRow

Part = tuple[Way, int, GrantRow | None]


def true_up(op: TrueUp, view: View, changes: Changes) -> Answer:
    """Return the answer to a true-up, and note its revision and the transfers of its difference in `changes`."""
    if op.charge < 0:
        raise ValueError(f"true-up {op.request}: a negative charge")
    counted(op.request, op.classes)
    wallet = view.wallet(op.wallet)
    record = view.records.get(op.request)
    if record is None:
        return Stale()
    if record.wallet != op.wallet:
        raise ValueError(f"request {op.request}: it was charged to wallet {record.wallet}, not to {op.wallet}")
    if record.is_exact:
        was_this = record.revision > 0 and record.charge == op.charge
        return Settled(op.charge, wallet.posted, wallet.held) if was_this else Stale()
    difference = op.charge - record.charge
    parts = _taken(difference, wallet, view) if difference > 0 else _given_back(-difference, record, wallet, view)
    for order, (way, amount, grant) in enumerate(parts):
        changes.adjustments.append(Adjustment(way, wallet.id, op.request, order, amount, grant.id if grant else None))
        if way is not Way.LOST:
            back = amount if way is Way.RESTORED else -amount
            changes.move(wallet, posted=back)
            if grant is not None:
                changes.take(grant, -back)
                _note_change(grant, wallet, changes)
    changes.corrections.append(Correction(op, record.revision + 1))
    return Settled(op.charge, wallet.posted, wallet.held)


def _taken(amount: int, wallet: WalletRow, view: View) -> Iterator[Part]:
    """Yield what more is taken: live grants in burn-down order, then the overdraft."""
    for grant in view.grants.get(wallet.id, []):
        part = 0 if grant.has_ended_by(view.now) else min(amount, grant.remaining)
        if part:
            yield Way.TAKEN, part, grant
            amount -= part
    if amount:
        yield Way.TAKEN, amount, None


def _given_back(amount: int, record: RecordRow, wallet: WalletRow, view: View) -> Iterator[Part]:
    """Yield what is given back: to where the charge came from, last taken first, so to the overdraft before grants.

    An overdraft that was repaid meanwhile goes to the grants that came after the hold, since one of them paid it.
    """
    grants = {grant.id: grant for grant in view.grants.get(wallet.id, [])}
    sources = {taking.grant for taking in record.takings}
    later = [g for g in grants.values() if g.id not in sources and g.effective_at > record.reserved_at]
    for taking in reversed(_last(amount, record.takings)):
        left = taking.amount
        if taking.grant is None:
            owed = max(sum(grant.remaining for grant in grants.values()) - wallet.posted, 0)
            overdrawn = min(left, owed)
            if overdrawn:
                yield Way.RESTORED, overdrawn, None
            left -= overdrawn
        for grant in reversed(later) if taking.grant is None else [grants[taking.grant]]:
            part = min(left, grant.room)
            if part:
                is_over = grant.is_voided or grant.has_ended_by(view.now)
                yield Way.LOST if is_over else Way.RESTORED, part, grant
                left -= part
        if left:  # nobody is owed it by name: it stays in the wallet, where the next charge beyond its grants finds it
            yield Way.RESTORED, left, None


def _last(amount: int, takings: list[Taking]) -> list[Taking]:
    """Return the takings that make up the last `amount` of a charge, in order."""
    found: list[Taking] = []
    for taking in reversed(takings):
        part = min(amount, taking.amount)
        if part:
            found.append(Taking(part, taking.grant))
            amount -= part
    return found[::-1]


def _note_change(grant: GrantRow, wallet: WalletRow, changes: Changes) -> None:
    """See to it that a grant which has credit again expires in time."""
    if grant.expires_at is None or not grant.remaining:
        return
    if wallet.next_grant_change_at is None or wallet.next_grant_change_at > grant.expires_at:
        changes.note_next_change(wallet, grant.expires_at)
