"""What time does to a wallet: grants end between any two operations, and nothing falls below its limit by it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.db.models import Sum
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from billing import reconcile
from billing.models import CreditGrant, Hold, Plan, RecurringGrant, ScheduledGrant, UsageRecord, Wallet
from billing.selectors.balances import balance_of
from billing.services import credits, plans, recurring, sweeps
from billing.services.errors import InsufficientCreditError
from billing.writer import open_writer
from billing.writer.apply import apply_now
from billing.writer.operations import ExpireGrants, Extend, GrantsExpired, Held, Release, Repin, Settle, Settled, TrueUp
from billing.writer.view import free_of, overlapping, read_pools
from tenancy.models import Tenant
from tests.billing.books import assert_books_balance
from tests.billing.conftest import MovedClock, roll
from tests.billing.writer.world import extend, grant, make_wallet, patient, reserve, settle

pytestmark = [pytest.mark.slow, pytest.mark.money, pytest.mark.django_db(transaction=True)]

START = datetime(2030, 1, 1, tzinfo=UTC)
PLANS = {
    "strict": {"monthly_credits": 20},
    "lenient": {"monthly_credits": 30, "overage": "overdraft", "overdraft_limit": 25},
    "rolling": {"monthly_credits": 30, "rollover": 20},
}
KINDS = list(CreditGrant.Kind)
wanted = st.sampled_from([10, 40, 500])  # the last: whatever is left
which = st.integers(0, 3)
shares = st.sampled_from([0.0, 0.4, 1.0, 1.0])
grants = st.tuples(
    st.sampled_from([10, 40, 40]),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([0, 60]),
    st.sampled_from(KINDS),
    st.sampled_from([(), (), ("m",), ("n", "o"), ("m", "n")]),
)
operations = st.one_of(
    st.tuples(st.just("reserve"), wanted, st.integers(0, 10)),
    st.tuples(st.just("reserve"), wanted, st.integers(0, 10)),
    st.tuples(st.just("settle"), which, st.just(1.0)),
    st.tuples(st.just("extend"), which, wanted),
    st.tuples(st.just("repin"), which, wanted),
    st.tuples(st.just("settle"), which, shares),
    st.tuples(st.just("estimate"), which, shares),
    st.tuples(st.just("release"), which, st.none()),
    st.tuples(st.just("roll"), st.none(), st.none()),
)
_numbers = itertools.count()


def publish_plans():
    for slug, terms in PLANS.items():
        plan, is_made = Plan.objects.get_or_create(slug=slug, defaults={"name": slug})
        if is_made:
            limits = dict.fromkeys(("request_limit", "request_burst", "credit_limit", "credit_burst", "concurrency"), 1)
            plans.publish_version(plan, **limits, **terms)


class Life(RuleBasedStateMachine):
    """One wallet under every operation and service, while its clock goes on by seconds and months."""

    @initialize(plan=st.sampled_from(sorted(PLANS)), given=st.lists(grants, max_size=3))
    def begin(self, plan, given):
        self.patches = pytest.MonkeyPatch()
        self.clock = MovedClock(self.patches)
        self.now = START
        self.clock.set(self.now)
        self.open()
        publish_plans()
        self.tenant = Tenant.objects.create(name="t", slug=uuid.uuid4().hex)
        plans.subscribe(self.tenant.pk, plan)
        self.wallet = Wallet.objects.get(tenant=self.tenant)
        self.requests = []
        for one in given:
            self.grant(*one)

    def open(self):
        """Everything in one transaction, which is undone at the end."""
        self.undone = transaction.atomic()
        self.undone.__enter__()

    def close(self):
        transaction.set_rollback(True)
        self.undone.__exit__(None, None, None)

    def ask(self, asked):
        return apply_now(asked)

    def teardown(self):
        if hasattr(self, "patches"):
            self.patches.undo()
            self.close()

    # -- what happens ---------------------------------------------------------------------------------------------

    def wait(self, **time):
        self.now += timedelta(**time)
        self.clock.set(self.now)

    @rule(given=grants)
    def give(self, given):
        self.grant(*given)

    def grant(self, amount, seconds, priority, kind, models):
        ends = None if seconds is None else self.now + timedelta(seconds=seconds)
        present = read_pools(Wallet.objects.get(pk=self.wallet.pk).pools)
        clashes = bool(models) and overlapping("\n".join(models), present) is not None
        with contextlib.suppress(ValueError) if clashes else contextlib.nullcontext():
            grant(self.wallet, amount, kind, expires_at=ends, priority=priority, models=models)

    @rule(seconds=st.integers(0, 2), chosen=st.lists(operations, min_size=1, max_size=4))
    def flush(self, seconds, chosen):
        self.wait(seconds=seconds)
        held = dict(Hold.objects.filter(wallet=self.wallet).values_list("pk", "amount"))
        self.ask([self.operation(one, held) for one in chosen])

    def operation(self, chosen, held):
        kind, first, second = chosen
        if kind == "roll":
            return ExpireGrants(self.wallet.pk)
        if kind == "reserve" or not self.requests:
            amount, least = (first, second) if kind == "reserve" else (30, 1)
            made = reserve(self.wallet, max(amount, least), min(amount, least), model="mno"[amount % 3])
            self.requests.append(made.request)
            held[made.request] = min(amount, least)
            return made
        request = self.requests[-1 - first % len(self.requests)]
        amount = held.get(request, 0)
        match kind:
            case "extend":
                return Extend(request, self.wallet.pk, amount + second, 0)
            case "repin":
                return Repin(request, self.wallet.pk, amount + second, 0, self.wallet.pk, request, "mno"[first % 3])
            case "release":
                return Release(request, self.wallet.pk)
        charge = int(amount * second)  # never above the hold: that alone may pass the limit, and so may a correction
        return Settle(request, self.wallet.pk, charge, {"input": charge}, exact=kind == "settle")

    @precondition(lambda self: UsageRecord.objects.filter(wallet=self.wallet.pk, exact=False).exists())
    @rule(number=which, wanted=st.integers(0, 60))
    def correct(self, number, wanted):
        estimates = list(UsageRecord.objects.filter(wallet=self.wallet.pk, exact=False).order_by("request"))
        one = estimates[number % len(estimates)]
        charge = min(wanted, one.charge + max(self.balance.available_for(one.model), 0))
        self.ask([TrueUp(one.request, self.wallet.pk, charge, {"input": charge})])

    @rule(
        service=st.sampled_from(["void", "adjust", "adjust", "change_plan", "month", "later", "recurring", "pause"]),
        number=which,
        amount=st.integers(-60, 30).filter(bool),
        plan=st.sampled_from(sorted(PLANS)),
    )
    def serve(self, service, number, amount, plan):
        match service:
            case "void":
                self.void(number)
            case "adjust":
                self.adjust(amount)
            case "change_plan":
                plans.change_plan(self.tenant.pk, plan, at_once=amount < 0)
            case "month":
                self.wait(days=31)
                sweeps.monthly_grants().turn(limit=1000)
                sweeps.recurring_grants().turn(limit=1000)
            case "later":
                self.later(abs(amount))
            case "recurring":
                self.recurring(abs(amount), number)
            case "pause":
                for one in RecurringGrant.objects.filter(wallet=self.wallet).exclude(state="ended")[:1]:
                    states = RecurringGrant.State
                    recurring.set_state(one.pk, states.PAUSED if one.state == states.ACTIVE else states.ACTIVE)

    def later(self, amount):
        begins, terms = self.now + timedelta(seconds=1), {"kind": CreditGrant.Kind.GOODWILL, "key": str(uuid.uuid4())}
        ends = begins + timedelta(seconds=2)
        credits.grant_later(wallet_id=self.wallet.pk, amount=amount, begins_at=begins, expires_at=ends, **terms)

    def recurring(self, amount, number):
        """Credit each month or so, whose rest rolls over in part."""
        terms = {"kind": CreditGrant.Kind.PROMOTIONAL, "key": str(uuid.uuid4()), "reason": "r"}
        window = ("day", "week", "month", "month")[number]
        recurring.make(wallet_id=self.wallet.pk, amount=amount, window=window, rollover=7, windows=1 + number, **terms)

    def void(self, number):
        grants = list(CreditGrant.objects.filter(wallet=self.wallet).order_by("id"))
        if grants:
            one = grants[-1 - number % len(grants)]
            credits.void(grant_id=one.pk, key=f"void:{uuid.uuid4()}", actor="a", reason="r")

    def adjust(self, amount):
        key = f"adjust:{uuid.uuid4()}"
        try:
            credits.adjust(wallet_id=self.wallet.pk, amount=amount, key=key, actor="a", reason="r")
        except InsufficientCreditError:
            assert amount < 0

    @rule()
    def sweep(self):
        begun = ScheduledGrant.objects.filter(wallet=self.wallet, begins_at__lte=self.now).exists()
        expected = self.balance
        [expired] = self.ask([ExpireGrants(self.wallet.pk)])
        assert isinstance(expired, GrantsExpired)
        if not begun:
            assert expected.posted - expired.expired == expired.posted
            pools = free_of(Wallet.objects.get(pk=self.wallet.pk).pools)
            assert expected.available == expired.posted - expired.held + expected.overdraft_limit - pools

    # -- what is always so ----------------------------------------------------------------------------------------

    @property
    def balance(self):
        return balance_of(self.tenant.pk)

    @invariant()
    def nothing_is_below_its_limit(self):
        if not hasattr(self, "wallet"):
            return
        wallet = Wallet.objects.get(pk=self.wallet.pk)
        holds = Hold.objects.filter(wallet=wallet).aggregate(sum=Sum("amount"))["sum"] or 0
        assert wallet.held == holds
        assert wallet.posted >= -wallet.overdraft_limit
        assert wallet.posted - wallet.held >= -wallet.overdraft_limit, "an open hold can't be paid"
        assert self.balance.available >= 0
        assert_books_balance(wallet)
        assert reconcile.check(connection, recompute=False) == []

    @invariant()
    def what_is_free_is_alive(self):
        if not hasattr(self, "wallet"):
            return
        balance, alive = self.balance, Counter()
        for one in CreditGrant.objects.filter(wallet=self.wallet, remaining__gt=0):
            if one.expires_at is None or one.expires_at > self.now:
                alive[one.restriction] += one.remaining
        most = alive.pop("", 0) + balance.overdraft_limit
        assert balance.available <= most
        for pool in balance.restricted:
            assert pool.available <= most + alive["\n".join(pool.models)]


class LifeOfAWriter(Life):
    """The same through the writer's own connection, so committed step by step."""

    def open(self):
        self.runner = asyncio.Runner()
        self.writer = patient(open_writer(connection.settings_dict))

    def close(self):
        self.runner.run(self.writer.close())
        self.runner.close()

    def ask(self, asked):
        async def together():
            return await asyncio.gather(*map(self.writer.submit, asked))

        return self.runner.run(together())


@pytest.mark.parametrize(("life", "examples"), [(Life, 40), (LifeOfAWriter, 3)])
def test_nothing_falls_below_its_limit_whatever_happens_when(life, examples):
    if connection.vendor == "postgresql":
        examples = -(-examples // 3)  # each takes three times as long there
    run_state_machine_as_test(
        life,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )


# -- ways below zero that were found, each of which ended with books that were "right" ---------------------------------


def in_seconds(seconds):
    return START + timedelta(seconds=seconds)


@pytest.fixture(autouse=True)
def at_start(request):
    if "clock" in request.fixturenames:
        request.getfixturevalue("clock").set(START)


def test_a_hold_burns_what_ended_first_and_leaves_what_lives_to_later_ones(clock):
    """The month's credit ends beside a grant of better priority, on which a new hold stands already."""
    wallet = make_wallet()
    ending = grant(wallet, 100, expires_at=in_seconds(5))
    staying = grant(wallet, 100, priority=0)
    first, second = reserve(wallet, 100), reserve(wallet, 100)
    apply_now([first])
    clock.set(in_seconds(6))
    assert apply_now([second, settle(first, 100), settle(second, 100)]) == [
        Held(100, 0), Settled(100, 100, 100), Settled(100, 0, 0),
    ]  # fmt: skip
    assert [CreditGrant.objects.get(pk=one.pk).remaining for one in (ending, staying)] == [0, 0]
    assert reconcile.check(connection, recompute=False) == []


def test_a_reserve_that_had_to_wait_stands_on_nothing_that_ended_meanwhile(clock, transactional_db):
    """It is decided when its wallet's lock is in, by the clock of that moment, however long it was under way."""
    wallet = make_wallet(credit=30)
    grant(wallet, 70, expires_at=in_seconds(1))
    grant(wallet, 20, expires_at=in_seconds(2))
    assert apply_now([reserve(wallet, 120)]) == [Held(120, 0)]
    Hold.objects.all().delete()
    Wallet.objects.update(held=0)
    for seconds, left in ((1, 50), (2, 30)):
        clock.set(in_seconds(seconds))
        made = reserve(wallet, 120, 1)
        assert apply_now([made, Release(made.request, wallet.pk)])[0] == Held(left, 0)


@pytest.mark.parametrize("by", ["a transaction of Django's", "the writer"])
def test_a_clock_that_goes_back_takes_nothing_from_the_holds_made_before(clock, by):
    """A hold of the future could not burn what had ended by then, while newer ones burnt what it stood on."""
    wallet = make_wallet()
    grant(wallet, 100, priority=0)
    writer, runner = patient(open_writer(connection.settings_dict)), asyncio.Runner()

    def ask(operation):
        return runner.run(writer.submit(operation)) if by == "the writer" else apply_now([operation])[0]

    clock.set(in_seconds(100))
    first, second = reserve(wallet, 50), reserve(wallet, 100)
    assert ask(first) == Held(50, 50)
    clock.set(in_seconds(60))
    grant(wallet, 50, expires_at=in_seconds(80))
    Hold.objects.update(reserved_at=in_seconds(100))  # as the grant's own transaction found it
    assert ask(second) == Held(100, 0)
    clock.set(in_seconds(70))
    assert ask(settle(second, 100)) == Settled(100, 50, 50)
    clock.set(in_seconds(81))
    assert ask(settle(first, 50)) == Settled(50, 0, 0)
    assert reconcile.check(connection, recompute=False) == []
    runner.run(writer.close())
    runner.close()


def test_no_service_takes_what_a_hold_of_a_clock_that_went_back_stands_on(clock):
    """Such a hold can burn what has ended since only if the service lets it be of now, as the writer does."""
    wallet = make_wallet()
    grant(wallet, 100, priority=0)
    made = reserve(wallet, 50)
    clock.set(in_seconds(100))
    assert apply_now([made]) == [Held(50, 50)]
    clock.set(in_seconds(60))
    grant(wallet, 50, expires_at=in_seconds(80))
    credits.adjust(wallet_id=wallet.pk, amount=-100, key="a", actor="a", reason="r")
    clock.set(in_seconds(81))
    assert apply_now([settle(made, 50)]) == [Settled(50, 0, 0)]
    assert reconcile.check(connection, recompute=False) == []


def test_the_databases_clock_decides_whatever_the_machine_says(clock, monkeypatch):
    wallet = make_wallet(credit=10)
    grant(wallet, 70, expires_at=in_seconds(5))
    made = reserve(wallet, 80)
    monkeypatch.setattr("django.utils.timezone.now", lambda: in_seconds(3600))
    assert roll(wallet) == sweeps.expiry().turn() == 0
    assert apply_now([made]) == [Held(80, 0)]
    clock.set(in_seconds(5))
    monkeypatch.setattr("django.utils.timezone.now", lambda: START)
    assert apply_now([settle(made, 75), reserve(wallet, 6, 1)]) == [Settled(75, 5, 0), Held(5, 0)]


def test_credit_that_came_after_a_hold_is_kept_for_it_and_burnt_by_it_when_it_ends(clock):
    wallet = make_wallet(credit=100)
    first = reserve(wallet, 100)
    apply_now([first])
    clock.set(in_seconds(1))
    grant(wallet, 100, priority=99, expires_at=in_seconds(3))
    clock.set(in_seconds(2))
    second = reserve(wallet, 100)
    assert apply_now([second, settle(second, 100)]) == [Held(100, 0), Settled(100, 100, 100)]
    clock.set(in_seconds(4))
    assert apply_now([settle(first, 100)]) == [Settled(100, 0, 0)]
    assert_books_balance(wallet)


def test_a_correction_downwards_takes_only_what_lives_and_is_free(clock):
    wallet = make_wallet()
    grant(wallet, 100, expires_at=in_seconds(5))
    clock.set(in_seconds(6))
    live = grant(wallet, 100)
    made = reserve(wallet, 60)
    apply_now([made])
    with pytest.raises(InsufficientCreditError):
        credits.adjust(wallet_id=wallet.pk, amount=-41, key="a", actor="a", reason="r")
    credits.adjust(wallet_id=wallet.pk, amount=-40, key="a", actor="a", reason="r")
    assert apply_now([extend(made, 61), settle(made, 60)]) == [Held(60, 0), Settled(60, 0, 0)]
    assert CreditGrant.objects.get(pk=live.pk).remaining == 0


def test_a_lower_overdraft_limit_leaves_what_is_overdrawn_and_held_until_the_next_month(clock):
    publish_plans()
    tenant = Tenant.objects.create(name="t", slug=uuid.uuid4().hex)
    plans.subscribe(tenant.pk, "lenient")
    wallet = Wallet.objects.get(tenant=tenant)
    made = reserve(wallet, 50)
    assert apply_now([made]) == [Held(50, 5)]
    plans.change_plan(tenant.pk, "strict", at_once=True)
    wallet.refresh_from_db()
    assert (wallet.overdraft_limit, wallet.posted - wallet.held) == (20, -20)
    apply_now([settle(made, 50)])
    assert reconcile.check(connection, recompute=False) == []
    clock.set(START + timedelta(days=31))
    sweeps.monthly_grants().turn()
    wallet.refresh_from_db()
    assert (wallet.overdraft_limit, wallet.posted) == (0, 0)
