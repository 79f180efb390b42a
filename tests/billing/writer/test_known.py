"""Wallets that only this process changes are not read again; whatever somebody else changes is seen all the same."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from base.ids import uuid7
from billing import reconcile
from billing.models import CreditGrant, Hold, UsageRecord, Wallet
from billing.writer.apply import apply_now
from billing.writer.changes import Changes
from billing.writer.known import KnownWallets
from billing.writer.operations import ExpireGrants, Held, Refused, Release, Settle, Settled, Stale
from billing.writer.postgresql import driver
from billing.writer.postgresql import statements as postgresql
from billing.writer.sqlite import statements as sqlite
from billing.writer.view import View, WalletRow
from tests.billing.conftest import MovedClock
from tests.billing.writer.reference import Purse, Reference
from tests.billing.writer.test_equivalence import assert_rows, give
from tests.billing.writer.test_postgresql import other, round_trips, statements, traced  # noqa: F401 - a fixture
from tests.billing.writer.world import (
    counts,
    extend,
    grant,
    make_budget,
    make_wallet,
    of_budgets,
    open_desk,
    release,
    reserve,
    settle,
)

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def readings(monkeypatch):
    """One entry for each flush that read its wallets."""
    found = []
    for module, name in ((postgresql, "reads"), (sqlite, "read")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, real=real, name=name, **o: found.append(name) or real(*a, **o))
    return found


@pytest.fixture
def sent(monkeypatch):
    """The names of the statements that flushes send."""
    names = []
    real = driver._statement

    def noted(query):
        names.append(query[0])
        return real(query)

    monkeypatch.setattr(driver, "_statement", noted)
    return names


def known_wallet(desk, credit=1000, **options):
    """A wallet that the writer has served, so that it knows it with its grants."""
    wallet = make_wallet(credit=credit, **options)
    made = reserve(wallet, 10)
    desk.ask_one(made)
    desk.ask_one(settle(made, 0))
    return wallet


def test_a_request_of_a_known_wallet_reads_nothing(desk, readings):
    wallet = known_wallet(desk)
    readings.clear()
    for _ in range(3):
        made = reserve(wallet, 10)
        desk.ask_one(made)
        assert isinstance(desk.ask_one(settle(made, 7)), Settled)
    assert not readings
    assert Wallet.objects.get(pk=wallet.pk).posted == 979


def test_a_request_takes_two_round_trips_and_few_statements(desk, tmp_path):
    wallet = known_wallet(desk)
    path = tmp_path / "wire"
    made = reserve(wallet, 10)
    with traced(desk, path):
        assert desk.ask_one(made) == Held(10, 990)
    assert (round_trips(path), statements(path)) == (1, 2)
    with traced(desk, path):
        assert desk.ask_one(settle(made, 7)) == Settled(7, 993, 0)
    assert (round_trips(path), statements(path)) == (1, 6)


def test_five_budgets_take_no_further_round_trip_and_no_statement(desk, tmp_path):
    wallet = make_wallet(credit=1000)
    windows = ("day", "week", "month", "total")
    five = [make_budget(wallet, 500, window) for window in windows]
    five.append(make_budget(wallet, 400, "day", scope="models", subject="m"))
    first = of_budgets(reserve(wallet, 10), *five)
    desk.ask_one(first)  # their windows begin
    desk.ask_one(settle(first, 0))
    path = tmp_path / "wire"
    made = of_budgets(reserve(wallet, 10), *five)
    with traced(desk, path):
        assert desk.ask_one(made) == Held(10, 990)
    assert (round_trips(path), statements(path)) == (1, 2)
    with traced(desk, path):
        assert desk.ask_one(settle(made, 7)) == Settled(7, 993, 0)
    assert (round_trips(path), statements(path)) == (1, 6)
    assert {counts(one) for one in five} == {(0, 7)}
    apply_now([reserve(wallet, 1)])  # by another process: the wallet is read again, with its windows
    with traced(desk, path):
        desk.ask_one(of_budgets(reserve(wallet, 10), *five))
    assert round_trips(path) == 3, "one that fails on the other's change, then reading and writing"


def by_grant(wallet, _made, _clock):
    grant(wallet, 500, expires_at=timezone.now() + timedelta(days=1))


def by_another_gateway(wallet, _made, _clock):
    taken = reserve(wallet, 600)
    apply_now([taken])


def by_a_charge_elsewhere(wallet, _made, _clock):
    taken = reserve(wallet, 600)
    apply_now([taken])
    apply_now([settle(taken, 600)])


def by_freezing(wallet, _made, _clock):
    Wallet.objects.filter(pk=wallet.pk).update(state=Wallet.State.FROZEN)


def by_a_lower_limit(wallet, _made, _clock):
    Wallet.objects.filter(pk=wallet.pk).update(overdraft_limit=0)


def by_the_sweep(_wallet, made, _clock):
    apply_now([release(made)])


def by_time(wallet, _made, clock):
    """All of its credit has ended."""
    clock.set(CreditGrant.objects.get(wallet=wallet).expires_at)


@pytest.mark.parametrize(
    "change",
    [by_grant, by_another_gateway, by_a_charge_elsewhere, by_freezing, by_a_lower_limit, by_the_sweep, by_time],
)
def test_what_somebody_else_changed_is_seen(desk, readings, clock, change):
    """Each answer and sum is what a writer says that has never seen the wallet."""
    ends = timezone.now() + timedelta(days=1)
    wallet = make_wallet(overdraft=100)
    grant(wallet, 1000, CreditGrant.Kind.PROMOTIONAL, expires_at=ends)
    made = reserve(wallet, 10)
    desk.ask_one(made)
    desk.ask_one(settle(made, 0))
    open_hold = reserve(wallet, 50)
    desk.ask_one(open_hold)
    readings.clear()
    change(wallet, open_hold, clock)
    before = Wallet.objects.get(pk=wallet.pk)
    is_open = before.state == "open"
    free = before.posted - before.held + before.overdraft_limit
    if change is by_time:
        free -= 950
    answers = [desk.ask_one(reserve(wallet, 700, 1)), desk.ask_one(settle(open_hold, 20))]
    if change is by_the_sweep:
        assert answers == [Held(700, free - 700), Stale()]
    else:
        first = Held(min(700, free), free - min(700, free)) if is_open else Refused("wallet_frozen", 0)
        assert answers[0] == first
        assert isinstance(answers[1], Settled)
    assert readings
    after = Wallet.objects.get(pk=wallet.pk)
    assert after.posted - after.held >= -after.overdraft_limit


def test_without_the_comparison_a_wallet_is_overspent(desk, monkeypatch):
    """So the guard is what the tests above see."""
    guards = {
        "known.version = g.version AND": "",
        "known.posted - known.held + known.overdraft_limit = g.available": "g.version + g.available > 0",
    }
    without = postgresql.STATEMENTS["move_known_wallets"]
    for guard, nothing in guards.items():
        assert guard in without
        without = without.replace(guard, nothing)
    monkeypatch.setitem(postgresql.STATEMENTS, "move_known_wallets", without)
    wallet = known_wallet(desk)
    apply_now([reserve(wallet, 900)])
    assert desk.ask_one(reserve(wallet, 900)) == Held(900, 100)
    Wallet.objects.filter(pk=wallet.pk).update(held=900)
    Hold.objects.filter(wallet=wallet).first().delete()


def test_a_locked_wallet_is_not_waited_for(desk, sent, other):  # noqa: F811 - a fixture
    locked, free = known_wallet(desk), known_wallet(desk)
    other.execute("SELECT 1 FROM billing_wallet WHERE id = %s FOR UPDATE", [locked.pk])
    sent.clear()

    async def both():
        import asyncio

        waiting = [asyncio.ensure_future(desk.writer.submit(reserve(one, 10))) for one in (locked, free)]
        await asyncio.wait(waiting[1:])
        assert not waiting[0].done()
        other.rollback()
        return await asyncio.gather(*waiting)

    assert desk.runner.run(both()) == [Held(10, 990), Held(10, 990)]
    assert sent[:2] == ["move_known_wallets", "insert_holds"]
    assert "lock_wallets_skipping" in sent


def test_no_credit_is_never_refused_from_memory(desk, readings):
    """A grant that was given a moment ago counts."""
    wallet = known_wallet(desk, credit=100)
    grant(wallet, 500)
    readings.clear()
    assert desk.ask_one(reserve(wallet, 400)) == Held(400, 200)
    assert desk.ask_one(reserve(wallet, 400)) == Refused("wallet", 200, 600)
    assert readings


def test_a_wallet_that_others_change_too_is_read_until_they_stop(desk, sent):
    wallet = known_wallet(desk)

    def ways():
        sent.clear()
        made = reserve(wallet, 1)
        desk.ask_one(made)
        desk.ask_one(settle(made, 1))
        return sent.count("move_known_wallets"), sent.count("lock_wallets_skipping")

    assert ways() == (2, 0)
    apply_now([reserve(wallet, 1)])
    assert ways() == (1, 2), "tried once, in vain"
    assert ways() == (1, 1) or ways() == (2, 0)
    assert ways() == (2, 0)


def test_operations_that_need_more_are_not_decided_from_memory(desk, readings):
    wallet = known_wallet(desk)
    made = reserve(wallet, 10)
    desk.ask_one(made)
    readings.clear()
    assert desk.ask_one(made) == Held(10, 990), "repeated"
    assert desk.ask_one(extend(made, 20)) == Held(20, 980)
    assert desk.ask_one(settle(made, 7)) == Settled(7, 993, 0), "with what it was raised to"
    assert len(readings) == 2
    assert desk.ask_one(ExpireGrants(wallet.pk)).expired == 0
    assert len(readings) == 3


def test_the_clock_of_a_flush_is_the_database_s(desk, monkeypatch):
    """Where it went on without this process, or back, the flush is decided anew."""
    wallet = known_wallet(desk)
    clock = MovedClock(monkeypatch)
    for moment in (datetime(2031, 5, 6, 7, 8, 9, tzinfo=timezone.get_current_timezone()), timezone.now()):
        clock.set(moment)
        made = reserve(wallet, 10)
        desk.ask_one(made)
        assert abs(Hold.objects.get(pk=made.request).reserved_at - moment) < timedelta(milliseconds=1)
        desk.ask_one(settle(made, 1))
        assert UsageRecord.objects.get(request=made.request).settled_at - moment <= postgresql.CLOCK_TOLERANCE


def test_only_the_wallets_used_last_are_known():
    now = timezone.now()
    rows = [WalletRow(uuid7(), 10, 0, 0, True, None) for _ in range(3)]
    kept = KnownWallets(most=2)
    for row in rows:
        kept.committed(View(now, {row.id: row}, {}, {}), Changes(now, now), ())
    views = [kept.view([make_reserve(row)], now) for row in rows]
    assert [view is not None for view in views] == [False, True, True]


def make_reserve(row):
    class Made:
        pk, tenant_id = row.id, row.id

    return reserve(Made, 1)


kinds = st.sampled_from(["reserve", "reserve", "settle", "settle", "release"])
turns = st.lists(
    st.tuples(
        st.booleans(),  # by somebody else
        st.lists(st.tuples(kinds, st.integers(0, 9), st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=6),
    ),
    min_size=4,
    max_size=16,
)


@given(turns=turns, grants=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 90)), min_size=2, max_size=6))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_a_writer_that_remembers_equals_one_operation_at_a_time(transactional_db, turns, grants):
    """With another writer beside it, whose changes it isn't told."""
    rows = [make_wallet() for _ in range(3)]
    reference = Reference({row.pk: Purse(overdraft=0) for row in rows})
    for number, amount in grants:
        give(reference, rows[number], amount, kind=CreditGrant.Kind.PAID)
    requests = [uuid7() for _ in range(10)]
    with open_desk() as desk:
        for is_elsewhere, chosen in turns:
            operations = {}
            for kind, number, amount, least in chosen:
                wallet, request = rows[number % 3], requests[number]
                if kind == "reserve" and request not in reference.records:
                    operations[request] = reserve(wallet, amount, min(amount, least), request)
                elif kind == "settle":
                    operations[request] = Settle(request, wallet.pk, least, {"input": least})
                elif kind == "release":
                    operations[request] = Release(request, wallet.pk)
            group = list(operations.values())
            if group:
                answers = apply_now(group) if is_elsewhere else desk.ask(*group)
                assert answers == [reference.apply(operation) for operation in group]
    assert_rows(rows, reference)
    assert reconcile.check(connection, recompute=False) == []
