"""Credit for some models alone: it stays in the wallet's sums, and pays for no other model's request."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from billing import reconcile
from billing.models import CreditGrant, LedgerTransfer, ScheduledGrant, Wallet
from billing.selectors.balances import balance_of
from billing.services import credits
from billing.writer.apply import apply_now
from billing.writer.operations import ExpireGrants, Held, Moved, Refund, Refused, Settle, Settled, TrueUp
from billing.writer.view import read_pools
from tests.billing.writer.test_postgresql import other, round_trips, statements, traced  # noqa: F401 - a fixture
from tests.billing.writer.world import extend, grant, make_wallet, release, repin, reserve, settle

pytestmark = [pytest.mark.money, pytest.mark.django_db]
START = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def books():
    """Whatever was done must reconcile."""
    yield
    assert reconcile.check(connection, recompute=False) == []


def pools(wallet):
    return {
        tuple(models.split("\n")): (pool.rest, pool.held)
        for models, pool in read_pools(Wallet.objects.get(pk=wallet.pk).pools).items()
    }


def left(*grants):
    return [CreditGrant.objects.get(pk=one.pk).remaining for one in grants]


def test_each_model_may_hold_what_is_for_it_and_for_all():
    wallet = make_wallet(credit=100)
    grant(wallet, 30, models=["m"])
    grant(wallet, 50, models=["o", "n"])
    first = reserve(wallet, 500, 1, model="n")
    assert apply_now([first]) == [Held(150, 0)]
    assert pools(wallet) == {("m",): (30, 0), ("n", "o"): (50, 150)}
    assert apply_now([reserve(wallet, 1, model="x")]) == [Refused("wallet", 0, 100)]
    assert apply_now([reserve(wallet, 31, model="m")]) == [Refused("wallet", 30, 130)]
    assert apply_now([reserve(wallet, 30, model="m"), extend(first, 500)]) == [Held(30, 0), Held(150, 0)]
    balance = balance_of(wallet.tenant_id)
    assert (balance.posted, balance.held, balance.available) == (180, 180, 0)


def test_a_charge_takes_its_pool_then_what_is_for_all_and_never_anothers():
    wallet = make_wallet()
    every = grant(wallet, 100, priority=0)
    mine, others = grant(wallet, 30, models=["m"]), grant(wallet, 50, models=["n"])
    made = reserve(wallet, 60, model="m")
    assert apply_now([made, settle(made, 60)]) == [Held(60, 70), Settled(60, 120, 0, restricted=50)]
    assert left(every, mine, others) == [70, 0, 50]
    assert pools(wallet) == {("n",): (50, 0)}, "a pool ends with its last credit"
    apply_now([made := reserve(wallet, 70, model="m"), Settle(made.request, wallet.pk, 75, {})])
    assert left(every, mine, others) == [0, 0, 50], "what nothing covers is overdraft, not another's credit"
    assert Wallet.objects.get(pk=wallet.pk).posted == 45


def test_a_charge_leaves_its_pool_to_a_later_hold_where_ended_credit_is_kept_for_it(clock):
    """What ended since the earlier hold was made can be burnt by it alone."""
    clock.set(START)
    wallet = make_wallet()
    ending = grant(wallet, 10, expires_at=START + timedelta(seconds=5))
    early, late, third = reserve(wallet, 10, model="m"), reserve(wallet, 4, model="m"), reserve(wallet, 4, model="x")
    apply_now([early])
    clock.set(START + timedelta(seconds=6))
    every = grant(wallet, 4)
    apply_now([late])
    mine = grant(wallet, 10, models=["m"])
    assert apply_now([third]) == [Held(4, 0)]
    assert left(ending, every, mine) == [4, 4, 10], "six of what had ended are the pool's to pay by now"
    assert apply_now([settle(early, 10)]) == [Settled(10, 8, 8)]
    assert left(ending, every, mine) == [0, 4, 4]
    assert apply_now([settle(late, 4), settle(third, 4)]) == [Settled(4, 4, 4), Settled(4, 0, 0)]


def test_two_sets_of_models_are_the_same_or_have_none_in_common():
    wallet = make_wallet()
    grant(wallet, 10, models=["m", "n"])
    for models in (["m"], ["n", "o"], ["m", "n", "o"]):
        with pytest.raises(ValueError, match=r"^models: credit for m, n alone is left or coming"):
            grant(wallet, 10, models=models)
    grant(wallet, 10, models=["n", "m", "m"])
    grant(wallet, 10, models=["o"])
    assert pools(wallet) == {("m", "n"): (20, 0), ("o",): (10, 0)}
    with pytest.raises(ValueError, match=r"^models: at most 100 names"):
        grant(wallet, 10, models=["a\nb"])


def test_scheduled_credit_is_for_its_models_from_its_beginning(clock):
    clock.set(START)
    wallet = make_wallet(credit=10)
    moments = {"begins_at": START + timedelta(seconds=5), "expires_at": START + timedelta(days=1)}
    terms = {"kind": CreditGrant.Kind.PLAN, "source": "s", "reason": "r", **moments}
    credits.schedule(wallet, amount=40, models=["m"], **terms)
    with pytest.raises(ValueError, match=r"^models: credit for m alone is left or coming"):
        grant(wallet, 10, models=["m", "n"])
    with pytest.raises(ValueError, match=r"^models: credit for m alone is left or coming"):
        credits.schedule(wallet, amount=40, models=["m", "n"], **terms | {"source": "t"})
    running = reserve(wallet, 10, model="m")
    assert apply_now([running]) == [Held(10, 0)]
    clock.set(START + timedelta(seconds=5))
    assert apply_now([reserve(wallet, 99, 1, model="n")]) == [Held(10, 0)], "the pool covers what runs already"
    assert pools(wallet) == {("m",): (40, 10)}
    assert not ScheduledGrant.objects.exists()


def test_a_request_that_moves_to_a_model_of_another_pool_moves_its_hold():
    wallet = make_wallet(credit=10)
    grant(wallet, 30, models=["m"])
    grant(wallet, 50, models=["n"])
    made = reserve(wallet, 40, model="m")
    assert apply_now([made, repin(made, 70, model="n")]) == [Held(40, 0), Held(60, 0)]
    assert pools(wallet) == {("m",): (30, 0), ("n",): (50, 60)}
    assert apply_now([repin(made, 60, 41, model="m")]) == [Refused("wallet", -20, 40)], "and nothing changed"
    assert apply_now([repin(made, 60, 40, model="m")]) == [Held(40, 0)], "it falls to what there is for the model"
    assert apply_now([repin(made, 60, 0, model="x")]) == [Held(10, 0)]
    assert Wallet.objects.get(pk=wallet.pk).held == 10


def test_a_restricted_grant_repays_no_overdraft():
    wallet = make_wallet(overdraft=20)
    made = reserve(wallet, 20, model="n")
    apply_now([made, settle(made, 20)])
    mine = grant(wallet, 30, models=["m"])
    assert left(mine) == [30]
    assert apply_now([reserve(wallet, 1, model="n")]) == [Refused("wallet", 0, 0)]
    assert apply_now([reserve(wallet, 99, 1, model="m")]) == [Held(30, 0)]
    assert left(grant(wallet, 50)) == [30]


def test_an_adjustment_takes_what_is_for_all_first_and_what_is_free_of_pools_then():
    wallet = make_wallet()
    mine, every = grant(wallet, 30, models=["m"], priority=0), grant(wallet, 10)
    apply_now([reserve(wallet, 12, model="m")])
    credits.adjust(wallet_id=wallet.pk, amount=-15, key="a", actor="a", reason="r")
    assert left(mine, every) == [25, 0]
    assert pools(wallet) == {("m",): (25, 12)}
    with pytest.raises(credits.InsufficientCreditError) as few:
        credits.adjust(wallet_id=wallet.pk, amount=-14, key="b", actor="a", reason="r")
    assert few.value.available == 13


def test_a_void_leaves_what_holds_of_the_pool_need():
    wallet = make_wallet(credit=10)
    mine = grant(wallet, 30, models=["m"])
    made = reserve(wallet, 12, model="m")
    apply_now([made, reserve(wallet, 10, model="n")])
    assert credits.void(grant_id=mine.pk, key="v", actor="a", reason="r") == 18
    assert pools(wallet) == {("m",): (12, 12)}
    assert apply_now([settle(made, 12)]) == [Settled(12, 10, 10)]
    assert pools(wallet) == {}


def charged(wallet, amount, model, *, exact=True):
    made = reserve(wallet, amount, model=model)
    apply_now([made, Settle(made.request, wallet.pk, amount, {"input": amount}, exact=exact)])
    return made


def given_back(wallet, made, amount):
    op = Refund(request=made.request, wallet=wallet.pk, amount=amount, key=f"r:{made.request}", actor="a", reason="r")
    assert apply_now([op]) == [Moved(amount)]


def test_a_refund_fills_a_pool_again_that_had_ended():
    wallet = make_wallet(credit=10)
    mine = grant(wallet, 30, models=["m"])
    made = charged(wallet, 30, "m")
    apply_now([reserve(wallet, 7, model="m")])
    assert pools(wallet) == {}
    given_back(wallet, made, 20)
    assert (left(mine), pools(wallet)) == ([20], {("m",): (20, 7)})
    assert apply_now([reserve(wallet, 99, 1, model="n")]) == [Held(10, 0)]


def test_a_refund_to_models_that_are_in_another_pool_by_now_is_for_every_model():
    wallet = make_wallet()
    mine = grant(wallet, 30, models=["m"])
    made = charged(wallet, 30, "m")
    grant(wallet, 5, models=["m", "n"])
    given_back(wallet, made, 20)
    assert (left(mine), pools(wallet)) == ([0], {("m", "n"): (5, 0)})
    assert apply_now([reserve(wallet, 99, 1, model="x")]) == [Held(20, 0)]


def test_a_refund_of_an_overdraft_goes_to_no_restricted_grant():
    wallet = make_wallet(overdraft=20)
    made = charged(wallet, 20, "n")
    every, mine = grant(wallet, 20), grant(wallet, 30, models=["m"])
    spent = charged(wallet, 10, "m")
    assert (left(every, mine), spent.model) == ([0, 20], "m")
    given_back(wallet, made, 15)
    assert left(every, mine) == [15, 20]


def test_a_true_up_takes_more_from_the_models_own_credit():
    wallet = make_wallet()
    every, others = grant(wallet, 10, priority=0), grant(wallet, 30, models=["n"], priority=0)
    mine = grant(wallet, 30, models=["m"])
    made = charged(wallet, 10, "m", exact=False)
    assert apply_now([TrueUp(made.request, wallet.pk, 35, {"input": 35})]) == [Settled(35, 35, 0, restricted=30)]
    assert left(every, others, mine) == [5, 30, 0]


def test_ended_credit_of_a_pool_is_kept_for_its_holds_alone(clock):
    clock.set(START)
    wallet = make_wallet(credit=20)
    mine = grant(wallet, 30, models=["m"], expires_at=START + timedelta(seconds=5))
    made, another = reserve(wallet, 12, model="m"), reserve(wallet, 20, model="n")
    apply_now([made, another])
    clock.set(START + timedelta(seconds=5))
    before = balance_of(wallet.tenant_id)
    assert apply_now([ExpireGrants(wallet.pk)])[0].expired == 18
    assert balance_of(wallet.tenant_id).available == before.available == 0
    assert [(one.models, one.rest, one.available) for one in before.restricted] == [(("m",), 12, 0)]
    apply_now([release(made), release(another)])
    assert (left(mine), pools(wallet)) == ([0], {})
    assert LedgerTransfer.objects.filter(code=LedgerTransfer.Code.EXPIRY).count() == 2


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_pools_take_no_further_round_trip_and_no_statement(desk, tmp_path):
    wallet = make_wallet(credit=1000)
    grant(wallet, 500, models=["m"])
    grant(wallet, 500, models=["n"])
    first = reserve(wallet, 10, model="m")
    desk.ask_one(first)
    desk.ask_one(settle(first, 0))
    path = tmp_path / "wire"
    made = reserve(wallet, 10, model="m")
    with traced(desk, path):
        assert desk.ask_one(made) == Held(10, 1490)
    assert (round_trips(path), statements(path)) == (1, 2)
    with traced(desk, path):
        assert desk.ask_one(settle(made, 7)) == Settled(7, 1993, 0, restricted=993)
    assert (round_trips(path), statements(path)) == (1, 6)
    assert pools(wallet) == {("m",): (493, 0), ("n",): (500, 0)}
