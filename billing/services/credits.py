"""Changes of credit other than by requests: grants, voids, refunds, adjustments.

Each service locks the wallet first and lets grants begin and expire by the database's clock, as every operation of the
writer does. It moves credit by transfers only, and keeps three sums equal: the wallet's `posted`, the sum of its
transfers, and what its grants have left minus its overdraft.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import F, Min, Q

from base import clock
from base.units import format_credits
from billing.models import CreditGrant, Hold, LedgerAccount, LedgerTransfer, ScheduledGrant, Wallet
from billing.services.burndown import burn_order, is_live
from billing.services.errors import InsufficientCreditError, KeyReusedError
from billing.services.wallets import account_of, lock, operator_account
from billing.writer.apply import apply_now
from billing.writer.expiry import kept_for_holds
from billing.writer.operations import ExpireGrants

Kind = CreditGrant.Kind
Code = LedgerTransfer.Code

ISSUANCE = {
    Kind.PROMOTIONAL: LedgerAccount.Kind.ISSUANCE_PROMO,
    Kind.PLAN: LedgerAccount.Kind.ISSUANCE_PLAN,
    Kind.PAID: LedgerAccount.Kind.ISSUANCE_PAID,
}

MAX_POSTED = 10**18
"""µcr: far above any use, and so far below 2⁶³ that no sum of a wallet becomes a floating-point number on SQLite."""

MOST_OPEN_GRANTS = 1000
"""Grants with credit left that a wallet may have, those of its plan apart: a charge makes a transfer for each that it
is taken from, in one transaction that nobody should wait for.
"""


@transaction.atomic
def grant(
    *,
    wallet_id: UUID,
    amount: int,
    kind: CreditGrant.Kind,
    key: str,
    actor: str = "",
    reason: str = "",
    expires_at: datetime | None = None,
    priority: int = 50,
    source: str = "",
    paid_amount: int | None = None,
    currency: str = "",
) -> CreditGrant:
    """Add `amount` µcr to the wallet as a new grant, or return the grant that `key` made before.

    What the wallet is overdrawn by is repaid from the new grant at once. `paid_amount` is what was paid for it, in the
    currency's minor units. Raises ValueError that names the field for terms that can't be, KeyReusedError when `key`
    made another change, or a grant of other terms.
    """
    wallet = _lock_and_roll(wallet_id)
    terms = {
        "wallet_id": wallet_id,
        "amount": amount,
        "kind": kind,
        "priority": priority,
        "expires_at": expires_at,
        "source": source,
        "paid_amount": paid_amount,
        "currency": currency,
    }
    if (before := _transfer_of(key)) is not None:
        made = before.grant
        told = terms.keys() - {"expires_at", "source"}  # a void moves the end, and the source is only a word about it
        if made is None or before.code != Code.GRANT or any(getattr(made, name) != terms[name] for name in told):
            raise KeyReusedError(key)
        return made
    if amount <= 0:
        raise ValueError("amount: must be above zero")
    if (paid_amount is None) != (not currency):
        raise ValueError("paid_amount: money has an amount and a currency, or neither")
    if paid_amount is not None and paid_amount < 0:
        raise ValueError("paid_amount: must not be below zero")
    if currency and not re.fullmatch("[A-Z]{3}", currency):
        raise ValueError("currency: three letters, as EUR")
    now = clock.now()
    if expires_at is not None and expires_at <= now:
        raise ValueError("expires_at: must be in the future")
    made = CreditGrant(effective_at=now, remaining=amount, **terms)
    debit = operator_account(ISSUANCE[kind])
    return _fill(wallet, made, debit=debit, code=Code.GRANT, key=key, actor=actor, reason=reason)


def schedule(
    wallet: Wallet,
    *,
    amount: int,
    kind: CreditGrant.Kind,
    begins_at: datetime,
    expires_at: datetime,
    source: str,
    reason: str,
) -> None:
    """Have the locked wallet get `amount` µcr at `begins_at`, in place of whatever `source` scheduled before; 0: none.

    The grant's `source` is also the key of its transfer: one that has begun stays as it is.
    """
    ScheduledGrant.objects.filter(wallet=wallet, source=source).delete()
    if amount and _transfer_of(source) is None:
        ScheduledGrant.objects.create(
            wallet=wallet,
            amount=amount,
            kind=kind,
            begins_at=begins_at,
            expires_at=expires_at,
            source=source,
            reason=reason,
        )
    _write_sums(wallet, posted=0)


@transaction.atomic
def void(*, grant_id: UUID, key: str, actor: str, reason: str) -> int:
    """End a grant now and return how many of its µcr were taken back (transferred to the issuance account).

    What open holds may still need of it stays until they are closed; what they leave goes to breakage as if it had
    expired. Repeating it with the same `key` returns the same sum; another use of `key` raises KeyReusedError.
    """
    wallet, ended = _locked_grant(grant_id)
    if (before := _taken_by(key, Code.VOID, ended)) is not None:
        return before
    now = clock.now()
    if not is_live(ended, now):
        return 0
    end, free = _end_of(wallet, ended, now)
    return _end(wallet, ended, now, end, free, code=Code.VOID, key=key, actor=actor, reason=reason)


@transaction.atomic
def refund(*, grant_id: UUID, key: str, actor: str, reason: str, reference: str, money: int | None = None) -> int:
    """End a paid grant as `void` does, since money is paid back for it, and return how many µcr were taken out.

    `money` is in the minor units of what was paid; None is the share of it that the credit taken out has, rounded down.
    `reference` names the payment; both are kept with the grant. Repeating it with the same `key` returns the same sum.
    Raises ValueError that names the field for what can't be, KeyReusedError when `key` made another change.
    """
    wallet, ended = _locked_grant(grant_id)
    if (before := _taken_by(key, Code.REFUND, ended)) is not None:
        if ended.refund_reference != reference or money not in (None, ended.refunded_amount):
            raise KeyReusedError(key)
        return before
    if not reference.strip():
        raise ValueError("reference: a refund needs the payment's")
    if ended.paid_amount is None:
        raise ValueError("grant: nothing was paid for it; void it instead")
    if money is not None and not 0 <= money <= ended.paid_amount:
        raise ValueError(f"money: between 0 and the {ended.paid_amount} that were paid")
    now = clock.now()
    end, free = _end_of(wallet, ended, now)
    if not free or not is_live(ended, now):
        raise ValueError("grant: nothing is left of it that isn't held")
    ended.refunded_amount = ended.paid_amount * free // ended.amount if money is None else money
    ended.refund_reference = reference
    ended.save(update_fields=["refunded_amount", "refund_reference"])
    return _end(wallet, ended, now, end, free, code=Code.REFUND, key=key, actor=actor, reason=reason)


@transaction.atomic
def adjust(*, wallet_id: UUID, amount: int, key: str, actor: str, reason: str) -> None:
    """Correct the wallet by `amount` µcr: a new promotional grant when positive, else taken in burn-down order.

    Repeating it with the same `key` changes nothing. Raises InsufficientCreditError if that would take held credit,
    ValueError without an amount or reason, KeyReusedError when `key` made another change.
    """
    if not reason.strip():
        raise ValueError("reason: an adjustment needs one")
    if not amount:
        raise ValueError("amount: must not be zero")
    wallet = _lock_and_roll(wallet_id)
    other_account = operator_account(LedgerAccount.Kind.ADJUSTMENT)
    account = account_of(wallet)
    if _transfer_of(key) is not None:
        if _adjusted_by(key, account) != amount:
            raise KeyReusedError(key)
        return
    now = clock.now()
    if amount > 0:
        made = CreditGrant(
            wallet=wallet,
            effective_at=now,
            kind=Kind.PROMOTIONAL,
            amount=amount,
            remaining=amount,
            source="adjustment",
        )
        _fill(wallet, made, debit=other_account, code=Code.ADJUSTMENT, key=key, actor=actor, reason=reason)
        return
    live = [one for one in _with_credit(wallet) if is_live(one, now)]
    available = min(wallet.posted - wallet.held, sum(one.remaining for one in live))
    if available < -amount:
        raise InsufficientCreditError(-amount, max(available, 0))
    wanted = -amount
    for order, one in enumerate(sorted(live, key=burn_order)):
        part = min(wanted, one.remaining)
        if not part:
            break
        wanted -= part
        CreditGrant.objects.filter(pk=one.pk).update(remaining=F("remaining") - part)
        LedgerTransfer.objects.create(
            debit=account,
            credit=other_account,
            amount=part,
            code=Code.ADJUSTMENT,
            order=order,
            grant=one,
            key=_part_key(key, order),
            actor=actor,
            reason=reason,
        )
    _write_sums(wallet, posted=amount)


def _locked_grant(grant_id: UUID) -> tuple[Wallet, CreditGrant]:
    """Lock a grant's wallet, let its grants begin and expire, and return both."""
    wallet = _lock_and_roll(CreditGrant.objects.values_list("wallet_id", flat=True).get(pk=grant_id))
    return wallet, CreditGrant.objects.get(pk=grant_id)


def _taken_by(key: str, code: LedgerTransfer.Code, ended: CreditGrant) -> int | None:
    """Return how many µcr of the grant that very key took out before, None where it is a new one."""
    before = _transfer_of(key)
    if before is None:
        return None
    if before.code != code or before.grant_id != ended.pk:
        raise KeyReusedError(key)
    return before.amount


def _end_of(wallet: Wallet, ended: CreditGrant, now: datetime) -> tuple[datetime, int]:
    """Return when a grant ends that is to end now, and how many µcr of it no open hold may need.

    Every open hold was made before this, whatever the clocks say: the grant must have been live for each.
    """
    holds = list(Hold.objects.filter(wallet=wallet).values_list("reserved_at", "amount"))
    end = max([now, *(reserved_at + timedelta(microseconds=1) for reserved_at, _ in holds)])
    earlier = [one for one in _with_credit(wallet) if one.expires_at is not None and one.expires_at <= now]
    kept = kept_for_holds(
        [*((one.pk, one.expires_at, one.remaining) for one in earlier), (ended.pk, end, ended.remaining)], holds
    )
    return end, ended.remaining - kept[ended.pk]


def _end(
    wallet: Wallet,
    ended: CreditGrant,
    now: datetime,
    end: datetime,
    taken: int,
    *,
    code: LedgerTransfer.Code,
    key: str,
    actor: str,
    reason: str,
) -> int:
    """Have the grant end at `end`, transfer `taken` µcr of it to the issuance account, and return that sum."""
    is_empty = taken == ended.remaining
    CreditGrant.objects.filter(pk=ended.pk).update(
        remaining=F("remaining") - taken, expires_at=end, voided_at=now if is_empty else None
    )
    if taken:
        LedgerTransfer.objects.create(
            debit=account_of(wallet),
            credit=operator_account(ISSUANCE[Kind(ended.kind)]),
            amount=taken,
            code=code,
            grant=ended,
            key=key,
            actor=actor,
            reason=reason,
        )
    _write_sums(wallet, posted=-taken)
    return taken


def _part_key(key: str, order: int) -> str:
    """Return the key of an adjustment's transfer: the first has the adjustment's own."""
    return f"{key}:{order}" if order else key


def _adjusted_by(key: str, account: LedgerAccount) -> int:
    """Return by how much the adjustment of that very key changed the account, 0 if there was none.

    Callers choose keys freely: one may begin with another, or look like the key of another's part.
    """
    found = LedgerTransfer.objects.filter(Q(key=key) | Q(key__startswith=f"{key}:"), code=Code.ADJUSTMENT)
    return sum(
        one.amount if one.credit_id == account.pk else -one.amount
        for one in found
        if one.key == _part_key(key, one.order) and account.pk in (one.credit_id, one.debit_id)
    )


def _lock_and_roll(wallet_id: UUID) -> Wallet:
    """Lock the wallet, let its grants begin and expire, and return it as it is afterwards."""
    lock(wallet_id)
    apply_now([ExpireGrants(wallet_id)])
    return Wallet.objects.get(pk=wallet_id)


def _fill(
    wallet: Wallet,
    made: CreditGrant,
    *,
    debit: LedgerAccount,
    code: LedgerTransfer.Code,
    key: str,
    actor: str,
    reason: str,
) -> CreditGrant:
    """Save the grant with the transfer that fills it, and repay from it what the wallet is overdrawn by."""
    if wallet.posted + made.amount > MAX_POSTED:
        raise ValueError(f"amount: a wallet holds at most {format_credits(MAX_POSTED, separator=',')} credits")
    present = [one.remaining for one in _with_credit(wallet)]
    if len(present) >= MOST_OPEN_GRANTS and made.kind != Kind.PLAN:
        raise ValueError(f"wallet: it has {len(present)} grants with credit left, the most that one may have")
    overdrawn = sum(present) - wallet.posted
    repaid = min(max(overdrawn, 0), made.amount)
    made.remaining = made.amount - repaid
    made.save(force_insert=True)
    account = account_of(wallet)
    LedgerTransfer.objects.create(
        debit=debit, credit=account, amount=made.amount, code=code, grant=made, key=key, actor=actor, reason=reason
    )
    if repaid:
        # Two transfers through the adjustment account: out of the grant, then into the wallet without a grant.
        through = operator_account(LedgerAccount.Kind.ADJUSTMENT)
        repay = Code.OVERDRAFT_REPAID
        LedgerTransfer.objects.create(debit=account, credit=through, amount=repaid, code=repay, order=0, grant=made)
        LedgerTransfer.objects.create(debit=through, credit=account, amount=repaid, code=repay, order=1)
    _write_sums(wallet, posted=made.amount)
    return made


def _write_sums(wallet: Wallet, *, posted: int) -> None:
    """Add to the wallet's `posted`, and note when its next grant ends or begins."""
    ends = CreditGrant.objects.filter(wallet=wallet, remaining__gt=0).aggregate(first=Min("expires_at"))["first"]
    begins = ScheduledGrant.objects.filter(wallet=wallet).aggregate(first=Min("begins_at"))["first"]
    first = min((moment for moment in (ends, begins) if moment is not None), default=None)
    Wallet.objects.filter(pk=wallet.pk).update(posted=F("posted") + posted, next_grant_change_at=first)


def _with_credit(wallet: Wallet) -> Iterable[CreditGrant]:
    return CreditGrant.objects.filter(wallet=wallet, remaining__gt=0)


def _transfer_of(key: str) -> LedgerTransfer | None:
    return LedgerTransfer.objects.filter(key=key).select_related("grant").first()
