"""Changes of credit that people make: grants, voids, adjustments, refunds of grants and of requests.

Each locks the wallet, answers a key that was used before, and has the writer decide the rest, as it does for requests.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.dispatch import Signal

from base import clock
from base.ids import day_of
from base.units import format_credits
from billing.codes import Code
from billing.models import CreditGrant, LedgerTransfer, ScheduledGrant, UsageRecord, Wallet
from billing.seals import archived
from billing.services.errors import InsufficientCreditError, KeyReusedError, RefundError
from billing.services.wallets import account_of, lock
from billing.writer.apply import apply_now
from billing.writer.grants import GIFTS, MAX_POSTED, MOST_OPEN_GRANTS, check_pool
from billing.writer.operations import Adjust, ExpireGrants, Grant, Moved, Refund, Refused, Void
from billing.writer.view import read_pools

MOST_MODELS = 100
"""Models that one grant may be restricted to."""

LATER = "later:"
"""What the source of a grant begins with that an operator gave before it began."""

_FURTHEST = timedelta(days=36_525)

credit_changed = Signal()
"""Sent within the transaction of a change: `transfer` is the one with its key, and `amount` the µcr that came in (below
zero: were taken out).
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
    paid_reference: str = "",
    rollover: int | None = None,
    rollover_until: datetime | None = None,
    models: Iterable[str] = (),
) -> CreditGrant:
    """Add `amount` µcr to the wallet as a new grant, or return the grant that `key` made before.

    It pays for requests of the `models` alone, where they are given. What the wallet is overdrawn by is repaid at once
    from a new grant that pays for all. `paid_amount` is what was paid for it, in the currency's minor units, and
    `paid_reference` names the payment. Of what is left at its end, up to `rollover` lasts until `rollover_until`.
    Raises ValueError that names the field for terms
    that can't be, KeyReusedError when `key` made another change, or a grant of other terms.
    """
    lock(wallet_id)
    terms = {
        "amount": amount,
        "kind": kind,
        "priority": priority,
        "paid_amount": paid_amount,
        "currency": currency,
        "paid_reference": paid_reference,
        "restriction": (restriction := restriction_to(models)),
    }
    if (before := _transfer_of(key)) is not None:
        made = before.grant  # a void moves its end, and its source is only a word about it
        if made is None or before.code != Code.GRANT or made.wallet_id != wallet_id:
            raise KeyReusedError(key)
        if any(getattr(made, name) != value for name, value in terms.items()):
            raise KeyReusedError(key)
        return made
    if any(
        one.objects.filter(wallet=wallet_id, source=_later(wallet_id, key)) for one in (ScheduledGrant, CreditGrant)
    ):
        raise KeyReusedError(key)
    _check_terms(amount, paid_amount, currency, paid_reference)
    check_ahead(expires_at=expires_at)
    op = Grant(
        wallet=wallet_id,
        amount=amount,
        kind=str(kind),
        key=key,
        actor=actor,
        reason=reason,
        priority=priority,
        expires_at=expires_at,
        source=source,
        paid_amount=paid_amount,
        currency=currency,
        paid_reference=paid_reference,
        rollover=rollover,
        rollover_until=rollover_until,
        models=restriction,
    )
    apply_now([op])
    _announce(key, amount)
    return CreditGrant.objects.get(pk=op.id)


def check_ahead(**moments: datetime | None) -> None:
    """Raise ValueError, which names the field, for a moment more than a hundred years ahead."""
    latest = clock.now() + _FURTHEST
    for name, moment in moments.items():
        if moment is not None and moment > latest:
            raise ValueError(f"{name}: must be within a hundred years")


def restriction_to(models: Iterable[str]) -> str:
    """Return the text of a grant's restriction to these models; ValueError where one can't be named in it."""
    names = sorted(set(models))
    if len(names) > MOST_MODELS or any(not name.strip() or len(name) > 120 or "\n" in name for name in names):
        raise ValueError(f"models: at most {MOST_MODELS} names of models, each of 1 to 120 characters in one line")
    return "\n".join(names)


def _check_models(wallet: UUID, restriction: str) -> None:
    """Raise ValueError where credit is there or coming for some of these models in another set."""
    if restriction:
        pools = read_pools(Wallet.objects.values_list("pools", flat=True).get(pk=wallet))
        coming = ScheduledGrant.objects.filter(wallet=wallet).values_list("restriction", flat=True)
        check_pool(restriction, [*pools, *coming])


def schedule(wallet: Wallet, *, amount: int, source: str, models: Iterable[str] = (), **terms: Any) -> None:
    """Have the locked wallet get `amount` µcr by the `terms` of a ScheduledGrant, in place of whatever `source`
    scheduled before; 0: none.

    The grant's `source` is also the key of its transfer: one that has begun stays as it is. Raises ValueError for
    `models` that credit is there or coming for in another set.
    """
    ScheduledGrant.objects.filter(wallet=wallet, source=source).delete()
    if amount and _transfer_of(source) is None:
        restriction = restriction_to(models)
        _check_models(wallet.pk, restriction)
        ScheduledGrant.objects.create(wallet=wallet, amount=amount, source=source, restriction=restriction, **terms)
    apply_now([ExpireGrants(wallet.pk)])


@transaction.atomic
def grant_later(
    *,
    wallet_id: UUID,
    amount: int,
    kind: CreditGrant.Kind,
    key: str,
    begins_at: datetime,
    expires_at: datetime | None = None,
    priority: int = 50,
    actor: str = "",
    reason: str = "",
    paid_amount: int | None = None,
    currency: str = "",
    paid_reference: str = "",
    models: Iterable[str] = (),
) -> UUID:
    """Have the wallet get a grant at `begins_at`, for requests of the `models` alone where they are given, and return
    the id that it will have; what `key` scheduled before stays as it is.

    Raises ValueError that names the field for terms that can't be, KeyReusedError when `key` made a grant of other
    terms.
    """
    wallet, source = lock(wallet_id), _later(wallet_id, key)
    terms = {
        "amount": amount,
        "kind": str(kind),
        "priority": priority,
        "paid_amount": paid_amount,
        "currency": currency,
        "paid_reference": paid_reference,
        "restriction": (restriction := restriction_to(models)),
    }
    apply_now([ExpireGrants(wallet_id)])  # what has begun by now is a grant
    coming = ScheduledGrant.objects.filter(wallet=wallet, source=source).first()
    before = coming or CreditGrant.objects.filter(wallet=wallet, source=source).first()
    if before is not None:
        begins = before.begins_at if isinstance(before, ScheduledGrant) else before.effective_at
        if begins != begins_at or any(getattr(before, name) != value for name, value in terms.items()):
            raise KeyReusedError(key)
        return before.pk
    if _transfer_of(key) is not None:
        raise KeyReusedError(key)
    _check_terms(amount, paid_amount, currency, paid_reference)
    check_ahead(begins_at=begins_at, expires_at=expires_at)
    if amount > MAX_POSTED:
        raise ValueError(f"amount: a wallet holds at most {format_credits(MAX_POSTED, separator=',')} credits")
    if begins_at <= clock.now():
        raise ValueError("begins_at: must be in the future")
    if expires_at is not None and expires_at <= begins_at:
        raise ValueError("expires_at: must be after the beginning")
    if kind in GIFTS and _gifts_of(wallet) >= MOST_OPEN_GRANTS:
        raise ValueError(f"wallet: {MOST_OPEN_GRANTS} of its grants have credit left or are to come")
    _check_models(wallet_id, restriction)
    made = ScheduledGrant.objects.create(
        wallet=wallet, source=source, begins_at=begins_at, expires_at=expires_at, actor=actor, reason=reason, **terms
    )
    apply_now([ExpireGrants(wallet_id)])
    return made.pk


def _later(wallet: UUID, key: str) -> str:
    """Return the source of a grant that `key` gives later."""
    return f"{LATER}{wallet.hex}:{key}"


@transaction.atomic
def cancel(scheduled_id: UUID) -> None:
    """Let a grant that hasn't begun never begin. Raises ValueError where it has, or something else gives it."""
    one = ScheduledGrant.objects.get(pk=scheduled_id)
    lock(one.wallet_id)
    if not one.source.startswith(LATER):
        raise ValueError("grant: it comes with a plan or a recurring grant, and is changed there")
    if not withdraw(one.wallet, ScheduledGrant.objects.filter(pk=one.pk)):
        raise ValueError("grant: it has begun: void it instead")


def withdraw(wallet: Wallet, scheduled: QuerySet[ScheduledGrant]) -> int:
    """Let the locked wallet never get these grants, and return how many those are: what has begun by now has."""
    apply_now([ExpireGrants(wallet.pk)])
    found = list(scheduled)
    for one in found:
        one.delete()
    apply_now([ExpireGrants(wallet.pk)])  # notes when the next one begins
    return len(found)


@transaction.atomic
def void(*, grant_id: UUID, key: str, actor: str, reason: str) -> int:
    """End a grant now and return how many of its µcr were taken back (transferred to the issuance account).

    What open holds may still need of it stays until they are closed; what they leave goes to breakage as if it had
    expired. Repeating it with the same `key` returns the same sum; another use of `key` raises KeyReusedError.
    """
    ended = _locked(grant_id)
    if (before := _taken_by(key, Code.VOID, ended)) is not None:
        return before
    taken = _moved(Void(wallet=ended.wallet_id, grant=ended.pk, key=key, actor=actor, reason=reason))
    if taken:
        _announce(key, -taken)
    return taken


@transaction.atomic
def refund(
    *,
    grant_id: UUID,
    key: str,
    actor: str,
    reason: str,
    reference: str,
    money: int | None = None,
    most: int | None = None,
) -> int:
    """End a paid grant as `void` does, since money is paid back for it, and return how many µcr were taken out.

    With `most` no more µcr are taken out, and the grant goes on with the rest. `money` is in the minor units of what
    was paid; None is the share of it that the credit taken out has, rounded down. `reference` names the payment. With
    the grant the sum of its refunds' money and the last one's reference are kept. Repeating it with the same `key`
    returns the same sum. Raises ValueError that names the field for what can't be, KeyReusedError when `key` made
    another change.
    """
    ended = _locked(grant_id)
    if (before := _taken_by(key, Code.REFUND, ended)) is not None:
        keys = _refunds_of(ended)  # of several, only the last one's reference is known, and their money together
        if keys[-1] == key and ended.refund_reference != reference:
            raise KeyReusedError(key)
        if keys == [key] and money not in (None, ended.refunded_amount):
            raise KeyReusedError(key)
        return before
    if not reference.strip():
        raise ValueError("reference: a refund needs the payment's")
    if ended.paid_amount is None:
        raise ValueError("grant: nothing was paid for it; void it instead")
    unpaid = ended.paid_amount - (ended.refunded_amount or 0)
    if money is not None and not 0 <= money <= unpaid:
        raise ValueError(f"money: between 0 and the {unpaid} that were paid and not paid back")
    op = Void(wallet=ended.wallet_id, grant=ended.pk, key=key, actor=actor, reason=reason, is_refund=True, most=most)
    taken = _moved(op)
    if not taken:
        raise ValueError("grant: nothing is left of it that isn't held")
    share = min(unpaid, ended.paid_amount * taken // ended.amount)
    CreditGrant.objects.filter(pk=ended.pk).update(
        refunded_amount=(ended.refunded_amount or 0) + (share if money is None else money), refund_reference=reference
    )
    _announce(key, -taken)
    return taken


@transaction.atomic
def adjust(*, wallet_id: UUID, amount: int, key: str, actor: str, reason: str) -> None:
    """Correct the wallet by `amount` µcr: a new promotional grant when positive, else taken in burn order, restricted
    grants last.

    Repeating it with the same `key` changes nothing. Raises InsufficientCreditError if that would take held credit,
    ValueError without an amount or reason, KeyReusedError when `key` made another change.
    """
    if not reason.strip():
        raise ValueError("reason: an adjustment needs one")
    if not amount:
        raise ValueError("amount: must not be zero")
    wallet = lock(wallet_id)
    if _transfer_of(key) is not None:
        if _adjusted_by(key, wallet) != amount:
            raise KeyReusedError(key)
        return
    _moved(Adjust(wallet=wallet_id, amount=amount, key=key, actor=actor, reason=reason))
    _announce(key, amount)


@transaction.atomic
def refund_request(*, request: UUID, key: str, actor: str, reason: str, amount: int | None = None) -> int:
    """Give back `amount` µcr of what a request was charged, None for all that is left, and return how many that were.

    They go to the grants that paid it, the last first; what came from one that has ended goes to breakage. Repeating it
    with the same `key` returns the same sum. Raises ValueError that names the field for what can't be, RefundError
    where less was charged, KeyReusedError when `key` made another change.
    """
    if not reason.strip():
        raise ValueError("reason: a refund needs one")
    if re.search(r":\d+$", key):
        raise ValueError("key: must not end in a colon and a number, as those of a refund's further transfers do")
    record = _last_record(request)
    if record is None and archived.is_archived(request):
        raise ValueError(archived.FINAL.format(month=f"{day_of(request):%Y-%m}"))
    if record is None:
        raise ValueError("request: there is no such usage record; a request that runs is settled first")
    lock(record.wallet)
    if _transfer_of(key) is not None:
        before = sum(one.amount for one in _parts_of(key) if one.request == request)
        if not before or amount not in (None, before):
            raise KeyReusedError(key)
        return before
    record = _last_record(request)  # as it is under the lock
    if record is None:  # archived meanwhile
        raise ValueError(archived.FINAL.format(month=f"{day_of(request):%Y-%m}"))
    wanted = record.charge if amount is None else amount
    if amount is not None and amount <= 0:
        raise ValueError("amount: must be above zero")
    if not wanted:
        raise RefundError(0, 0)
    taken = _moved(Refund(request=request, wallet=record.wallet, amount=wanted, key=key, actor=actor, reason=reason))
    _announce(key, taken)
    return taken


def _check_terms(amount: int, paid_amount: int | None, currency: str, paid_reference: str) -> None:
    """Raise ValueError that names the field for terms that no grant can have."""
    if amount <= 0:
        raise ValueError("amount: must be above zero")
    if (paid_amount is None) != (not currency):
        raise ValueError("paid_amount: money has an amount and a currency, or neither")
    if paid_amount is not None and paid_amount < 0:
        raise ValueError("paid_amount: must not be below zero")
    if currency and not re.fullmatch("[A-Z]{3}", currency):
        raise ValueError("currency: three letters, as EUR")
    if paid_reference and paid_amount is None:
        raise ValueError("paid_reference: a payment has an amount and a currency")


def _gifts_of(wallet: Wallet) -> int:
    """Return how many grants of the wallet have credit left or are to come."""
    return wallet.grants.filter(remaining__gt=0).count() + wallet.scheduled_grants.count()


def _last_record(request: UUID) -> UsageRecord | None:
    return UsageRecord.objects.filter(day=day_of(request), request=request).order_by("-revision").first()


def _moved(op: Void | Adjust | Refund) -> int:
    """Apply it, and return how many µcr came in or were taken out; InsufficientCreditError where too few are free,
    RefundError where too few were charged.
    """
    [answer] = apply_now([op])
    if isinstance(answer, Refused) and isinstance(op, Refund):
        raise RefundError(op.amount, answer.available)
    if isinstance(answer, Refused) and isinstance(op, Adjust):
        raise InsufficientCreditError(-op.amount, answer.available)
    assert isinstance(answer, Moved), answer
    return answer.amount


def _announce(key: str, amount: int) -> None:
    of_key = LedgerTransfer.objects.select_related("grant", "debit__wallet", "credit__wallet").get(key=key)
    credit_changed.send(LedgerTransfer, transfer=of_key, amount=amount)


def _locked(grant_id: UUID) -> CreditGrant:
    """Lock a grant's wallet, and return the grant as it is then."""
    lock(CreditGrant.objects.values_list("wallet_id", flat=True).get(pk=grant_id))
    return CreditGrant.objects.get(pk=grant_id)


def _taken_by(key: str, code: Code, ended: CreditGrant) -> int | None:
    """Return how many µcr of the grant that very key took out before, None where it is a new one."""
    before = _transfer_of(key)
    if before is None:
        return None
    if before.code != code or before.grant_id != ended.pk:
        raise KeyReusedError(key)
    return before.amount


def _refunds_of(grant: CreditGrant) -> list[str | None]:
    """Return the keys of the refunds that took credit out of the grant, in their order."""
    out_of_wallet = LedgerTransfer.objects.filter(debit=account_of(grant.wallet), code=Code.REFUND, grant=grant)
    return list(out_of_wallet.order_by("id").values_list("key", flat=True))


def _adjusted_by(key: str, wallet: Wallet) -> int:
    """Return by how much the adjustment of that very key changed the wallet, 0 if there was none.

    The first of its transfers has the key itself, the others `key:order`. Callers choose keys freely: one may begin
    with another, or look like the key of another's part.
    """
    account = account_of(wallet)
    found = LedgerTransfer.objects.filter(Q(key=key) | Q(key__startswith=f"{key}:"), code=Code.ADJUSTMENT)
    return sum(
        one.amount if one.credit_id == account.pk else -one.amount
        for one in found
        if one.key == (f"{key}:{one.order}" if one.order else key) and account.pk in (one.credit_id, one.debit_id)
    )


def _parts_of(key: str) -> list[LedgerTransfer]:
    """Return the transfers of the refund of a request that has the key: the first has the key itself, the others
    ``key:1`` and so on, one after the other, which no refund has as its own.
    """
    named = LedgerTransfer.objects.filter(Q(key=key) | Q(key__startswith=f"{key}:"), code=Code.REQUEST_REFUND)
    found = {one.key: one for one in named}
    keys = itertools.chain([key], (f"{key}:{number}" for number in itertools.count(1)))
    return list(map(found.__getitem__, itertools.takewhile(found.__contains__, keys)))


def _transfer_of(key: str) -> LedgerTransfer | None:
    return LedgerTransfer.objects.filter(key=key).select_related("grant").first()
