"""A tenant's months by its own time zone, and the statements that are made of those that are over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Max, QuerySet, Subquery

from base import clock
from billing.models import LedgerSeal, Statement, Subscription, Wallet
from billing.periods import zone
from billing.seals import sealing
from billing.seals.leaves import Books, first_booked
from billing.seals.sealing import BEGINNING, midnight
from billing.statements.sums import Sums

_DAY = timedelta(days=1)
ISSUING_TRIES = 5


class NoStatementError(ValueError):
    """The month has no statement: nothing was booked yet, or it lies ahead."""


@dataclass(frozen=True, slots=True)
class Month:
    """A month of a tenant: from `begins_at` to just before `ends_at`, `opening` posted at its beginning.

    `statement` is that of a month that is over and sealed; None: it is a draft.
    """

    tenant: UUID
    first: date
    time_zone: str
    begins_at: datetime
    ends_at: datetime
    opening: int
    statement: Statement | None = None

    @property
    def days(self) -> Iterator[date]:
        """The UTC days that it lies in."""
        day, last = self.begins_at.date(), (self.ends_at - timedelta(microseconds=1)).date()
        while day <= last:
            yield day
            day += _DAY

    @property
    def name(self) -> str:
        """The month, as 2026-11."""
        return f"{self.first:%Y-%m}"

    @classmethod
    def of(cls, statement: Statement) -> Month:
        """Return the month of a statement."""
        return cls(
            statement.tenant,
            statement.month,
            statement.time_zone,
            statement.begins_at.astimezone(UTC),
            statement.ends_at.astimezone(UTC),
            statement.opening,
            statement,
        )


def parsed(text: str) -> date:
    """Return the first day of the month that `text` names, as 2026-11; raise ValueError for another text."""
    try:
        return datetime.strptime(text, "%Y-%m").date()  # noqa: DTZ007 - a day has no zone
    except ValueError as error:
        raise ValueError(f"month: {text!r} is not written as 2026-11") from error


def month_of(tenant: UUID, first: date) -> Month:
    """Return the tenant's month, a draft where it has no statement; raise NoStatementError where it can have none."""
    made = Statement.objects.filter(tenant=tenant, month=first).first()
    if made is not None:
        return Month.of(made)
    found = next((month for month in _drafts(tenant, statements_of(tenant, 1)) if month.first == first), None)
    if found is None:
        raise NoStatementError(f"month: nothing was booked in {first:%Y-%m}, or it lies ahead")
    return replace(found, opening=_balance_at(tenant, found.begins_at))


def statements_of(tenant: UUID, most: int) -> list[Statement]:
    """Return the tenant's latest statements, without their lines."""
    return list(Statement.objects.filter(tenant=tenant).order_by("-month").defer("sums")[:most])


def drafts_of(tenant: UUID, statements: Sequence[Statement]) -> list[str]:
    """Return the names of the months that have no statement yet, that of now first; `statements` are the tenant's
    latest. One query.
    """
    return [month.name for month in _drafts(tenant, statements)][::-1]


def _drafts(tenant: UUID, statements: Sequence[Statement]) -> Iterator[Month]:
    """Yield the months behind the last statement up to the one that runs, in turn, their opening balance left out."""
    subscriptions = _subscriptions(tenant).values("time_zone")[:1]
    begun, rest = first_booked(tenant, BEGINNING, Subquery(subscriptions), clock.now_in_query())
    if begun is None:
        return
    time_zone, now = rest
    month = _first_behind(tenant, statements, begun, time_zone or "UTC")
    while month.begins_at <= clock.parsed(now):
        yield month
        month = _following(month, 0, month.time_zone)


def _first_open(tenant: UUID) -> Month | None:
    """Return the month after the last statement, or that of the first row; None where nothing was booked."""
    statements = statements_of(tenant, 1)
    if statements:  # the rows before may be in the archive
        return _following(Month.of(statements[0]), statements[0].closing, time_zone_of(tenant))
    begun, _ = first_booked(tenant, BEGINNING)
    return None if begun is None else _first_behind(tenant, [], begun, time_zone_of(tenant))


def _first_behind(tenant: UUID, statements: Sequence[Statement], begun: datetime, time_zone: str) -> Month:
    if statements:
        return _following(Month.of(statements[0]), statements[0].closing, time_zone)
    first = begun.astimezone(zone(time_zone)).date().replace(day=1)
    return Month(tenant, first, time_zone, _begin(first, time_zone), _begin(_after(first), time_zone), 0)


def _following(before: Month, opening: int, time_zone: str) -> Month:
    first = _after(before.first)
    return Month(before.tenant, first, time_zone, before.ends_at, _begin(_after(first), time_zone), opening)


def _balance_at(tenant: UUID, moment: datetime) -> int:
    """Return what was posted at a moment: by the last seal before it, and what moved since."""
    seals = LedgerSeal.objects.filter(tenant=tenant, day__lt=moment.date())
    last = seals.order_by("-number").defer("blocks").first()
    since = midnight(last.day + _DAY) if last else BEGINNING
    return (last.balance if last else 0) + sum(leaf.moved for leaf in Books(tenant).leaves(since, moment))


def _after(first: date) -> date:
    return (first + 31 * _DAY).replace(day=1)


def _begin(first: date, name: str) -> datetime:
    """Return when a day begins in a time zone; a midnight that clocks skip is moved on by the gap."""
    return datetime(first.year, first.month, first.day, tzinfo=zone(name)).astimezone(UTC)


def time_zone_of(tenant: UUID) -> str:
    """Return the time zone of the tenant's latest subscription, UTC without one."""
    return _subscriptions(tenant).values_list("time_zone", flat=True).first() or "UTC"


def _subscriptions(tenant: UUID) -> QuerySet[Subscription]:
    return Subscription.objects.filter(tenant=tenant).order_by("-anchor", "-pk")


def close_months(tenant: UUID, sealed_until: datetime) -> int:
    """Make the statements of the tenant's months that are over and sealed; return how many were made."""
    made = 0
    while (month := _first_open(tenant)) is not None and midnight(last_day(month) + _DAY) <= sealed_until:
        sealing.seal_through(tenant, last_day(month))
        sums = Sums(month.opening)
        books = Books(tenant)
        for leaf in books.leaves(month.begins_at, month.ends_at):
            sums.add(leaf, books.cards)
        if not _issue(month, sums):
            return made
        made += 1
    return made


def last_day(month: Month) -> date:
    """Return the last UTC day that the month lies in."""
    return (month.ends_at - timedelta(microseconds=1)).date()


def _issue(month: Month, sums: Sums) -> bool:
    """Make the statement under the next number; return whether another process hasn't made it meanwhile."""
    for _ in range(ISSUING_TRIES):
        try:
            with transaction.atomic():
                last = Statement.objects.aggregate(number=Max("number"))["number"] or 0
                Statement.objects.create(
                    tenant=month.tenant,
                    month=month.first,
                    number=last + 1,
                    time_zone=month.time_zone,
                    begins_at=month.begins_at,
                    ends_at=month.ends_at,
                    opening=month.opening,
                    closing=sums.closing,
                    sums=sums.told(),
                )
        except IntegrityError:  # the number or the month was taken meanwhile
            if Statement.objects.filter(tenant=month.tenant, month=month.first).exists():
                return False
        else:
            return True
    raise RuntimeError("no number for a statement: others take them all the time")


def seals_of(month: Month) -> list[LedgerSeal]:
    """Return the seals that cover days of the month, without their blocks, in turn."""
    days = list(month.days)
    found = LedgerSeal.objects.filter(tenant=month.tenant, day__gte=days[0], first__lte=days[-1])
    return list(found.order_by("number").defer("blocks"))


def turn(wallet: UUID) -> None:
    """Seal the days and make the statements of a wallet's tenant that are due: one row's part of a sweep."""
    tenant = Wallet.objects.filter(pk=wallet).values_list("tenant", flat=True).get()
    until = sealing.seal_tenant(tenant)
    if until is not None:
        close_months(tenant, until)
        sealing.note_sealed(tenant, until)
