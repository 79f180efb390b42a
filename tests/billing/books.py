"""The three sums that must agree for a wallet, whatever happened to it."""

from __future__ import annotations

from django.db.models import Sum

from billing.models import CreditGrant, LedgerAccount, LedgerTransfer, Wallet


def total(transfers):
    return transfers.aggregate(total=Sum("amount"))["total"] or 0


def overdraft_of(account):
    drawn = total(LedgerTransfer.objects.filter(debit=account, grant=None))
    return drawn - total(LedgerTransfer.objects.filter(credit=account, grant=None))


def assert_books_balance(wallet):
    """Check that posted = Σ transfers = Σ grants' rest − overdraft, and that transfers explain each grant's rest."""
    wallet = Wallet.objects.get(pk=wallet.pk)
    account = LedgerAccount.objects.get(wallet=wallet)
    moved = total(LedgerTransfer.objects.filter(credit=account)) - total(LedgerTransfer.objects.filter(debit=account))
    assert wallet.posted == moved
    grants = list(CreditGrant.objects.filter(wallet=wallet))
    for grant in grants:
        into = total(LedgerTransfer.objects.filter(credit=account, grant=grant))
        out = total(LedgerTransfer.objects.filter(debit=account, grant=grant))
        given_back = total(LedgerTransfer.objects.filter(credit=account, grant=grant, code=LedgerTransfer.Code.TRUE_UP))
        assert grant.amount == into - given_back
        assert grant.remaining == into - out
    assert wallet.posted == sum(grant.remaining for grant in grants) - overdraft_of(account)
