"""Budgets: exact however requests come together, counted in the windows that were pinned when they were held."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from base.ids import uuid7
from billing import reconcile
from billing.models import Budget, BudgetWindow, Hold, SpendBudget, Wallet
from billing.periods import window_of
from billing.services import budgets
from billing.services.budgets import BudgetError, SpendLimits
from billing.writer import changes as changes_module
from billing.writer import decide as decide_module
from billing.writer import open_writer
from billing.writer import operations as operations_module
from billing.writer.apply import apply_now
from billing.writer.operations import Extend, Held, Refused, Release, Repin, Settle, Settled, TrueUp
from gateway.runtime import epoch_triggers
from tests.billing.conftest import MovedClock
from tests.billing.writer.world import (
    counts,
    extend,
    make_budget,
    make_wallet,
    of_budgets,
    patient,
    release,
    repin,
    reserve,
    settle,
)

pytestmark = [pytest.mark.contract, pytest.mark.django_db(transaction=True)]


def test_a_hold_takes_no_more_than_each_of_its_budgets_leaves(desk):
    wallet = make_wallet(credit=1000)
    day, total = make_budget(wallet, 100, "day"), make_budget(wallet, 150)
    first = of_budgets(reserve(wallet, 60), day, total)
    assert desk.ask(first) == [Held(60, 940)]
    second = of_budgets(reserve(wallet, 60, least=10), day, total)
    assert desk.ask(second) == [Held(40, 900)]
    assert desk.ask(of_budgets(reserve(wallet, 1), day, total)) == [Refused("budget", 0, 100, day.number)]
    assert desk.ask(reserve(wallet, 1)) == [Held(1, 899)]
    assert desk.ask(extend(first, 90, 61)) == [Refused("budget", 0, 100, day.number)]
    assert desk.ask(settle(first, 20), release(second)) == [Settled(20, 980, 41), Settled(0, 980, 1)]
    assert counts(day) == counts(total) == (0, 20)
    assert desk.ask(of_budgets(reserve(wallet, 200, least=1), day, total)) == [Held(80, 899)]


def test_a_soft_budget_counts_and_refuses_nothing(desk):
    wallet = make_wallet(credit=1000)
    soft = make_budget(wallet, 10, is_hard=False)
    made = of_budgets(reserve(wallet, 60), soft)
    assert desk.ask(made) == [Held(60, 940)]
    desk.ask(settle(made, 50))
    assert counts(soft) == (0, 50)


def test_an_extension_and_a_move_take_what_the_budget_leaves(desk):
    wallet = make_wallet(credit=1000)
    budget = make_budget(wallet, 100, "month")
    made = of_budgets(reserve(wallet, 10), budget)
    assert desk.ask(made) == [Held(10, 990)]
    assert desk.ask(extend(made, 70, 20)) == [Held(70, 930)]
    assert desk.ask(repin(made, 400, 71)) == [Held(100, 900)]
    assert desk.ask(repin(made, 400, 101)) == [Refused("budget", 0, 100, budget.number)]
    assert counts(budget) == (100, 0)


def test_an_extension_without_budgets_writes_no_windows(desk):
    wallet = make_wallet(credit=1000)
    made = reserve(wallet, 10)
    desk.ask(made)
    assert desk.ask(extend(made, 70, 20)) == [Held(70, 930)]
    assert Wallet.objects.get(pk=wallet.pk).windows == ""


def test_requests_of_the_same_budgets_share_the_names_of_their_windows():
    """Else a budget of one end user made every other request of the tenant compute them."""
    wallet = make_wallet()
    make_budget(wallet, 100, "day")
    make_budget(wallet, 100, "day", scope="end_user", subject="ada")
    found = budgets.bearing_on(wallet.pk, project=uuid.uuid4(), key=None, member=None)
    assert budgets.bearing(found, model="m", end_user="ada") is found
    others = budgets.bearing(found, model="m", end_user="bob")
    assert [one.number for one in others.terms] == [1]
    assert budgets.bearing(found, model="m", end_user="eve") is others


def test_the_wallet_is_named_where_it_is_the_shorter(desk):
    wallet = make_wallet(credit=50)
    assert desk.ask(of_budgets(reserve(wallet, 60), make_budget(wallet, 100))) == [Refused("wallet", 50, 50)]


def test_the_limit_is_named_that_will_stand_though_the_wallet_is_the_shorter_now(desk):
    """Its credit was told to be exhausted, and all but 10 of it was only held."""
    wallet = make_wallet(credit=100)
    budget = make_budget(wallet, 50)
    desk.ask(reserve(wallet, 90))
    assert desk.ask(of_budgets(reserve(wallet, 60), budget)) == [Refused("budget", 50, 50, budget.number)]
    assert desk.ask(of_budgets(reserve(wallet, 40), budget)) == [Refused("wallet", 10, 50)]


def test_what_was_held_before_a_window_ended_counts_in_that_one(clock):
    """An estimate of yesterday that turns out too high would else let today exceed its limit."""
    clock.set(datetime(2030, 3, 1, 22, 59, tzinfo=UTC))
    wallet = make_wallet(credit=1000)
    day = make_budget(wallet, 100, "day", time_zone="Europe/Berlin")
    late, other = (of_budgets(reserve(wallet, 60), day) for _ in range(2))
    apply_now([late])
    clock.set(datetime(2030, 3, 1, 23, 0, tzinfo=UTC))
    assert apply_now([of_budgets(reserve(wallet, 200, least=1), day)]) == [Held(100, 840)]
    apply_now([Settle(late.request, wallet.pk, 60, {"input": 60}, exact=False)])
    assert counts(day) == (100, 0)
    assert apply_now([other]) == [Refused("budget", 0, 100, day.number)]
    apply_now([TrueUp(late.request, wallet.pk, 15, {"input": 15})])
    assert counts(day) == (100, 0)
    clock.set(datetime(2030, 3, 1, 22, 59, tzinfo=UTC))
    assert counts(day) == (0, 15)


def test_a_correction_counts_too(desk):
    wallet = make_wallet(credit=1000)
    budget = make_budget(wallet, 100)
    made = of_budgets(reserve(wallet, 50), budget)
    desk.ask(made)
    desk.ask(Settle(made.request, wallet.pk, 40, {"input": 40}, exact=False))
    assert desk.ask(TrueUp(made.request, wallet.pk, 15, {"input": 15})) == [Settled(15, 985, 0)]
    assert counts(budget) == (0, 15)


def test_what_began_before_the_budget_does_not_count(desk):
    wallet = make_wallet(credit=1000)
    early = reserve(wallet, 50)
    desk.ask(early)
    budget = make_budget(wallet, 100)
    desk.ask(settle(early, 50))
    assert counts(budget) == (0, 0)


def test_a_removed_budget_limits_nothing_and_goes_on_counting(desk):
    """Whoever removed a budget and made it again would else spend it twice."""
    wallet = make_wallet(credit=1000)
    budget = make_budget(wallet, 100)
    before = of_budgets(reserve(wallet, 60), budget)
    desk.ask(before)
    desk.ask(settle(before, 60))
    removed = budgets.remove_budget(budget)
    meanwhile = of_budgets(reserve(wallet, 500), removed)
    assert desk.ask(meanwhile) == [Held(500, 440)]
    desk.ask(settle(meanwhile, 25))
    again = make_budget(wallet, 100)
    assert (again.pk, counts(again)) == (budget.pk, (0, 85))
    assert desk.ask(of_budgets(reserve(wallet, 50, least=1), again)) == [Held(15, 900)]


def test_another_limit_holds_at_once_and_keeps_what_was_spent(desk):
    wallet = make_wallet(credit=1000)
    budget = make_budget(wallet, 100)
    made = of_budgets(reserve(wallet, 60), budget)
    desk.ask(made)
    desk.ask(settle(made, 60))
    budgets.change_budget(budget, amount=70)
    assert desk.ask(of_budgets(reserve(wallet, 20, least=1), budget)) == [Held(10, 930)]
    budgets.change_budget(budget, amount=75)
    assert desk.ask(of_budgets(reserve(wallet, 20, least=1), budget)) == [Held(5, 925)]


def test_the_same_budget_is_not_made_twice():
    wallet = make_wallet()
    make_budget(wallet, 100)
    with pytest.raises(BudgetError, match="There is such a budget already"):
        make_budget(wallet, 200)
    make_budget(wallet, 80, is_hard=False)


def test_keys_limits_are_three_budgets_of_the_key():
    wallet, key = make_wallet(credit=1000), uuid.uuid4()
    budgets.set_key_limits(wallet=wallet.pk, api_key=key, limits=SpendLimits(day_limit=5, total_limit=9))
    bearing = list(SpendBudget.objects.filter(wallet=wallet))
    made = of_budgets(reserve(wallet, 50, least=1), *bearing)
    assert apply_now([made]) == [Held(5, 995)]
    apply_now([settle(made, 3)])
    budgets.set_key_limits(wallet=wallet.pk, api_key=key, limits=SpendLimits(month_limit=7))
    spending = budgets.of_keys([key])[key]
    assert (spending.limits, spending.day, spending.month, spending.total) == (SpendLimits(month_limit=7), 3, 3, 3)


def test_more_windows_than_a_wallet_keeps_are_put_away_and_found_again(monkeypatch, desk):
    monkeypatch.setattr(changes_module, "MOST_KEPT", 4)
    wallet = make_wallet(credit=10_000)
    many = [make_budget(wallet, 100, scope="end_user", subject=f"{n}") for n in range(9)]
    held = [of_budgets(reserve(wallet, 30), one) for one in many]
    for one in held:
        desk.ask(one)
    assert BudgetWindow.objects.filter(wallet=wallet).count() >= 5
    assert [counts(one) for one in many] == [(30, 0)] * 9
    for one in held:
        desk.ask(settle(one, 20))
    assert [counts(one) for one in many] == [(0, 20)] * 9
    budgets.change_budget(many[0], amount=25)
    assert desk.ask(of_budgets(reserve(wallet, 90, least=1), many[0])) == [Held(5, 9815)]
    assert desk.ask(of_budgets(reserve(wallet, 90, least=1), many[1])) == [Held(80, 9735)]


def test_what_keys_spent_before_the_upgrade_is_carried_over_and_taken_over_while_both_releases_run():
    wallet, key = make_wallet(credit=1000), uuid.uuid4()
    today = datetime.now(UTC).date()
    counted = {"day": today, "day_spent": 10, "month": today.replace(day=1), "month_spent": 20, "total_spent": 30}
    limits = {"day_limit": 100, "month_limit": None, "total_limit": 300}
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(epoch_triggers, "WATCHED", ())  # columns that come with later migrations
            call_command("migrate", "billing", "0015_money_in", verbosity=0)
        with connection.cursor() as cursor:
            names = ["id", "wallet_id", "api_key", "held", *limits, *counted]
            values = [uuid7(), wallet.pk, key, 0, *limits.values(), *counted.values()]
            values = [
                one.hex if connection.vendor == "sqlite" and isinstance(one, uuid.UUID) else one for one in values
            ]
            marks = ", ".join(["%s"] * len(names))
            cursor.execute(f"INSERT INTO billing_budget ({', '.join(names)}) VALUES ({marks})", values)
    finally:
        call_command("migrate", verbosity=0, interactive=False)
    spending = budgets.of_keys([key])[key]
    assert (spending.limits, spending.day, spending.month, spending.total) == (SpendLimits(100, None, 300), 10, 20, 30)
    assert reconcile.check(connection, recompute=False) == []
    carry_over = import_module("billing.migrations.0017_carry_budgets").carry_over
    carry_over(apps, SimpleNamespace(connection=connection))
    assert budgets.of_keys([key])[key] == spending, "repeated it changes nothing"
    Budget.objects.update(day_spent=15, month_spent=25, total_spent=35)
    assert (budgets.take_over(), budgets.take_over()) == (1, 0)
    bearing = list(SpendBudget.objects.filter(wallet=wallet))
    assert apply_now([of_budgets(reserve(wallet, 500, least=1), *bearing)]) == [Held(85, 915)]
    assert reconcile.check(connection, recompute=False) == []


def test_limits_that_the_release_before_sets_are_taken_over_and_those_of_this_one_stay():
    wallet, key = make_wallet(credit=1000), uuid.uuid4()
    today = datetime.now(UTC).date()
    counted = {"day": today, "day_spent": 10, "month": date(2026, 1, 1), "month_spent": 20, "total_spent": 30}
    Budget.objects.create(wallet=wallet, api_key=key, day_limit=100, **counted)

    def limits():
        budgets.take_over()
        assert budgets.take_over() == 0
        return budgets.of_keys([key])[key].limits

    assert limits() == SpendLimits(day_limit=100)
    spending = budgets.of_keys([key])[key]
    assert (spending.day, spending.month, spending.total) == (10, 0, 30)
    Budget.objects.update(day_limit=None, total_limit=90)
    assert limits() == SpendLimits(total_limit=90)
    budgets.change_budget(SpendBudget.objects.get(window="total"), amount=80)
    assert limits() == SpendLimits(total_limit=80)
    budgets.change_budget(SpendBudget.objects.get(window="total"), is_hard=False)
    assert limits() == SpendLimits()
    budgets.set_key_limits(wallet=wallet.pk, api_key=key, limits=SpendLimits(day_limit=40))
    assert limits() == SpendLimits(day_limit=40)
    bearing = list(SpendBudget.objects.filter(wallet=wallet))
    assert apply_now([of_budgets(reserve(wallet, 500, least=1), *bearing)]) == [Held(30, 970)]
    assert reconcile.check(connection, recompute=False) == []


def test_what_the_release_before_closes_of_new_holds_is_given_back(monkeypatch):
    monkeypatch.setattr(changes_module, "MOST_KEPT", 2)
    wallet = make_wallet(credit=1000)
    many = [make_budget(wallet, 100, scope="end_user", subject=f"{n}") for n in range(5)]
    held = [of_budgets(reserve(wallet, 30), one) for one in many for _ in range(2)]
    for one in held:
        apply_now([one])
    assert budgets.take_over() == 0
    Hold.objects.filter(pk__in=[one.request for one in held[::2]]).delete()  # as it knows no windows
    Wallet.objects.filter(pk=wallet.pk).update(held=150)
    assert [counts(one) for one in many] == [(60, 0)] * 5
    assert (budgets.take_over(), budgets.take_over()) == (1, 0)
    assert [counts(one) for one in many] == [(30, 0)] * 5
    assert apply_now([settle(one, 20) for one in held[1::2]])[-1] == Settled(20, 900, 0)
    assert [counts(one) for one in many] == [(0, 20)] * 5


def test_budgets_for_the_same_are_bounded_with_those_that_were_removed(monkeypatch):
    monkeypatch.setattr(budgets, "MOST_OF_ONE", 2)
    wallet, key = make_wallet(), uuid.uuid4()
    budgets.remove_budget(make_budget(wallet, 1, "day"))
    make_budget(wallet, 1, "week")
    with pytest.raises(BudgetError, match="2 budgets were made for the same"):
        make_budget(wallet, 1, "month")
    make_budget(wallet, 1, "day")
    make_budget(wallet, 1, "day", scope="member", subject="another")
    budgets.set_key_limits(wallet=wallet.pk, api_key=key, limits=SpendLimits(1, 2, 3))
    with pytest.raises(BudgetError, match="2 budgets were made for the same"):
        make_budget(wallet, 1, "week", scope="key", subject=str(key))


WINDOWS = ("day", "week", "month", "total")
SCOPES = ("tenant", "project", "key", "member", "end_user", "models")
SUBJECTS = {"key": str(uuid.uuid4())}
ZONES = ("UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/New_York")
amounts = st.integers(0, 60)
which = st.integers(0, 5)


def local_window(budget, at):
    """The window's name by the calendar of its zone, found without the code under test."""
    local = at.astimezone(ZoneInfo(budget.time_zone))
    return {
        "day": local.date(), "week": local.isocalendar()[:2], "month": (local.year, local.month), "total": ()
    }[budget.window]  # fmt: skip


class Spending(RuleBasedStateMachine):
    """One wallet with budgets of all scopes and windows under every operation, while its clock goes on."""

    @initialize(start=st.sampled_from(["2030-03-30T22:30", "2030-10-26T23:30", "2030-12-31T22:59", "2030-02-28T10:00"]))
    def begin(self, start):
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(changes_module, "MOST_KEPT", 3)
        self.clock = MovedClock(self.patches)
        self.now = datetime.fromisoformat(start).replace(tzinfo=UTC)
        self.clock.set(self.now)
        self.undone = transaction.atomic()
        self.undone.__enter__()
        self.wallet = make_wallet(credit=300)
        self.budgets, self.limits = [], {}  # pk → its limit now, None: none
        self.requests = {}  # request → [{(budget, window)}, held, charge, state]

    def teardown(self):
        if hasattr(self, "patches"):
            self.patches.undo()
            transaction.set_rollback(True)
            self.undone.__exit__(None, None, None)

    @rule(
        scope=st.sampled_from(SCOPES), window=st.sampled_from(WINDOWS), zone=st.sampled_from(ZONES), limit=amounts,
        is_hard=st.sampled_from([True, True, False]),
    )  # fmt: skip
    def make(self, scope, window, zone, limit, is_hard):
        terms = {"scope": scope, "time_zone": zone, "is_hard": is_hard, "subject": SUBJECTS.get(scope, scope)}
        try:
            made = make_budget(self.wallet, limit, window, **terms)
        except BudgetError:
            return
        self.budgets = [one for one in self.budgets if one.pk != made.pk] + [made]
        self.limits[made.pk] = limit if is_hard else None

    @rule(number=which, limit=st.integers(0, 120))
    def change(self, number, limit):
        if number < len(self.budgets):
            budget = self.budgets[number]
            if SpendBudget.objects.get(pk=budget.pk).removed_at is None:
                budgets.change_budget(budget, amount=limit)
                self.limits[budget.pk] = limit if budget.is_hard else None

    @rule(number=which)
    def remove(self, number):
        if number < len(self.budgets):
            budgets.remove_budget(self.budgets[number])
            self.limits[self.budgets[number].pk] = None

    @rule(seconds=st.sampled_from([60, 1800, 3600, 80_000, 90_000, 700_000, 2_700_000]))
    def wait(self, seconds):
        self.now += timedelta(seconds=seconds)
        self.clock.set(self.now)

    def used(self, at):
        return sum(one[1] + one[2] for one in self.requests.values() if at in one[0])

    def room(self, pinned):
        wallet = 300 - sum(held + charge for _, held, charge, _ in self.requests.values())
        limits = [self.limits[pk] - self.used((pk, window)) for pk, window in pinned if self.limits[pk] is not None]
        return min([wallet, *limits])

    @rule(bearing=st.one_of(st.just(range(6)), st.sets(which)), amount=amounts, least=amounts)
    def reserve(self, bearing, amount, least):
        mine = [one for number, one in enumerate(self.budgets) if number in bearing]
        pinned = {(one.pk, local_window(one, self.now)) for one in mine}
        made = of_budgets(reserve(self.wallet, amount, min(amount, least)), *mine)
        [answer] = apply_now([made])
        take = min(amount, self.room(pinned))
        if take < min(amount, least):
            assert isinstance(answer, Refused), f"{answer} where {take} are left"
            return
        assert isinstance(answer, Held), f"{answer} with room for {take}"
        assert answer.total == take
        self.requests[made.request] = [pinned, take, 0, "held"]

    def some(self, number, *states):
        mine = [request for request, one in self.requests.items() if one[3] in states]
        return mine[number % len(mine)] if mine else None

    @rule(number=which, amount=amounts, least=amounts, moves=st.booleans())
    def extend(self, number, amount, least, moves):
        if (request := self.some(number, "held")) is None:
            return
        one = self.requests[request]
        pinned = (uuid.uuid4(), uuid.uuid4(), "m")
        op = Repin(request, self.wallet.pk, amount, least, *pinned) if moves else None
        [answer] = apply_now([op or Extend(request, self.wallet.pk, amount, least)])
        take = max(min(amount, one[1] + self.room(one[0])), one[1])
        if take < least:
            assert isinstance(answer, Refused)
        else:
            assert isinstance(answer, Held)
            assert answer.total == take
            one[1] = take

    @rule(number=which, share=st.sampled_from([0.0, 0.5, 1.0]), exact=st.booleans())
    def settle(self, number, share, exact):
        if (request := self.some(number, "held")) is not None:
            one = self.requests[request]
            charge = int(one[1] * share)
            apply_now([Settle(request, self.wallet.pk, charge, {"input": charge}, exact=exact)])
            one[1:] = [0, charge, "exact" if exact else "estimate"]

    @rule(number=which)
    def release(self, number):
        if (request := self.some(number, "held")) is not None:
            apply_now([Release(request, self.wallet.pk)])
            self.requests[request][1:] = [0, 0, "exact"]

    @rule(number=which, charge=st.integers(0, 40))
    def true_up(self, number, charge):
        if (request := self.some(number, "estimate")) is not None:
            apply_now([TrueUp(request, self.wallet.pk, charge, {"input": charge})])
            self.requests[request][2:] = [charge, "exact"]

    @invariant()
    def counts_are_those_of_the_requests(self):
        if not hasattr(self, "patches"):
            return
        for standing in budgets.standings(self.budgets):
            at = standing.budget.pk, local_window(standing.budget, self.now)
            mine = [one for one in self.requests.values() if at in one[0]]
            assert (standing.held, standing.spent) == (sum(one[1] for one in mine), sum(one[2] for one in mine))
        assert reconcile.check(connection, recompute=False) == []


STATEFUL = settings(
    max_examples=30, stateful_step_count=30, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip


def test_any_operations_and_budgets_count_as_the_requests_do():
    run_state_machine_as_test(Spending, settings=STATEFUL)


def walk():
    """Go one way that leads past each guard."""
    machine = Spending()
    machine.begin("2030-06-29T21:30")  # in summer, as days are counted from a midnight of winter
    try:
        machine.make("key", "day", "Europe/Berlin", 30, is_hard=True)
        machine.make("tenant", "total", "UTC", 100, is_hard=True)
        machine.reserve({0, 1}, 60, 0)
        machine.wait(3600)
        machine.reserve({0, 1}, 60, 0)
        machine.settle(0, 1.0, exact=False)
        machine.true_up(0, 5)
        machine.extend(0, 60, 0, moves=True)
        machine.counts_are_those_of_the_requests()
        machine.change(0, 10)
        machine.reserve({0}, 5, 1)
        machine.remove(0)
        machine.reserve({0, 1}, 5, 1)
        machine.settle(0, 1.0, exact=True)
        machine.counts_are_those_of_the_requests()
    finally:
        machine.teardown()


def unlimited(wallet, _windows, model, hold=None):
    return wallet.available_for(model, hold)


def always_in_utc(window, anchor, time_zone, at, real=window_of):
    return real(window, anchor, "UTC", at)


def nothing_comes_back(self, wallet, names, *, held=0, spent=0, real=changes_module.Changes.count):
    real(self, wallet, names, held=max(held, 0), spent=max(spent, 0))


@pytest.mark.parametrize(
    "broken",
    [
        (decide_module, "_room", unlimited),
        (operations_module, "window_of", always_in_utc),
        (changes_module.Changes, "count", nothing_comes_back),
        (budgets, "_rewrite", lambda *_: None),
    ],
    ids=lambda one: one[1],
)
def test_the_machine_sees_each_guard_that_is_gone(monkeypatch, broken):
    walk()
    monkeypatch.setattr(*broken)
    with pytest.raises(AssertionError):
        walk()


CLIENTS = 64


def spend_at_once(wallet, five, *, each=6, meanwhile=None):
    """Let 64 clients through two writers each hold and spend on five budgets; return what was charged, and what the
    last answers to each were.
    """

    async def race():
        writers = [open_writer(connection.settings_dict) for _ in range(2)]
        for writer in writers:
            patient(writer)
        refusals = []

        async def client(number):
            writer, spent = writers[number % 2], 0
            for _ in range(each):
                made = of_budgets(reserve(wallet, 21, least=7), *five)
                answer = await writer.submit(made)
                if isinstance(answer, Held):
                    spent += (await writer.submit(settle(made, answer.total))).charge
                else:
                    refusals.append(answer)
            return spent

        try:
            other = None if meanwhile is None else asyncio.to_thread(meanwhile)
            spent = await asyncio.gather(*map(client, range(CLIENTS)), *([] if other is None else [other]))
            return sum(one for one in spent if one), refusals
        finally:
            for writer in writers:
                await writer.close()

    return asyncio.run(race())


def five_of(wallet, *limits):
    return [
        make_budget(wallet, limit, window, scope=scope, subject=scope)
        for limit, window, scope in zip(limits, ("total", "day", "week", "month", "day"), SCOPES, strict=False)
    ]


def test_64_clients_spend_the_narrowest_of_five_budgets_exactly():
    wallet = make_wallet(credit=100_000)
    five = five_of(wallet, 5_000, 1_000, 3_000, 4_000, 2_000)
    spent, refusals = spend_at_once(wallet, five)
    assert 1000 - 7 < spent <= 1000
    assert {one.budget for one in refusals} == {five[1].number}
    assert all(one.available < 7 for one in refusals), "nobody is refused with room left"
    assert {counts(one) for one in five} == {(0, spent)}
    assert Wallet.objects.get(pk=wallet.pk).posted == 100_000 - spent
    assert reconcile.check(connection, recompute=False) == []


def test_64_clients_while_budgets_are_raised_lowered_and_removed():
    wallet = make_wallet(credit=100_000)
    five = five_of(wallet, 5_000, 1_000, 3_000, 4_000, 2_000)

    def change():
        try:
            budgets.change_budget(five[1], amount=300)
            budgets.remove_budget(five[1])
            budgets.change_budget(five[4], amount=900)
            budgets.change_budget(five[0], amount=950)
            make_budget(wallet, 1_500, "day", scope="project", subject="project")
            budgets.change_budget(five[4], amount=1_200)
        finally:
            connection.close()

    spent, _ = spend_at_once(wallet, five, meanwhile=change)
    assert 950 - 7 < spent <= 1_000
    assert {counts(one) for one in five} == {(0, spent)}
    assert reconcile.check(connection, recompute=False) == []
