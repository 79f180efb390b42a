"""What must be so after every step, worked out from rows alone and from what the test itself did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Any
from uuid import UUID

from django.db import connection

from base.ids import moment_of
from billing import reconcile
from billing.models import (
    CreditGrant,
    Hold,
    LedgerTransfer,
    OutboxEvent,
    SpendBudget,
    UsageDay,
    UsageRecord,
    UsageRollup,
    Wallet,
)
from billing.services import budgets, rollups
from billing.writer.apply import apply_now
from billing.writer.operations import ExpireGrants
from tests.billing.books import assert_books_balance
from tests.gateway.generation.torture.bench import Bench, Customer, Key
from tests.gateway.generation.torture.prices import Card

CLASSES = ("input", "cache_read", "cache_write_short", "cache_write_long", "output", "reasoning")
SUMS = ("requests", "input_tokens", "cache_read_tokens", "output_tokens", "charge")


@dataclass(frozen=True)
class Room:
    """What there is for a request in the wallet and in its key's budget: now, and once others give back what they
    hold.
    """

    free_in_wallet: int
    free_in_budget: int
    in_wallet: int
    in_budget: int

    @property
    def free(self) -> int:
        return min(self.free_in_wallet, self.free_in_budget)

    @property
    def freed(self) -> int:
        return min(self.in_wallet, self.in_budget)


def room_of(customer: Customer, key: Key, now: datetime) -> Room:
    """Return what limits a request of the key, once the wallet's grants have begun and ended."""
    apply_now([ExpireGrants(customer.wallet)])
    wallet = Wallet.objects.get(pk=customer.wallet)
    in_wallet = wallet.posted + wallet.overdraft_limit
    free = in_budget = 2**63
    if key.limited_since is not None:
        for period, limit in key.limits.items():
            if limit is not None:
                rest = limit - spent(key, period, now)
                free, in_budget = min(free, rest - held(key, period, now)), min(in_budget, rest)
    return Room(in_wallet - wallet.held, free, in_wallet, in_budget)


def begun(period: str, now: datetime) -> datetime:
    """Return when the day, the month or all began that `now` is in."""
    today = datetime.combine(now.astimezone(UTC).date(), time(), UTC)
    return {"day": today, "month": today.replace(day=1), "total": today.replace(year=1)}[period]


def is_in(one: UsageRecord | Hold, period: str, now: datetime) -> bool:
    """Return whether a request was held since the key's budget of the period is there, in that period."""
    named = {int(name.partition(".")[0]) for name in (one.windows or "").split()}
    return bool(named & set(numbers(one, period))) and one.reserved_at >= begun(period, now)


def numbers(one: UsageRecord | Hold, period: str) -> list[int]:
    """Return the numbers of the budgets of a request's key that count by that period."""
    return list(SpendBudget.objects.filter(subject=str(one.api_key), window=period).values_list("number", flat=True))


def spent(key: Key, period: str, now: datetime) -> int:
    """Return what requests of the key cost that were held in the day, the month or all."""
    latest = {one.request: one for one in UsageRecord.objects.filter(api_key=key.id).order_by("revision")}
    return sum(one.charge for one in latest.values() if is_in(one, period, now))


def held(key: Key, period: str, now: datetime) -> int:
    """Return what requests of the key hold that were held in the day, the month or all."""
    return sum(one.amount for one in Hold.objects.filter(api_key=key.id) if is_in(one, period, now))


def check(bench: Bench, *, is_summed: bool = False) -> None:
    """Check everything; `is_summed` sums the usage first, as jobs do."""
    while is_summed and rollups.consume_usage():
        pass
    assert reconcile.check(connection) == []
    versions = {card.id: card for cards in bench.versions.values() for card in cards}
    records = list(UsageRecord.objects.order_by("request", "revision"))
    latest = {record.request: record for record in records}
    _check_charges(records, versions)
    _check_requests(bench, latest)
    _check_holds(bench)
    for customer in bench.customers:
        _check_wallet(customer)
        _check_months(customer, bench.now)
        for key in customer.keys:
            _check_budget(key, bench.now)
    if is_summed:
        _check_sums(latest.values())


def _check_charges(records: list[UsageRecord], versions: dict[Any, Card]) -> None:
    """Each record costs what its tokens do, and its transfers say so; nothing cost more than was held for it."""
    taken = Counter[UUID]()
    for request, kind, amount in LedgerTransfer.objects.filter(request__isnull=False).values_list(
        "request", "debit__kind", "amount"
    ):
        taken[request] += amount if kind == "wallet" else -amount
    for record in records:
        tokens = {name: getattr(record, f"{name}_tokens") for name in CLASSES}
        cost = versions[record.card_version].charge(tokens, record.multiplier_bp)
        assert record.charge == cost, f"{record}: {tokens} at {versions[record.card_version]}"
        assert record.charge <= record.held, f"{record} cost {record.charge}, and {record.held} were held"
    for request, record in {record.request: record for record in records}.items():
        assert taken.pop(request, 0) == record.charge, f"{record}: its transfers"
    assert not taken, "charged without a record"


def _check_requests(bench: Bench, latest: dict[UUID, UsageRecord]) -> None:
    """Each answer's end is the record's; the multiplier is what its plan and its batch make of it."""
    for request in bench.requests:
        record = latest.get(request.id)
        if request.outcome is None or request.outcome.charge is None:
            continue
        assert record is not None, f"request {request.number} left no record"
        if record.revision == 0:
            assert request.outcome.charge == record.charge
            used = {name: getattr(record, f"{name}_tokens") for name in CLASSES if getattr(record, f"{name}_tokens")}
            assert request.outcome.usage.classes() == used
        if record.model == request.model:
            assert record.multiplier_bp == request.multiplier_bp


def _check_holds(bench: Bench) -> None:
    """What is held is held for what runs."""
    holds = set(Hold.objects.values_list("pk", flat=True))
    assert holds == set(bench.runtime.requests.live), "a hold of nothing that runs, or the other way round"


def _check_wallet(customer: Customer) -> None:
    apply_now([ExpireGrants(customer.wallet)])
    wallet = Wallet.objects.get(pk=customer.wallet)
    assert_books_balance(wallet)
    assert wallet.held == sum(Hold.objects.filter(wallet=wallet).values_list("amount", flat=True))
    corrected = UsageRecord.objects.filter(wallet=wallet.pk, revision__gt=0)
    estimates = dict(UsageRecord.objects.filter(wallet=wallet.pk, revision=0).values_list("request", "charge"))
    beyond = sum(max(0, one.charge - estimates[one.request]) for one in corrected)  # that alone may pass the limit
    assert wallet.posted - wallet.held >= -wallet.overdraft_limit - beyond, "below its limit, or a hold is not covered"


def _check_months(customer: Customer, now: datetime) -> None:
    """Each month that began has its credit, once, and no other has."""
    months = CreditGrant.objects.filter(wallet=customer.wallet, source__startswith="month:")
    found = sorted(
        (datetime.fromisoformat(one.source.rpartition(f"{customer.tenant.pk}:")[2]), one.amount) for one in months
    )
    assert found == [(begun, amount) for begun, amount in customer.months if amount], f"by {now}"


def _check_budget(key: Key, now: datetime) -> None:
    for one in budgets.standings(SpendBudget.objects.filter(subject=str(key.id)), now):
        period = one.budget.window
        assert one.spent == spent(key, period, now), f"spent in {period} by key {key.id}"
        assert one.held == held(key, period, now), f"held in {period} by key {key.id}"


def _check_sums(latest) -> None:
    """Once all usage is summed, hours and days have the sums of the records, each request once."""
    left = list(OutboxEvent.objects.values())
    assert left == [], left
    hours, days = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
    for record in latest:
        begun = moment_of(record.request)
        more = (1, record.input_tokens, record.cache_read_tokens, record.completion_tokens, record.charge)
        for name, amount in zip(SUMS, more, strict=True):
            hour = begun.replace(minute=0, second=0, microsecond=0)
            hours[hour, record.tenant, record.project, record.api_key, record.model, name] += amount
            days[begun.date(), record.model, name] += amount
    found = Counter[tuple[Any, ...]]()
    for row in UsageRollup.objects.all():
        for name in SUMS:
            found[row.hour, row.tenant, row.project, row.api_key, row.model, name] += getattr(row, name)
    assert found == hours
    assert (
        Counter({(row.day, row.model, name): getattr(row, name) for row in UsageDay.objects.all() for name in SUMS})
        == days
    )
