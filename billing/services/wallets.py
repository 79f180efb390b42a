"""Wallets, their ledger accounts, and the lock under which credit moves."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models import F, Max

from billing.models import LedgerAccount, Wallet
from billing.services.errors import WalletNotFoundError

OPERATOR_KINDS = tuple(kind for kind in LedgerAccount.Kind if kind is not LedgerAccount.Kind.WALLET)


@transaction.atomic
def open_wallet(*, tenant_id: UUID, name: str = "main") -> Wallet:
    """Return the tenant's wallet of this name, created with its ledger account if it isn't there yet."""
    ensure_operator_accounts()
    closed = Wallet.objects.filter(tenant_id=tenant_id).aggregate(until=Max("closed_until"))
    wallet, _ = Wallet.objects.get_or_create(tenant_id=tenant_id, name=name, defaults={"closed_until": closed["until"]})
    LedgerAccount.objects.get_or_create(kind=LedgerAccount.Kind.WALLET, wallet=wallet)
    return wallet


def ensure_operator_accounts() -> None:
    """Create the operator's ledger accounts that are missing."""
    present = set(LedgerAccount.objects.filter(wallet=None).values_list("kind", flat=True))
    missing = [LedgerAccount(kind=kind) for kind in OPERATOR_KINDS if kind not in present]
    if missing:
        LedgerAccount.objects.bulk_create(missing, ignore_conflicts=True)


def lock(wallet_id: UUID) -> Wallet:
    """Lock the wallet until the transaction ends, and return it as it is then; WalletNotFoundError if there is none.

    Whoever changes a wallet's credit, holds or grants calls this first (the writer locks in its own SQL). The order of
    locks is wallets by id, then holds, then grants.
    """
    if not Wallet.objects.filter(pk=wallet_id).update(version=F("version") + 1):
        raise WalletNotFoundError(wallet_id)
    return Wallet.objects.get(pk=wallet_id)


@transaction.atomic
def set_state(wallet_id: UUID, state: Wallet.State) -> Wallet:
    """Freeze a wallet or open it again, and return it.

    Of a frozen one nothing more is held: new requests are refused, and answers end where what they hold does. What was
    held is charged, and credit may come in.
    """
    wallet = lock(wallet_id)
    wallet.state = state
    wallet.save(update_fields=["state"])
    return wallet


def account_of(wallet: Wallet) -> LedgerAccount:
    """Return the wallet's own ledger account."""
    return LedgerAccount.objects.get(kind=LedgerAccount.Kind.WALLET, wallet=wallet)


def operator_account(kind: LedgerAccount.Kind) -> LedgerAccount:
    """Return the operator's ledger account of this kind."""
    return LedgerAccount.objects.get(kind=kind, wallet=None)
