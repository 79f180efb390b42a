"""True-ups: correcting the estimated charge of a closed request to the exact one, decided under the wallet's lock."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from billing.codes import Code
from billing.writer.changes import Changes, Correction, Transfer, counted
from billing.writer.grants import roll
from billing.writer.operations import Answer, Settled, Stale, TrueUp
from billing.writer.view import GrantRow, PostedBurn, RecordRow, View, WalletRow, names_in


class Direction(Enum):
    """The kinds of ledger account (debit, credit) between which a part of a true-up's difference is transferred."""

    DEBIT = ("wallet", "usage")
    CREDIT = ("usage", "wallet")
    EXPIRED = ("usage", "breakage")  # due to a grant that has ended


Part = tuple[Direction, int, GrantRow | None]


def true_up(op: TrueUp, view: View, changes: Changes) -> Answer:
    """Return the answer to a true-up, and note its revision and the transfers of its difference in `changes`."""
    if op.charge < 0:
        raise ValueError(f"true-up {op.request}: a negative charge")
    counted(op.request, op.classes)
    wallet = view.wallet(op.wallet)
    roll(wallet, view, changes)
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
    for order, (direction, amount, grant) in enumerate(parts):
        debit, credit = direction.value
        source = grant.id if grant else None
        changes.transfers.append(
            Transfer(Code.TRUE_UP, wallet.id, debit, credit, amount, source, view.now, order=order, request=op.request)
        )
        if direction is not Direction.EXPIRED:
            back = amount if direction is Direction.CREDIT else -amount
            changes.move(wallet, posted=back)
            if grant is not None:
                changes.take(grant, -back)
                _note_change(grant, wallet, changes)
    if record.windows:
        changes.count(wallet, names_in(record.windows), spent=difference)
    changes.corrections.append(Correction(op, record.revision + 1))
    return Settled(op.charge, wallet.posted, wallet.held)


def _taken(amount: int, wallet: WalletRow, view: View) -> Iterator[Part]:
    """Yield the parts of a further charge: from live grants in burn order, then from the overdraft."""
    for grant in view.grants.get(wallet.id, []):
        part = 0 if grant.has_ended_by(view.now) else min(amount, grant.remaining)
        if part:
            yield Direction.DEBIT, part, grant
            amount -= part
    if amount:
        yield Direction.DEBIT, amount, None


def _given_back(amount: int, record: RecordRow, wallet: WalletRow, view: View) -> Iterator[Part]:
    """Yield the parts of a refund: to where the charge was taken from, last taken first, so the overdraft before
    grants.

    An overdraft that was repaid meanwhile goes to the grants that came with or after the hold, since one of them paid
    it: first to those that haven't ended, so that the refund can be spent.
    """
    grants = {grant.id: grant for grant in view.grants.get(wallet.id, [])}
    sources = {taking.grant for taking in record.burns}
    ended = {grant.id for grant in grants.values() if grant.is_voided or grant.has_ended_by(view.now)}
    later = [g for g in grants.values() if g.id not in sources and g.effective_at >= record.reserved_at][::-1]
    later.sort(key=lambda grant: grant.id in ended)
    for taking in reversed(_last(amount, record.burns)):
        left = taking.amount
        if taking.grant is None:
            owed = max(sum(grant.remaining for grant in grants.values()) - wallet.posted, 0)
            overdrawn = min(left, owed)
            if overdrawn:
                yield Direction.CREDIT, overdrawn, None
            left -= overdrawn
        for grant in later if taking.grant is None else [grants[taking.grant]]:
            part = min(left, grant.used)
            if part:
                yield Direction.EXPIRED if grant.id in ended else Direction.CREDIT, part, grant
                left -= part
        if left:  # no grant can take it: it stays in the wallet without one, and reduces its next overdraft
            yield Direction.CREDIT, left, None


def _last(amount: int, burns: list[PostedBurn]) -> list[PostedBurn]:
    """Return the burns that make up the last `amount` µcr of a charge, in order."""
    found: list[PostedBurn] = []
    for taking in reversed(burns):
        part = min(amount, taking.amount)
        if part:
            found.append(PostedBurn(part, taking.grant))
            amount -= part
    return found[::-1]


def _note_change(grant: GrantRow, wallet: WalletRow, changes: Changes) -> None:
    """Note the end of a grant that has credit again, so that the expiry sweep finds it."""
    if grant.expires_at is None or not grant.remaining:
        return
    if wallet.next_grant_change_at is None or wallet.next_grant_change_at > grant.expires_at:
        changes.note_next_change(wallet, grant.expires_at)
