"""Credit in and out of wallets other than by requests: grants, voids, expiry, adjustments.

Each service takes the wallet's lock first, moves credit by transfers only, and keeps three sums equal: the wallet's
`posted`, the sum of its transfers, and what its grants have left minus its overdraft.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q, Sum
from django.utils import timezone

from billing.models import CreditGrant, Hold, LedgerAccount, LedgerTransfer, Wallet
from billing.services.burndown import burn_order, is_live, kept_for_holds
from billing.services.errors import InsufficientCreditError, KeyReusedError
from billing.services.wallets import account_of, lock, operator_account

Kind = CreditGrant.Kind
Code = LedgerTransfer.Code

ISSUANCE = {
    Kind.PROMOTIONAL: LedgerAccount.Kind.ISSUANCE_PROMO,
    Kind.PLAN: LedgerAccount.Kind.ISSUANCE_PLAN,
    Kind.ROLLOVER: LedgerAccount.Kind.ISSUANCE_PLAN,
    Kind.PAID: LedgerAccount.Kind.ISSUANCE_PAID,
}


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

    What the wallet is overdrawn by is repaid from the new grant at once.
    """
    wallet = lock(wallet_id)
    before = _transfer_of(key)
    if before is not None:
        made = before.grant
        same = made is not None and (before.code, made.wallet_id, made.amount, made.kind) == (
            Code.GRANT,
            wallet_id,
            amount,
            kind,
        )
        if made is None or not same:
            raise KeyReusedError(key)
        return made
    if expires_at is not None and expires_at <= timezone.now():
        raise ValueError("expires_at: must be in the future")
    made = CreditGrant(
        wallet=wallet,
        kind=kind,
        amount=amount,
        remaining=amount,
        priority=priority,
        expires_at=expires_at,
        source=source,
        paid_amount=paid_amount,
        currency=currency,
    )
    debit = operator_account(ISSUANCE[kind])
    return _fill(wallet, made, debit=debit, code=Code.GRANT, key=key, actor=actor, reason=reason)


@transaction.atomic
def void(*, grant_id: UUID, key: str, actor: str, reason: str) -> int:
    """End a grant now and return the µcr that went back to where they were issued.

    What open holds may still need of it stays until they are closed, and then goes to breakage as if it had expired.
    """
    wallet = lock(CreditGrant.objects.values_list("wallet_id", flat=True).get(pk=grant_id))
    before = _transfer_of(key)
    if before is not None:
        if before.code != Code.VOID or before.grant_id != grant_id:
            raise KeyReusedError(key)
        return before.amount
    now = timezone.now()
    ended = CreditGrant.objects.get(pk=grant_id)
    if not is_live(ended, now):
        return 0
    holds = _open_holds(wallet)
    # Every open hold was made before this, whatever the clocks say: the grant must have been live for each.
    end = max([now, *(reserved_at + timedelta(microseconds=1) for reserved_at, _ in holds)])
    taken = ended.remaining - kept_for_holds([ended], holds, until=end)[ended.pk]
    is_over = taken == ended.remaining
    CreditGrant.objects.filter(pk=grant_id).update(
        remaining=F("remaining") - taken, expires_at=end, voided_at=now if is_over else None
    )
    if taken:
        LedgerTransfer.objects.create(
            debit=account_of(wallet),
            credit=operator_account(ISSUANCE[Kind(ended.kind)]),
            amount=taken,
            code=Code.VOID,
            grant=ended,
            key=key,
            actor=actor,
            reason=reason,
        )
    _close_change(wallet, posted=-taken, now=now)
    return taken


@transaction.atomic
def roll(wallet_id: UUID, now: datetime | None = None) -> int:
    """Post what has expired by `now` to breakage, and return that sum in µcr.

    What open holds made before the expiry may still need is kept for them; while anything is kept,
    `next_grant_change_at` stays in the past, so that each reserve is preceded by one more roll: no new hold ever
    stands on expired credit.
    """
    wallet = lock(wallet_id)
    now = now or timezone.now()
    expired = list(CreditGrant.objects.filter(wallet=wallet, expires_at__lte=now, expired_at=None, voided_at=None))
    kept = kept_for_holds(expired, _open_holds(wallet)) if expired else {}
    lost = 0
    account, breakage = account_of(wallet), operator_account(LedgerAccount.Kind.BREAKAGE)
    for one in expired:
        part = one.remaining - kept[one.pk]
        if part:
            LedgerTransfer.objects.create(
                debit=account,
                credit=breakage,
                amount=part,
                code=Code.EXPIRY,
                grant=one,
                effective_at=one.expires_at or now,
            )
        CreditGrant.objects.filter(pk=one.pk).update(remaining=kept[one.pk], expired_at=None if kept[one.pk] else now)
        lost += part
    _close_change(wallet, posted=-lost, now=now)
    return lost


@transaction.atomic
def adjust(*, wallet_id: UUID, amount: int, key: str, actor: str, reason: str) -> None:
    """Correct the wallet by `amount` µcr: a new promotional grant when positive, else taken in burn-down order.

    Never takes what is held: raises InsufficientCreditError. A reason is required; `key` makes it safe to repeat.
    """
    if not reason.strip():
        raise ValueError("reason: an adjustment needs one")
    if not amount:
        raise ValueError("amount: must not be zero")
    wallet = lock(wallet_id)
    before = LedgerTransfer.objects.filter(Q(key=key) | Q(key__startswith=f"{key}:"), code=Code.ADJUSTMENT)
    other_account = operator_account(LedgerAccount.Kind.ADJUSTMENT)
    account = account_of(wallet)
    if before.exists() or _transfer_of(key) is not None:
        inflow = before.filter(credit=account).aggregate(total=Sum("amount"))["total"] or 0
        outflow = before.filter(debit=account).aggregate(total=Sum("amount"))["total"] or 0
        if inflow - outflow != amount:
            raise KeyReusedError(key)
        return
    if amount > 0:
        made = CreditGrant(wallet=wallet, kind=Kind.PROMOTIONAL, amount=amount, remaining=amount, source="adjustment")
        _fill(wallet, made, debit=other_account, code=Code.ADJUSTMENT, key=key, actor=actor, reason=reason)
        return
    now = timezone.now()
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
            key=f"{key}:{order}" if order else key,
            actor=actor,
            reason=reason,
        )
    _close_change(wallet, posted=amount, now=now)


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
    overdrawn = sum(one.remaining for one in _with_credit(wallet)) - wallet.posted
    repaid = min(max(overdrawn, 0), made.amount)
    made.remaining = made.amount - repaid
    made.save(force_insert=True)
    account = account_of(wallet)
    LedgerTransfer.objects.create(
        debit=debit, credit=account, amount=made.amount, code=code, grant=made, key=key, actor=actor, reason=reason
    )
    if repaid:
        # Out of the grant and in without one, by way of the adjustment account: the grant pays the overdraft back.
        through = operator_account(LedgerAccount.Kind.ADJUSTMENT)
        repay = Code.OVERDRAFT_REPAID
        LedgerTransfer.objects.create(debit=account, credit=through, amount=repaid, code=repay, order=0, grant=made)
        LedgerTransfer.objects.create(debit=through, credit=account, amount=repaid, code=repay, order=1)
    _close_change(wallet, posted=made.amount, now=timezone.now())
    return made


def _close_change(wallet: Wallet, *, posted: int, now: datetime) -> None:
    """Write the wallet's new sums, and when its grants change next by themselves."""
    ends = (
        CreditGrant.objects.filter(wallet=wallet, remaining__gt=0, expires_at__isnull=False)
        .order_by("expires_at")
        .values_list("expires_at", flat=True)
    )
    Wallet.objects.filter(pk=wallet.pk).update(posted=F("posted") + posted, next_grant_change_at=ends.first())


def _with_credit(wallet: Wallet) -> Iterable[CreditGrant]:
    return CreditGrant.objects.filter(wallet=wallet, remaining__gt=0)


def _open_holds(wallet: Wallet) -> list[tuple[datetime, int]]:
    return list(Hold.objects.filter(wallet=wallet).values_list("reserved_at", "amount"))


def _transfer_of(key: str) -> LedgerTransfer | None:
    return LedgerTransfer.objects.filter(key=key).select_related("grant").first()
