"""Corrections of a closed request's charge, decided under the wallet's lock: true-ups, refunds, re-ratings. Each is the
next revision of its record, with the transfers of the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from billing.codes import Code
from billing.writer.changes import Changes, Correction, Transfer, counted
from billing.writer.grants import clashing, count_pools, for_model, roll
from billing.writer.operations import Answer, Moved, Refund, Refused, Rerate, Settled, Stale, TrueUp
from billing.writer.view import GrantRow, PostedBurn, RecordRow, View, WalletRow, names_in


class Direction(Enum):
    """The kinds of ledger account (debit, credit) between which a part of a correction's difference is transferred."""

    DEBIT = ("wallet", "usage")
    CREDIT = ("usage", "wallet")
    EXPIRED = ("usage", "breakage")  # due to a grant that has ended


Part = tuple[Direction, int, GrantRow | None]


def true_up(op: TrueUp, view: View, changes: Changes) -> Answer:
    """Return the answer to a true-up, and note it in `changes`."""
    if op.charge < 0:
        raise ValueError(f"true-up {op.request}: a negative charge")
    counted(op.request, op.classes)
    wallet, record = _found(op, view, changes)
    if record is None:
        return Stale()
    if record.is_exact:
        was_this = record.revision > 0 and record.charge + record.refunded == op.charge
        return Settled(record.charge, wallet.posted, wallet.held, wallet.restricted) if was_this else Stale()
    refunded = still_refunded(op.charge, record.charge, record.refunded)
    _correct(op, op.charge - refunded, refunded, view, changes)
    return Settled(op.charge - refunded, wallet.posted, wallet.held, wallet.restricted)


def refund(op: Refund, view: View, changes: Changes) -> Answer:
    """Return the answer to a refund, and note it in `changes`."""
    if op.amount <= 0:
        raise ValueError("amount: must be above zero")
    _, record = _found(op, view, changes)
    if record is None:
        return Stale()
    if op.amount > record.charge:
        return Refused("charge", record.charge)
    _correct(op, record.charge - op.amount, record.refunded + op.amount, view, changes)
    return Moved(op.amount)


def rerate(op: Rerate, view: View, changes: Changes) -> Answer:
    """Return the answer to a re-rating of one request, and note it in `changes`."""
    if op.charge < 0 or op.multiplier_bp < 0:
        raise ValueError(f"re-rating {op.request}: a negative charge or multiplier")
    wallet, record = _found(op, view, changes)
    if record is None:
        return Stale()
    if record.rerating == op.run:
        return Settled(record.charge, wallet.posted, wallet.held, wallet.restricted)
    if record.revision != op.revision:
        return Stale()
    refunded = still_refunded(op.charge, record.charge, record.refunded)
    _correct(op, op.charge - refunded, refunded, view, changes)
    return Settled(op.charge - refunded, wallet.posted, wallet.held, wallet.restricted)


def still_refunded(price: int, charge: int, refunded: int) -> int:
    """Return how much of a new price is refunded, where `refunded` of the old one was, and `charge` was left of it."""
    return price if refunded and not charge else min(refunded, price)


def _found(op: TrueUp | Refund | Rerate, view: View, changes: Changes) -> tuple[WalletRow, RecordRow | None]:
    """Return the wallet, up to date, and the request's record, None where it isn't closed."""
    wallet = view.wallet(op.wallet)
    roll(wallet, view, changes)
    record = view.records.get(op.request)
    if record is not None and record.wallet != op.wallet:
        raise ValueError(f"request {op.request}: it was charged to wallet {record.wallet}, not to {op.wallet}")
    return wallet, record


def _correct(op: TrueUp | Refund | Rerate, charge: int, refunded: int, view: View, changes: Changes) -> None:
    """Note the next revision, which charges `charge`, and the transfers of its difference from the one before."""
    wallet, record = view.wallet(op.wallet), view.records[op.request]
    code, said = Code.TRUE_UP, ("", "")
    if not isinstance(op, TrueUp):
        code, said = op.code if isinstance(op, Refund) else Code.RERATING, (op.actor, op.reason)
    difference = charge - record.charge
    parts = _taken(difference, record, view) if difference > 0 else _given_back(-difference, record, wallet, view)
    for number, (direction, amount, grant) in enumerate(parts):
        debit, credit = direction.value
        source = grant.id if grant else None
        key: str | None = None
        if isinstance(op, Refund):
            key = f"{op.key}:{number}" if number else op.key
        order = record.corrected + number
        changes.transfers.append(
            Transfer(code, wallet.id, debit, credit, amount, source, view.now, order, op.request, key, *said)
        )
        if direction is not Direction.EXPIRED:
            back = amount if direction is Direction.CREDIT else -amount
            changes.move(wallet, posted=back)
            if grant is not None:
                changes.take(grant, -back, wallet)
                _note_change(grant, wallet, changes)
                if grant.models and grant.models not in wallet.pools:
                    count_pools(wallet, view, changes)
    if record.windows:
        changes.count(wallet, names_in(record.windows), spent=difference)
    changes.corrections.append(Correction(op, record.revision + 1, charge, refunded))


def _taken(amount: int, record: RecordRow, view: View) -> Iterator[Part]:
    """Yield the parts of a further charge: from live grants in burn order, those that are restricted to the request's
    model first, then from the overdraft.
    """
    for grant in for_model(record.model, view.grants.get(record.wallet, [])):
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
    it: first to those that haven't ended, so that the refund can be spent. What came from a grant that is restricted to
    other models than a later one, some of them the same, can't go back there: it is for every model then.
    """
    grants = {grant.id: grant for grant in view.grants.get(wallet.id, [])}
    sources = {taking.grant for taking in record.burns}
    ended = {grant.id for grant in grants.values() if grant.is_voided or grant.has_ended_by(view.now)}
    later = [
        grant
        for grant in reversed(grants.values())
        if grant.id not in sources and grant.effective_at >= record.reserved_at and not grant.models
    ]
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
            is_blocked = grant.id not in ended and clashing(grant.models, wallet, view) is not None
            part = 0 if is_blocked else min(left, grant.used)
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
