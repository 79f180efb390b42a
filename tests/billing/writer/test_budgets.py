"""A key's spend limits: exact however its requests come together, and counted by day, month and in all."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta

import msgspec
import pytest
from django.core.management import call_command
from django.db import connection
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from base.ids import uuid7
from billing import reconcile, triggers
from billing.models import Budget, Hold, UsageRecord, Wallet
from billing.services import budgets
from billing.writer import open_writer
from billing.writer.operations import Extend, Held, Refused, Release, Settle, Settled, TrueUp
from billing.writer.view import BudgetRow
from tests.billing.writer.world import (
    extend,
    make_budget,
    make_wallet,
    of_budget,
    open_desk,
    patient,
    release,
    repin,
    reserve,
    settle,
)

pytestmark = [pytest.mark.contract, pytest.mark.django_db(transaction=True)]


def counts(budget):
    row = Budget.objects.get(pk=budget.pk)
    return row.held, row.day_spent, row.month_spent, row.total_spent


def test_a_hold_takes_no_more_than_the_budget_leaves(desk):
    wallet = make_wallet(credit=1000)
    budget = make_budget(wallet, day_limit=100, total_limit=150)
    first = of_budget(budget, reserve(wallet, 60))
    assert desk.ask(first) == [Held(60, 940)]
    second = of_budget(budget, reserve(wallet, 60, least=10))
    assert desk.ask(second) == [Held(40, 900)]
    assert desk.ask(of_budget(budget, reserve(wallet, 1))) == [Refused("day", 0, 100)]
    assert desk.ask(reserve(wallet, 1)) == [Held(1, 899)]
    assert desk.ask(extend(first, 90, 61)) == [Refused("day", 0, 100)]
    assert desk.ask(settle(first, 20), release(second)) == [Settled(20, 980, 41), Settled(0, 980, 1)]
    assert counts(budget) == (0, 20, 20, 20)
    assert desk.ask(of_budget(budget, reserve(wallet, 200, least=1))) == [Held(80, 899)]


def test_an_extension_and_a_move_take_what_the_budget_leaves(desk):
    wallet = make_wallet(credit=1000)
    budget = make_budget(wallet, month_limit=100)
    made = of_budget(budget, reserve(wallet, 10))
    assert desk.ask(made) == [Held(10, 990)]
    assert desk.ask(extend(made, 70, 20)) == [Held(70, 930)]
    assert desk.ask(repin(made, 400, 71)) == [Held(100, 900)]
    assert desk.ask(repin(made, 400, 101)) == [Refused("month", 0, 100)]
    assert counts(budget)[0] == 100


def test_the_wallet_is_named_where_it_is_the_shorter(desk):
    wallet = make_wallet(credit=50)
    budget = make_budget(wallet, total_limit=100)
    assert desk.ask(of_budget(budget, reserve(wallet, 60))) == [Refused("wallet", 50, 50)]


def test_the_limit_is_named_that_will_stand_though_the_wallet_is_the_shorter_now(desk):
    """Its credit was told to be exhausted, and all but 10 of it was only held."""
    wallet = make_wallet(credit=100)
    budget = make_budget(wallet, total_limit=50)
    desk.ask(reserve(wallet, 90))
    assert desk.ask(of_budget(budget, reserve(wallet, 60))) == [Refused("total", 50, 50)]
    assert desk.ask(of_budget(budget, reserve(wallet, 40))) == [Refused("wallet", 10, 50)]


def test_periods_end_and_the_total_stays(desk):
    wallet = make_wallet(credit=1000)
    budget = make_budget(wallet, day_limit=100, month_limit=150, total_limit=220)
    made = of_budget(budget, reserve(wallet, 100))
    desk.ask(made)
    desk.ask(settle(made, 100))
    assert desk.ask(of_budget(budget, reserve(wallet, 1))) == [Refused("day", 0)]
    Budget.objects.update(day="2020-01-31")
    assert desk.ask(of_budget(budget, reserve(wallet, 60))) == [Refused("month", 50, 50)]
    Budget.objects.update(day="2020-01-31", month="2020-01-01")
    again = of_budget(budget, reserve(wallet, 100))
    assert desk.ask(again) == [Held(100, 800)]
    desk.ask(settle(again, 100))
    assert counts(budget) == (0, 100, 100, 200)
    Budget.objects.update(day="2020-01-31", month="2020-01-01")
    assert desk.ask(of_budget(budget, reserve(wallet, 21))) == [Refused("total", 20, 20)]
    budget.delete()  # its days were moved, and those of what was charged were not


def test_a_correction_counts_too(desk):
    wallet = make_wallet(credit=1000)
    budget = make_budget(wallet, total_limit=100)
    made = of_budget(budget, reserve(wallet, 50))
    desk.ask(made)
    desk.ask(Settle(made.request, wallet.pk, 40, {"input": 40}, exact=False))
    assert desk.ask(TrueUp(made.request, wallet.pk, 15, {"input": 15})) == [Settled(15, 985, 0)]
    assert counts(budget) == (0, 15, 15, 15)


def test_what_another_period_gets_back_makes_no_room_in_this_one():
    """An estimate of yesterday that turns out too high would else let today exceed its limit."""
    now = datetime(2026, 3, 1, 0, 5, tzinfo=UTC)
    budget = BudgetRow(uuid7(), uuid7(), 100, 100, 500, 0, date(2026, 2, 28), 90, date(2026, 2, 1), 90, 90)
    budget.turn(now)
    budget.correct(-80, now - timedelta(minutes=10))
    assert {window: rest for rest, window in budget.rests()} == {"day": 100, "month": 100, "total": 490}
    budget.correct(5, now - timedelta(minutes=10))
    budget.spend(30)
    budget.correct(-20, now)
    assert (budget.day_spent, budget.month_spent, budget.total_spent) == (15, 15, 25)


def test_what_began_before_the_budget_does_not_count(desk):
    wallet = make_wallet(credit=1000)
    early = reserve(wallet, 50)
    desk.ask(early)
    budget = make_budget(wallet, total_limit=100)
    desk.ask(settle(early, 50))
    assert counts(budget) == (0, 0, 0, 0)


def test_what_a_gateway_reserved_that_knew_no_budget_yet_counts_in_none_ever(desk):
    """Gateways hear of a key's first limit half a second later; until then what they reserve is of no budget."""
    wallet = make_wallet(credit=1000)
    budget = make_budget(wallet, total_limit=100)
    late = msgspec.structs.replace(of_budget(budget, reserve(wallet, 50)), budget=None)
    desk.ask(late)
    desk.ask(Settle(late.request, wallet.pk, 40, {"input": 40}, exact=False))
    assert desk.ask(TrueUp(late.request, wallet.pk, 15, {"input": 15})) == [Settled(15, 985, 0)]
    assert counts(budget) == (0, 0, 0, 0)


def migrated():
    """Take the tables back to those of earlier code and forth again, as `setup` does."""
    try:
        call_command("migrate", "billing", "0005_usage_days", verbosity=0)
    finally:
        call_command("migrate", verbosity=0, interactive=False)


def written_by_earlier_code():
    """Leave the records as a gateway of earlier code does during a rolling upgrade."""
    with triggers.suspended(connection):
        UsageRecord.objects.update(budget=None)


@pytest.mark.parametrize("become_earlier", [migrated, written_by_earlier_code])
def test_records_of_earlier_code_count_in_the_budget_that_their_key_had(become_earlier):
    wallet = make_wallet(credit=1000)
    key = uuid7()
    early = msgspec.structs.replace(reserve(wallet, 30), api_key=key)
    with open_desk() as desk:
        desk.ask(early)
        budget = make_budget(wallet, key, total_limit=100)
        made = of_budget(budget, reserve(wallet, 60))
        desk.ask(made)
        for one, charge in ((early, 30), (made, 40)):
            desk.ask(Settle(one.request, wallet.pk, charge, {"input": charge}, exact=False))
    become_earlier()
    assert set(UsageRecord.objects.values_list("budget", flat=True)) == {None}
    assert reconcile.check(connection, recompute=False) == []
    with open_desk() as desk:
        for one, charge in ((early, 10), (made, 15)):
            assert isinstance(desk.ask_one(TrueUp(one.request, wallet.pk, charge, {"input": charge})), Settled)
    assert counts(budget) == (0, 15, 15, 15)
    assert reconcile.check(connection, recompute=False) == []


def test_a_lifted_budget_limits_nothing_and_goes_on_counting(desk):
    """It was forgotten: whoever lifted a limit and set it again spent it twice."""
    wallet = make_wallet(credit=1000)
    budget = make_budget(wallet, total_limit=100)
    before = of_budget(budget, reserve(wallet, 60))
    desk.ask(before)
    desk.ask(settle(before, 60))
    lifted = budgets.set_budget(wallet=wallet.pk, api_key=budget.api_key, limits=budgets.SpendLimits())
    meanwhile = of_budget(lifted, reserve(wallet, 500))
    assert desk.ask(meanwhile) == [Held(500, 440)]
    desk.ask(settle(meanwhile, 25))
    again = make_budget(wallet, budget.api_key, total_limit=100)
    assert counts(again) == (0, 85, 85, 85)
    assert desk.ask(of_budget(again, reserve(wallet, 50, least=1))) == [Held(15, 900)]


def test_a_new_limit_holds_at_once_and_keeps_what_was_spent(desk):
    wallet = make_wallet(credit=1000)
    budget = make_budget(wallet, total_limit=100)
    made = of_budget(budget, reserve(wallet, 60))
    desk.ask(made)
    desk.ask(settle(made, 60))
    same = make_budget(wallet, budget.api_key, total_limit=70, day_limit=500)
    assert (same.pk, same.total_spent) == (budget.pk, 60)
    assert desk.ask(of_budget(budget, reserve(wallet, 20, least=1))) == [Held(10, 930)]


def test_a_budget_of_another_wallet_is_refused(desk):
    budget = make_budget(make_wallet(credit=10), total_limit=100)
    [answer] = desk.ask(of_budget(budget, reserve(make_wallet(credit=10), 5)))
    assert "it is of wallet" in str(answer)


def test_many_at_once_through_two_writers_spend_the_limit_exactly():
    wallet = make_wallet(credit=100_000)
    budget = make_budget(wallet, total_limit=1000)

    async def race():
        writers = [open_writer(connection.settings_dict) for _ in range(2)]
        for writer in writers:
            patient(writer)

        async def one(number):
            writer, made = writers[number % 2], of_budget(budget, reserve(wallet, 21, least=7))
            answer = await writer.submit(made)
            if isinstance(answer, Held):
                return (await writer.submit(settle(made, answer.total))).charge
            assert answer.limit == "total"
            return 0

        try:
            return await asyncio.gather(*map(one, range(200)))
        finally:
            for writer in writers:
                await writer.close()

    spent = sum(asyncio.run(race()))
    assert 1000 - 7 < spent <= 1000
    assert counts(budget) == (0, spent, spent, spent)
    assert Wallet.objects.get(pk=wallet.pk).posted == 100_000 - spent


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "reserve", "extend", "settle", "estimate", "release", "true-up"]),
        st.integers(0, 7),
        st.integers(0, 60),
        st.integers(0, 60),
    ),
    min_size=1,
    max_size=40,
)


@given(steps=STEPS, limit=st.integers(0, 120), together=st.integers(1, 8))
@example(steps=[("reserve", 1, 7, 0), ("reserve", 0, 8, 0), ("settle", 1, 0, 8)], limit=15, together=1)
@example(  # the charge beyond its hold comes with a hold that fits the limit
    steps=[("reserve", 1, 7, 0), ("release", 7, 0, 0), ("reserve", 0, 8, 0), ("settle", 1, 0, 8)], limit=15, together=2
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_what_counts_is_the_sum_of_what_was_charged_and_is_held(transactional_db, steps, limit, together):
    """Any operations in any batches: never beyond the limit, but by a charge or a correction beyond its hold."""
    wallet, other = make_wallet(credit=300), make_wallet(credit=300)
    budget = make_budget(wallet, day_limit=limit)
    requests, beyond = [uuid7() for _ in range(8)], 0
    with open_desk() as desk:
        for start in range(0, len(steps), together):
            batch = {}
            for kind, number, amount, least in steps[start : start + together]:
                request = requests[number]
                batch[request] = {
                    "reserve": of_budget(budget, reserve(wallet, amount, min(amount, least), request)),
                    "extend": Extend(request, wallet.pk, amount, least),
                    "settle": Settle(request, wallet.pk, least, {"input": least}),
                    "estimate": Settle(request, wallet.pk, least, {"input": least}, exact=False),
                    "release": Release(request, wallet.pk),
                    "true-up": TrueUp(request, wallet.pk, amount, {"input": amount}),
                }[kind]
            known = dict(UsageRecord.objects.order_by("revision").values_list("request", "charge"))
            asked = [op for op in batch.values() if not (hasattr(op, "owner") and op.request in known)]
            before = counts(budget)
            paid = known | dict(Hold.objects.values_list("id", "amount"))
            more = [op.charge - paid[op.request] for op in asked if hasattr(op, "charge") and op.request in paid]
            desk.ask(*asked, reserve(other, 1))
            held, spent, *_ = counts(budget)
            if held > before[0]:
                assert held + spent <= limit + beyond + sum(one for one in more if one > 0)
            beyond = max(beyond, held + spent - limit)
    held, day, month, total = counts(budget)
    records = UsageRecord.objects.filter(api_key=budget.api_key).order_by("request", "revision")
    charges = {record.request: record.charge for record in records}
    assert (day, month, total) == (sum(charges.values()),) * 3
    assert held == Wallet.objects.get(pk=wallet.pk).held
    assert reconcile.check(connection, recompute=False) == []
