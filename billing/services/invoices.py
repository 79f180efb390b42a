"""Invoices: what wallets are overdrawn by at the ends of their months, where the plan says so, and their payment.

Sluice collects no money: an operator sends the invoice, and says when it was paid.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Max, Q, Sum

from base import clock
from billing.models import CreditGrant, Invoice, LedgerTransfer, Wallet
from billing.services import credits
from billing.services.wallets import account_of, lock

_TRIES = 5


@transaction.atomic
def issue(wallet: Wallet, ends_at: datetime) -> Invoice | None:
    """Make the locked wallet's invoice of the month that ended at `ends_at`: for what it was overdrawn by then, less
    what the invoices that were open then ask for. None where that is nothing, or the month has its invoice.
    """
    were_open = Q(state=Invoice.State.OPEN) | Q(state=Invoice.State.PAID, closed_at__gte=ends_at)
    asked = wallet.invoices.filter(were_open, ends_at__lt=ends_at).aggregate(sum=Sum("amount"))["sum"] or 0
    amount = _overdrawn_at(wallet, ends_at) - asked
    if amount <= 0 or wallet.invoices.filter(ends_at=ends_at).exists():
        return None
    for _ in range(_TRIES):
        last = Invoice.objects.aggregate(number=Max("number"))["number"] or 0
        try:
            with transaction.atomic():
                return Invoice.objects.create(wallet=wallet, number=last + 1, ends_at=ends_at, amount=amount)
        except IntegrityError:  # the number was taken meanwhile
            continue
    raise RuntimeError("no number for an invoice: others take them all the time")


@transaction.atomic
def pay(invoice_id: UUID, *, reference: str, paid_amount: int, currency: str, actor: str) -> Invoice:
    """Note that an invoice was paid, and grant its credit: that repays what is overdrawn, and the rest can be spent.

    Again with the same reference it changes nothing. Raises ValueError that names the field for what can't be.
    """
    one = _locked(invoice_id)
    if one.grant is not None and one.grant.paid_reference == reference:
        if (one.grant.paid_amount, one.grant.currency) != (paid_amount, currency):
            raise ValueError("paid_amount: this payment was noted with another sum; refund its grant to correct that")
        return one
    if one.state != Invoice.State.OPEN:
        raise ValueError(f"invoice: it is {one.get_state_display().lower()} already")
    if not reference.strip():
        raise ValueError("reference: a payment needs one")
    one.grant = credits.grant(
        wallet_id=one.wallet_id,
        amount=one.amount,
        kind=CreditGrant.Kind.PAID,
        key=f"invoice:{one.pk}",
        actor=actor,
        reason=str(one),
        source=str(one).lower(),
        paid_amount=paid_amount,
        currency=currency,
        paid_reference=reference,
    )
    _close(one, Invoice.State.PAID)
    return one


@transaction.atomic
def void(invoice_id: UUID, *, reason: str) -> Invoice:
    """Ask for an invoice no more, and return it. What is still overdrawn is part of the next month's.

    Raises ValueError that names the field for what can't be.
    """
    one = _locked(invoice_id)
    if one.state == Invoice.State.PAID:
        raise ValueError("invoice: it is paid already; refund its grant")
    if not reason.strip():
        raise ValueError("reason: a void needs one")
    if one.state == Invoice.State.OPEN:
        one.reason = reason
        _close(one, Invoice.State.VOID)
    return one


def _locked(invoice_id: UUID) -> Invoice:
    lock(Invoice.objects.values_list("wallet_id", flat=True).get(pk=invoice_id))
    return Invoice.objects.select_related("grant").get(pk=invoice_id)


def _close(one: Invoice, state: Invoice.State) -> None:
    one.state, one.closed_at = state, clock.now()
    one.save(update_fields=["state", "closed_at", "grant", "reason"])


def _overdrawn_at(wallet: Wallet, moment: datetime) -> int:
    """Return what the wallet was overdrawn by at a moment of late: what it is now, less what was overdrawn since, plus
    what was repaid since, as by the credit of the next month.
    """
    account = account_of(wallet)
    since = LedgerTransfer.objects.filter(grant=None, booked_at__gte=moment)
    drawn, repaid = (
        since.filter(**{side: account}).aggregate(sum=Sum("amount"))["sum"] or 0 for side in ("debit", "credit")
    )
    left = wallet.grants.aggregate(sum=Sum("remaining"))["sum"] or 0
    posted = Wallet.objects.values_list("posted", flat=True).get(pk=wallet.pk)
    return left - posted - drawn + repaid
