"""A wallet's transfers, page by page, with the running balance."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q, QuerySet, Subquery
from django.db.models.expressions import RawSQL

from billing.models import (
    LedgerAccount,
    LedgerTransfer,
    Wallet,
)
from billing.seals import archived


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One transfer of a wallet: `amount` in µcr, negative for a debit, and the `balance` right after it."""

    transfer: LedgerTransfer
    amount: int
    balance: int


@dataclass(frozen=True, slots=True)
class LedgerCursor:
    """Where a page of a ledger ended: its last transfer, and the balance before it."""

    id: int
    balance: int


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """Lines of a wallet's ledger, newest first; `next` begins the following page, None on the last one."""

    lines: list[LedgerLine]
    next: LedgerCursor | None


def ledger_of(wallet: UUID, *, limit: int = 50, before: LedgerCursor | None = None) -> LedgerPage:
    """Return a page of the wallet's transfers with the running balance, which ends at what the wallet has posted; those
    of archived months are in their statements.
    """
    account = Subquery(LedgerAccount.objects.filter(wallet=wallet).values("pk")[:1])
    older = LedgerTransfer.objects.order_by("-booked_at", "-id")
    if (until := archived.edge()) is not None:  # by itself: as part of the query it would have all transfers read
        older = older.filter(booked_at__gte=until)
    if before is not None:
        # Compared inside the database: SQLite's clock writes times with fewer digits than Django does.
        moment = Subquery(LedgerTransfer.objects.filter(pk=before.id).values("booked_at"))
        older = older.filter(Q(booked_at__lt=moment) | Q(booked_at=moment, id__lt=before.id))
    # The wallet in the same statement, so that its balance includes exactly these transfers.
    found = list(
        LedgerTransfer.objects.filter(pk__in=_newest_of_both_sides(older, account, limit + 1))
        .annotate(posted=Subquery(Wallet.objects.filter(pk=wallet).values("posted")), account=account)
        .select_related("grant")
        .order_by("-booked_at", "-id")[: limit + 1]
    )
    lines: list[LedgerLine] = []
    running = before.balance if before is not None else (found[0].posted if found else 0)
    for transfer in found[:limit]:
        amount = transfer.amount if transfer.credit_id == transfer.account else -transfer.amount
        lines.append(LedgerLine(transfer, amount, running))
        running -= amount
    if len(found) <= limit:
        return LedgerPage(lines, None)
    return LedgerPage(lines, LedgerCursor(lines[-1].transfer.pk, running))


def _newest_of_both_sides(transfers: QuerySet[LedgerTransfer], account: Subquery, limit: int) -> RawSQL:
    """Return the ids of an account's newest `limit` debits and `limit` credits among `transfers`.

    A union walks each side's own index. PostgreSQL reads the whole table for an OR of the two, and Django can't
    write a union of limited queries for SQLite.
    """
    halves: list[str] = []
    given: list[object] = []
    for side in ("debit", "credit"):
        sql, parameters = transfers.filter(**{side: account}).values("pk")[:limit].query.sql_with_params()
        halves.append(f"SELECT * FROM ({sql}) AS {side}s")  # noqa: S608 - written by Django
        given += parameters
    return RawSQL(" UNION ALL ".join(halves), given)  # noqa: S611
