"""Budgets: made, changed and removed under the wallet's lock, and what counts in them now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

import msgspec
from django.db import transaction
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import F, Max, Q, QuerySet

from base import clock
from billing.models import Budget, BudgetWindow, Hold, SpendBudget, Wallet
from billing.periods import CALENDAR, Period, minute_of, window_of, zone
from billing.services.errors import CreditError
from billing.services.wallets import lock
from billing.writer.operations import Bearing, BudgetTerms
from billing.writer.view import Count, Windows, names_in, read_windows

MOST_BUDGETS = 200
"""Budgets that a tenant may have besides those of its keys: each request's are looked up among them."""
MOST_COUNTING = 2 * MOST_BUDGETS  # with those that were removed
MOST_OF_ONE = 50
"""Budgets for the same tenant, project, key, member, end user or models that count: each such request's counts in all
of them.
"""
MOST_PERCENT = 100
BOTH_RUN = timedelta(days=14)
"""After which no process of the release before runs any more."""
_MADE = "0017_carry_budgets"
_CHUNK = 500  # rows that a query names
_Scope, _Window = SpendBudget.Scope, SpendBudget.Window
OF_SOME = frozenset({_Scope.END_USER, _Scope.MODELS})
"""Scopes of budgets that bear on some requests of a principal alone."""


class BudgetError(CreditError):
    """A budget can't be like this; `field` names what is wrong."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Standing:
    """A budget with what counts in its window of now, in µcr."""

    budget: SpendBudget
    period: Period
    spent: int
    held: int

    @property
    def rest(self) -> int | None:
        """What may still be spent; None without a limit."""
        return None if self.budget.amount is None else max(self.budget.amount - self.spent - self.held, 0)

    @property
    def resets_at(self) -> datetime | None:
        """When the next window begins; None for a budget in all."""
        return None if self.budget.window == _Window.TOTAL else self.period.end


def terms_of(budget: SpendBudget) -> BudgetTerms:
    """Return what the writer needs of a budget."""
    return BudgetTerms(
        budget.number, budget.window, minute_of(budget.anchor), budget.time_zone, str(budget), budget.scope,
        budget.subject,
    )  # fmt: skip


def bearing_on(wallet: UUID, *, project: UUID, key: UUID | None, member: UUID | None) -> Bearing:
    """Return the budgets that bear on requests of the project by that key or member, among them those of end users and
    models, which `bearing` tells apart; one query.
    """
    mine = Q(scope=_Scope.TENANT) | Q(scope__in=OF_SOME)
    mine |= Q(scope=_Scope.PROJECT, subject=str(project))
    if key is not None:
        mine |= Q(scope=_Scope.KEY, subject=str(key))
    if member is not None:
        mine |= Q(scope=_Scope.MEMBER, subject=str(member))
    return Bearing(tuple(map(terms_of, SpendBudget.objects.filter(mine, wallet=wallet))))


def bearing(budgets: Bearing, *, model: str, end_user: str) -> Bearing:
    """Return those that bear on a request for the model, of the end user with that digest."""
    return budgets.part(tuple([one for one in budgets.terms if _bears(one, model, end_user)]))


def _bears(terms: BudgetTerms, model: str, end_user: str) -> bool:
    if terms.scope == _Scope.MODELS:
        return model in terms.subject.split("\n")
    return terms.scope != _Scope.END_USER or (end_user != "" and terms.subject == end_user)


def period_of(budget: SpendBudget, at: datetime) -> Period:
    """Return the window that `at` lies in."""
    return window_of(budget.window, minute_of(budget.anchor), budget.time_zone, at)


def standings(budgets: Iterable[SpendBudget], now: datetime | None = None) -> list[Standing]:
    """Return what counts in each budget now; two queries for all."""
    asked = list(budgets)
    wallets = {budget.wallet_id for budget in asked}
    rows = Wallet.objects.filter(pk__in=wallets).annotate(now=clock.now_in_query()).values_list("pk", "windows", "now")
    kept: dict[UUID, Windows] = {}
    for pk, text, moment in rows if asked else ():
        kept[pk], now = read_windows(text), now or clock.parsed(moment)
    mine = [(budget, period_of(budget, now)) for budget in asked if now is not None]
    named = [(budget.wallet_id, budget.number, minute_of(period.start)) for budget, period in mine]
    away: dict[tuple[UUID, int, int], tuple[int, int]] = {}
    if lacking := [one for one in named if f"{one[1]}.{one[2]}" not in kept.get(one[0], {})]:
        starts = {start for _, _, start in lacking}
        found = BudgetWindow.objects.filter(wallet__in=wallets, start__in=starts)
        if len(lacking) <= _CHUNK:
            found = found.filter(number__in={number for _, number, _ in lacking})
        away = {
            (w, n, s): (spent, held)
            for w, n, s, spent, held in found.values_list("wallet", "number", "start", "spent", "held")
        }
    standing = []
    for (budget, period), name in zip(mine, named, strict=True):
        count = kept.get(name[0], {}).get(f"{name[1]}.{name[2]}")
        spent, held = away.get(name, (0, 0)) if count is None else (count.spent, count.held)
        standing.append(Standing(budget, period, spent, held))
    return standing


def checked_thresholds(thresholds: Iterable[int]) -> list[int]:
    """Return them once each and in order; BudgetError where one is no percent."""
    wanted = sorted(set(thresholds))
    if any(not 1 <= one <= MOST_PERCENT for one in wanted) or len(wanted) > 5:
        raise BudgetError("thresholds", "At most five numbers from 1 to 100: percent of the limit.")
    return wanted


def calendar_anchor(time_zone: str) -> datetime:
    """Return where a calendar's day, week and month begin in the time zone; BudgetError where there is none."""
    try:
        return CALENDAR.replace(tzinfo=zone(time_zone)).astimezone(UTC)
    except ValueError as error:
        raise BudgetError("time_zone", f"There is no time zone {time_zone[:60]!r}.") from error


def reached() -> Iterator[tuple[Standing, int]]:
    """Yield each threshold, in percent, that the spending in a budget's window of now has reached."""
    told = list(SpendBudget.objects.filter(removed_at=None, amount__gt=0).exclude(thresholds=[]))
    for start in range(0, len(told), _CHUNK):
        for one in standings(told[start : start + _CHUNK]):
            for percent in one.budget.thresholds:
                if one.spent * 100 >= percent * (one.budget.amount or 0):
                    yield one, percent


@transaction.atomic
def make_budget(
    *,
    wallet: UUID,
    scope: str,
    window: str,
    amount: int,
    subject: str = "",
    name: str = "",
    is_hard: bool = True,
    thresholds: Sequence[int] = (),
    time_zone: str = "UTC",
    anchor: datetime | None = None,
    by_operator: bool = False,
) -> SpendBudget:
    """Return a new budget, which counts from now on; or the one that was removed for the same, with all it counted.

    Without an `anchor` its windows are the calendar's. Raises BudgetError, also where there is one for the same.
    """
    owner = lock(wallet).tenant_id
    calendar = calendar_anchor(time_zone)
    begins = (anchor or calendar).replace(second=0, microsecond=0)
    same: dict[str, Any] = {"scope": scope, "subject": subject, "window": window, "anchor": begins}
    same |= {"time_zone": time_zone, "is_hard": is_hard, "by_operator": by_operator}
    terms: dict[str, Any] = {
        "name": name.strip(),
        "amount": amount,
        "thresholds": checked_thresholds(thresholds),
    }
    mine = SpendBudget.objects.filter(wallet=wallet)
    present = mine.filter(**same).first()
    if present is not None and present.removed_at is None:
        raise BudgetError("scope", f"There is such a budget already, “{present}”: change that one.")
    if scope != _Scope.KEY:
        _check_room(mine.exclude(scope=_Scope.KEY), is_new=present is None)
    if present is not None:
        return _put(present, **terms, removed_at=None)
    number = (mine.aggregate(last=Max("number"))["last"] or 0) + 1
    made = SpendBudget(wallet_id=wallet, tenant=owner, number=number, **same, **terms)
    if not _is_limit(made) and mine.filter(scope=scope, subject=subject).count() >= MOST_OF_ONE:
        raise BudgetError(
            "scope", f"{MOST_OF_ONE} budgets were made for the same, the most that count: make a removed one again."
        )
    made.save(force_insert=True)
    _tell_former(made, amount)
    return made


def _check_room(others: QuerySet[SpendBudget], *, is_new: bool) -> None:
    """Raise BudgetError where a tenant has as many budgets as it may, those that were removed and count among them."""
    if others.filter(removed_at=None).count() >= MOST_BUDGETS:
        raise BudgetError("scope", f"There are {MOST_BUDGETS} budgets, the most that a tenant may have: remove one.")
    if is_new and others.count() >= MOST_COUNTING:
        raise BudgetError(
            "scope", f"{MOST_COUNTING} budgets were made, the most that are counted: make a removed one again."
        )


@transaction.atomic
def change_budget(budget: SpendBudget, **change: Any) -> SpendBudget:
    """Return the budget with other `name`, `amount`, `is_hard` or `thresholds`: they hold for what is reserved from
    the commit on, and what was spent stays. Raises BudgetError.
    """
    lock(budget.wallet_id)
    mine = SpendBudget.objects.get(pk=budget.pk)
    if mine.removed_at is not None:
        raise BudgetError("budget", "This budget was removed: make it again.")
    if "thresholds" in change:
        change["thresholds"] = checked_thresholds(change["thresholds"])
    if change.get("is_hard", mine.is_hard) != mine.is_hard:
        named = ("scope", "subject", "window", "anchor", "time_zone", "by_operator")
        same = {name: getattr(mine, name) for name in named}
        if SpendBudget.objects.filter(wallet=mine.wallet_id, **same, is_hard=change["is_hard"]).exists():
            raise BudgetError("is_hard", "There is or was such a budget: make that one again.")
    return _put(mine, **change)


@transaction.atomic
def remove_budget(budget: SpendBudget) -> SpendBudget:
    """Return the budget without a limit: it goes on counting, for when it is made again."""
    lock(budget.wallet_id)
    mine = SpendBudget.objects.get(pk=budget.pk)
    return _put(mine, amount=None, removed_at=mine.removed_at or clock.now())


def _put(budget: SpendBudget, **change: Any) -> SpendBudget:
    """Save a change of a budget, and have the wallet's row say it in the windows that it keeps; it is locked."""
    _tell_former(budget, None)
    for name, value in change.items():
        setattr(budget, name, value)
    budget.save(update_fields=list(change))
    _tell_former(budget, budget.amount)

    def told(name: str, count: Count) -> Count:
        if not name.startswith(f"{budget.number}."):
            return count
        return Count(count.spent, count.held, budget.amount, budget.is_hard)

    _rewrite(budget.wallet_id, lambda kept: {name: told(name, count) for name, count in kept.items()})
    return budget


def _rewrite(wallet: UUID, changed: Callable[[Windows], Windows]) -> None:
    """Write what the locked wallet's row keeps of windows as `changed` makes it of what is there."""
    text = Wallet.objects.values_list("windows", flat=True).get(pk=wallet)
    if text:
        kept = changed(read_windows(text))
        Wallet.objects.filter(pk=wallet).update(windows=msgspec.json.encode(kept).decode())


@dataclass(frozen=True, slots=True)
class SpendLimits:
    """A key's spending limits in µcr: a day, a month (of UTC), in all; None is no limit."""

    day_limit: int | None = None
    month_limit: int | None = None
    total_limit: int | None = None


@dataclass(frozen=True, slots=True)
class KeySpending:
    """A key's limits, and what was spent of them today, this month (of UTC) and in all; None where nothing counts."""

    limits: SpendLimits = SpendLimits()
    day: int | None = None
    month: int | None = None
    total: int | None = None


_OF_KEYS = ("day", "month", "total")


def of_keys(keys: Iterable[UUID]) -> dict[UUID, KeySpending]:
    """Return the spending of those of the keys that have, or had, limits; three queries for all."""
    subjects = {str(key): key for key in keys}
    found: dict[UUID, dict[str, Standing]] = defaultdict(dict)
    for one in standings(_limits().filter(subject__in=subjects)):
        found[subjects[one.budget.subject]][one.budget.window] = one
    return {
        key: KeySpending(
            SpendLimits(*(mine[window].budget.amount if window in mine else None for window in _OF_KEYS)),
            *(mine[window].spent if window in mine else None for window in _OF_KEYS),
        )
        for key, mine in found.items()
    }


def limited_keys(tenant: UUID) -> list[UUID]:
    """Return the ids of the tenant's keys whose spending is limited."""
    return [UUID(one) for one in _limits().filter(tenant=tenant, removed_at=None).values_list("subject", flat=True)]


@transaction.atomic
def set_key_limits(*, wallet: UUID, api_key: UUID, limits: SpendLimits) -> None:
    """Have the key's budgets of the calendar of UTC be these. All three count from the first limit on, also those
    without one, so that a limit set later applies to all that was spent since.

    Raises WalletNotFoundError.
    """
    lock(wallet)
    Budget.objects.filter(api_key=api_key).update(**{one.name: getattr(limits, one.name) for one in fields(limits)})
    if limits != SpendLimits() or _limits().filter(wallet=wallet, subject=str(api_key)).exists():
        _set_limits(wallet, api_key, limits)


def _set_limits(wallet: UUID, api_key: UUID, limits: SpendLimits) -> None:
    mine = {one.window: one for one in _limits().filter(wallet=wallet, subject=str(api_key))}
    for window in _OF_KEYS:
        amount = getattr(limits, f"{window}_limit")
        present = mine.get(window) or make_budget(
            wallet=wallet, scope=_Scope.KEY, subject=str(api_key), window=window, amount=amount or 0
        )
        if present.amount != amount:
            _put(present, amount=amount, removed_at=clock.now() if amount is None else None)


def _limits() -> QuerySet[SpendBudget]:
    """Return the budgets of keys that the form of a key's limits sets."""
    calendar = Q(anchor=calendar_anchor("UTC"), time_zone="UTC", window__in=_OF_KEYS)
    return SpendBudget.objects.filter(calendar, scope=_Scope.KEY, is_hard=True, by_operator=False)


def _is_limit(budget: SpendBudget) -> bool:
    """Return whether it is among `_limits`."""
    calendar = budget.anchor == calendar_anchor("UTC") and budget.time_zone == "UTC" and budget.window in _OF_KEYS
    return calendar and budget.scope == _Scope.KEY and budget.is_hard and not budget.by_operator


# -- while gateways of the release before run too ----------------------------------------------------------------------


def take_over() -> int:
    """Have budgets say what processes of the release before did since the last time: limits of keys that they set,
    what they spent of them, and what they closed of new holds. Return in how many keys and wallets there was any.

    Periodic work of the time in which both releases run: the weeks after this one's tables were made.
    """
    if not _both_may_run():
        return 0
    return sum(_take_over(*one) for one in islice(_changed(), _CHUNK)) + sum(map(_recount, _miscounted()))


def _both_may_run() -> bool:
    since = clock.now() - BOTH_RUN
    return MigrationRecorder.Migration.objects.filter(app="billing", name=_MADE, applied__gt=since).exists()


def _tell_former(budget: SpendBudget, amount: int | None) -> None:
    """Write a key's limit where the release before reads it, so that what differs there was written by that one."""
    if _is_limit(budget):
        former = Budget.objects.filter(wallet=budget.wallet_id, api_key=UUID(budget.subject))
        former.update(**{f"{budget.window}_limit": amount})


def _changed() -> Iterator[tuple[UUID, UUID]]:
    """Yield former keys' limits, and their wallets, where something is to be taken over."""
    former = list(Budget.objects.order_by("pk"))
    for start in range(0, len(former), _CHUNK):
        part = former[start : start + _CHUNK]
        named = _limits().filter(subject__in=[str(one.api_key) for one in part])
        amounts = {(one[0], one[1]): one[2] for one in named.values_list("subject", "window", "amount")}
        for one in part:
            present = SpendLimits(*(amounts.get((str(one.api_key), window)) for window in _OF_KEYS))
            if one.carried != one.total_spent or _limits_of(one) != present:
                yield one.pk, one.wallet_id


def _limits_of(former: Budget) -> SpendLimits:
    return SpendLimits(former.day_limit, former.month_limit, former.total_limit)


@transaction.atomic
def _take_over(pk: UUID, wallet: UUID) -> bool:
    lock(wallet)
    one = Budget.objects.get(pk=pk)
    _set_limits(wallet, one.api_key, _limits_of(one))
    kept = read_windows(Wallet.objects.values_list("windows", flat=True).get(pk=wallet))
    for standing in standings(_limits().filter(wallet=wallet, subject=str(one.api_key))):
        budget, start = standing.budget, minute_of(standing.period.start)
        more = _more(one, standing)
        spent = standing.spent + more
        kept[f"{budget.number}.{start}"] = Count(spent, standing.held, budget.amount, budget.is_hard)
        row, _ = BudgetWindow.objects.get_or_create(
            wallet_id=wallet, number=budget.number, start=start, defaults={"spent": spent, "held": standing.held}
        )
        BudgetWindow.objects.filter(pk=row.pk).update(carried=F("carried") + more)
    Wallet.objects.filter(pk=wallet).update(windows=msgspec.json.encode(kept).decode())
    Budget.objects.filter(pk=pk).update(carried=one.total_spent)
    return True


def _more(former: Budget, standing: Standing) -> int:
    """Return what the release before spent in the window that isn't taken over; the first time, by its own windows."""
    window = standing.budget.window
    if former.carried is not None or window == _Window.TOTAL:
        return former.total_spent - (former.carried or 0)
    begun, spent = (former.day, former.day_spent) if window == _Window.DAY else (former.month, former.month_spent)
    return spent if begun == standing.period.start.date() else 0


def _miscounted() -> set[UUID]:
    """Return the wallets in whose windows more or less seems to be held than their open holds do: the release before
    gives nothing back where it closes a hold of this one.
    """
    kept = Wallet.objects.filter(windows__regex=_SOMETHING_HELD).values_list("pk", "windows")
    counted = {(pk, name): count.held for pk, text in kept for name, count in read_windows(text).items()}
    away = BudgetWindow.objects.exclude(held=0).values_list("wallet", "number", "start", "held")
    for wallet, number, start, held in away:
        counted.setdefault((wallet, f"{number}.{start}"), held)
    holding: dict[tuple[UUID, str], int] = defaultdict(int)
    for wallet, text, amount in Hold.objects.exclude(windows=None).values_list("wallet", "windows", "amount"):
        for name in names_in(text or ""):
            holding[wallet, name] += amount
    return {wallet for (wallet, name), held in counted.items() if held != holding[wallet, name]}


_SOMETHING_HELD = r"\[-?[0-9]+,-?[1-9]"


@transaction.atomic
def _recount(wallet: UUID) -> bool:
    """Have the wallet's windows count what its open holds hold; return whether one counted something else."""
    lock(wallet)
    holding: dict[str, int] = defaultdict(int)
    for text, amount in Hold.objects.filter(wallet=wallet).exclude(windows=None).values_list("windows", "amount"):
        for name in names_in(text or ""):
            holding[name] += amount
    kept = read_windows(Wallet.objects.values_list("windows", flat=True).get(pk=wallet))
    is_wrong = False
    for name, count in kept.items():
        is_wrong |= count.held != holding[name]
        count.held = holding[name]
    if is_wrong:
        Wallet.objects.filter(pk=wallet).update(windows=msgspec.json.encode(kept).decode())
    for row in BudgetWindow.objects.filter(wallet=wallet).exclude(held=0):
        if (held := holding[str(row)]) != row.held:
            is_wrong |= str(row) not in kept
            BudgetWindow.objects.filter(pk=row.pk).update(held=held)
    return is_wrong
