"""Reads of credit: prices, balances, ledgers and usage. Each makes a fixed number of queries and writes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from django.db.models import Min, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.expressions import RawSQL
from django.db.models.functions import TruncDate

from billing import clock
from billing.ids import day_of, first_at
from billing.models import (
    CreditGrant,
    Hold,
    LedgerAccount,
    LedgerTransfer,
    Rate,
    RateCardVersion,
    UsageRecord,
    UsageRollup,
    Wallet,
)
from billing.rating import CLASSES, CardPrices, context_of, shares
from billing.writer.expiry import kept_for_holds


def prices_at(moment: datetime) -> dict[str, CardPrices]:
    """Return the prices of every card at `moment`, by the card's name; cards without a version by then are left out."""
    newest = (
        RateCardVersion.objects.filter(card=OuterRef("card"), published_at__isnull=False, effective_from__lte=moment)
        .order_by("-effective_from")
        .values("pk")[:1]
    )
    versions = list(RateCardVersion.objects.select_related("card").filter(pk=Subquery(newest)))
    rates: dict[UUID, list[tuple[int, str, int]]] = defaultdict(list)
    for rate in Rate.objects.filter(version__in=versions):
        rates[rate.version_id].append((rate.tier_min_context, rate.usage_class, rate.rate))
    return {
        version.card.name: CardPrices.build(version.pk, version.request_fee, rates[version.pk]) for version in versions
    }


def prices_change_at(moment: datetime) -> datetime | None:
    """Return when the next published price comes into force after `moment`; None when none is published."""
    coming = RateCardVersion.objects.filter(published_at__isnull=False, effective_from__gt=moment)
    first: datetime | None = coming.aggregate(first=Min("effective_from"))["first"]
    return first


@dataclass(frozen=True, slots=True)
class Balance:
    """A wallet's sums in µcr: a new request may hold `available`; `expiring` is what ends next, at `expires_at`."""

    wallet: UUID
    posted: int
    held: int
    overdraft_limit: int
    available: int
    expiring: int
    expires_at: datetime | None


def balance(tenant: UUID, *, name: str = "main") -> Balance | None:
    """Return the tenant's balance now, less credit that has expired; None when there is no such wallet."""
    wallet = Wallet.objects.filter(tenant_id=tenant, name=name).annotate(now=clock.now_in_query()).first()
    if wallet is None:
        return None
    grants = CreditGrant.objects.filter(wallet=wallet, remaining__gt=0, expires_at__isnull=False).order_by("expires_at")
    ends = list(grants.values_list("pk", "expires_at", "remaining"))
    ended = [grant for grant in ends if grant[1] is not None and grant[1] <= wallet.now]
    coming = ends[len(ended) :]
    first = coming[0][1] if coming else None
    expired = sum(rest for _, _, rest in ended)
    if ended:  # what open holds may still need of it doesn't expire yet
        expired -= sum(kept_for_holds(ended, wallet.holds.values_list("reserved_at", "amount")).values())
    free = wallet.posted - wallet.held - expired
    return Balance(
        wallet=wallet.pk,
        posted=wallet.posted,
        held=wallet.held,
        overdraft_limit=wallet.overdraft_limit,
        available=free + wallet.overdraft_limit,
        expiring=sum(rest for _, end, rest in coming if end == first),
        expires_at=first,
    )


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Usage of one UTC day, in tokens and µcr; model, api_key and project are None where sums aren't split by them."""

    day: date
    model: str | None
    api_key: UUID | None
    project: UUID | None
    requests: int
    input_tokens: int
    cache_read_tokens: int
    output_tokens: int
    charge: int


_GROUPS = ("model", "api_key", "project")
_SUMS = ("requests", "input_tokens", "cache_read_tokens", "output_tokens", "charge")


def usage_by_day(
    tenant: UUID | None,
    first: date,
    last: date,
    *,
    by: Collection[str] = (),
    project: UUID | None = None,
    api_key: UUID | None = None,
    model: str = "",
) -> list[UsageSum]:
    """Return sums per UTC day from `first` to `last`, both included, split by any of model, api_key and project.

    Summed from the hourly rollups, which lag by seconds. Without `tenant`, of all tenants. ValueError for an unknown
    `by`.
    """
    unknown = set(by) - set(_GROUPS)
    if unknown:
        raise ValueError(f"by: {min(unknown)!r} is none of {', '.join(_GROUPS)}")
    rows = UsageRollup.objects.filter(hour__gte=_midnight(first), hour__lt=_midnight(last + timedelta(days=1)))
    if tenant is not None:
        rows = rows.filter(tenant=tenant)
    if project is not None:
        rows = rows.filter(project=project)
    if api_key is not None:
        rows = rows.filter(api_key=api_key)
    if model:
        rows = rows.filter(model=model)
    groups = [name for name in _GROUPS if name in by]
    summed = (
        rows.annotate(day=TruncDate("hour", tzinfo=UTC))
        .values("day", *groups)
        .annotate(**{f"sum_{name}": Sum(name) for name in _SUMS})
        .order_by("day", *groups)
    )
    return [
        UsageSum(
            day=row["day"],
            model=row.get("model"),
            api_key=row.get("api_key"),
            project=row.get("project"),
            **{name: int(row[f"sum_{name}"]) for name in _SUMS},
        )
        for row in summed
    ]


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def recent_usage(
    tenant: UUID,
    *,
    limit: int = 50,
    before: UUID | None = None,
    project: UUID | None = None,
    api_key: UUID | None = None,
    model: str = "",
) -> Sequence[UsageRecord]:
    """Return the tenant's latest requests, newest first, each with its last revision, at most `limit`, below request id
    `before`.
    """
    rows = UsageRecord.objects.latest_revisions().filter(tenant=tenant)
    if before is not None:
        rows = rows.filter(
            day__lte=day_of(before), request__lt=before
        )  # `day` lets the index find the start of the page
    if project is not None:
        rows = rows.filter(project=project)
    if api_key is not None:
        rows = rows.filter(api_key=api_key)
    if model:
        rows = rows.filter(model=model)
    return list(rows.order_by("-day", "-request")[:limit])


def record_of(request_id: UUID, tenant: UUID) -> UsageRecord | None:
    """Return the last revision of the tenant's usage record of one request; None while it runs, or if it isn't
    theirs.
    """
    found = UsageRecord.objects.filter(day=day_of(request_id), request=request_id, tenant=tenant)
    return found.order_by("-revision").first()


def hold_of(request_id: UUID, tenant: UUID) -> Hold | None:
    """Return the open hold of the tenant's request, None when there is none."""
    return Hold.objects.filter(pk=request_id, tenant=tenant).first()


@dataclass(frozen=True, slots=True)
class Estimate:
    """The latest revision of a usage record that isn't exact: with what correcting it needs. `charge` is µcr."""

    request: UUID
    wallet: UUID
    deployment: UUID
    card_version: UUID
    multiplier_bp: int
    charge: int


def estimates_since(moment: datetime, *, after: UUID | None = None, limit: int = 100) -> list[Estimate]:
    """Return the estimates of requests made since `moment`, oldest first, at most `limit`; `after` pages by request.

    Walks a partial index from `moment` on, so it costs no more as records pile up.
    """
    first = first_at(moment)
    found = UsageRecord.objects.latest_revisions().filter(exact=False, day__gte=day_of(first), request__gte=first)
    if after is not None:
        found = found.filter(day__gte=day_of(after), request__gt=after)
    columns = ("request", "wallet", "deployment", "card_version", "multiplier_bp", "charge")
    return [Estimate(*row) for row in found.order_by("day", "request").values_list(*columns)[:limit]]


@dataclass(frozen=True, slots=True)
class BillLine:
    """What one usage class of a request cost: `rate` in µcr per million tokens as listed, `amount` in µcr.

    The class ``request`` is the fee of a request that ran; it has no tokens and no rate.
    """

    usage_class: str
    tokens: int
    rate: int
    amount: int


def bill_of(record: UsageRecord) -> list[BillLine]:
    """Return the lines of a request's charge by its own card version; their amounts add up to the charge exactly.

    Classes without tokens have none, and so has a request that was charged nothing.
    """
    version = RateCardVersion.objects.filter(pk=record.card_version).first()
    classes = {name: tokens for name in CLASSES if (tokens := getattr(record, f"{name}_tokens"))}
    if version is None or not classes or not record.charge:
        return []
    rates = Rate.objects.filter(version=version).values_list("tier_min_context", "usage_class", "rate")
    card = CardPrices.build(version.pk, version.request_fee, rates)
    listed = card.rates_for(context_of(classes))
    parts = shares(classes, card, record.multiplier_bp)
    return [BillLine(name, classes.get(name, 0), listed.get(name, 0), part) for name, part in parts.items()]


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
    """Return a page of the wallet's transfers with the running balance, which ends at what the wallet has posted."""
    account = LedgerAccount.objects.filter(wallet=wallet).values_list("pk", flat=True).first()
    if account is None:
        return LedgerPage([], None)
    older = LedgerTransfer.objects.order_by("-booked_at", "-id")
    if before is not None:
        # Compared inside the database: SQLite's clock writes times with fewer digits than Django does.
        moment = Subquery(LedgerTransfer.objects.filter(pk=before.id).values("booked_at"))
        older = older.filter(Q(booked_at__lt=moment) | Q(booked_at=moment, id__lt=before.id))
    # The wallet in the same statement, so that its balance includes exactly these transfers.
    found = list(
        LedgerTransfer.objects.filter(pk__in=_newest_of_both_sides(older, account, limit + 1))
        .annotate(posted=Subquery(Wallet.objects.filter(pk=wallet).values("posted")))
        .select_related("grant")
        .order_by("-booked_at", "-id")[: limit + 1]
    )
    lines: list[LedgerLine] = []
    running = before.balance if before is not None else (found[0].posted if found else 0)
    for transfer in found[:limit]:
        amount = transfer.amount if transfer.credit_id == account else -transfer.amount
        lines.append(LedgerLine(transfer, amount, running))
        running -= amount
    if len(found) <= limit:
        return LedgerPage(lines, None)
    return LedgerPage(lines, LedgerCursor(lines[-1].transfer.pk, running))


def _newest_of_both_sides(transfers: QuerySet[LedgerTransfer], account: UUID, limit: int) -> RawSQL:
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
