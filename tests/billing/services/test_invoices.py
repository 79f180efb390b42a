"""Invoices: what wallets are overdrawn by at the ends of months, paid for or voided."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from billing import reconcile
from billing.models import CreditGrant, Invoice, Plan, Wallet
from billing.periods import month_of
from billing.services import credits, invoices, plans, sweeps
from billing.writer.apply import apply_now
from billing.writer.operations import ExpireGrants, Held, Refused
from tests.billing.books import assert_books_balance
from tests.billing.conftest import make_tenant
from tests.billing.test_credits_document import told as in_document
from tests.billing.writer.world import reserve, settle

pytestmark = [pytest.mark.money, pytest.mark.django_db]

START = datetime(2030, 1, 1, tzinfo=UTC)
MONTHS = [month_of(START, "UTC", START + timedelta(days=31 * number)).end for number in range(4)]
MONEY = {"paid_amount": 990, "currency": "EUR"}


@pytest.fixture(autouse=True)
def _plans(clock):
    clock.set(START)
    plans.ensure_default_plans()
    plans.publish_version(Plan.objects.get(slug="max"), overage="invoice", overdraft_limit=100, monthly_credits=0)
    plans.publish_version(Plan.objects.get(slug="business"), overage="invoice", overdraft_limit=100, monthly_credits=30)


def subscribed(plan="max"):
    tenant = make_tenant()
    plans.subscribe(tenant.pk, plan)
    return Wallet.objects.get(tenant=tenant)


def use(wallet, amount):
    made = reserve(wallet, amount)
    [held, _] = apply_now([made, settle(made, amount)])
    assert isinstance(held, Held)


def end_month(clock, moment):
    clock.set(moment)
    for wallet in Wallet.objects.all():
        apply_now([ExpireGrants(wallet.pk)])  # as a request of the new month would
    sweeps.monthly_grants().turn()


def told(wallet):
    return [(one.number, one.amount, one.state) for one in Invoice.objects.filter(wallet=wallet).order_by("number")]


def posted(wallet):
    assert_books_balance(wallet)
    assert reconcile.check(connection, recompute=False) == []
    return Wallet.objects.get(pk=wallet.pk).posted


def test_what_is_overdrawn_at_the_end_of_a_month_is_invoiced_and_its_payment_repays_it(clock):
    wallet = subscribed()
    use(wallet, 70)
    assert isinstance(apply_now([reserve(wallet, 31)])[0], Refused)
    end_month(clock, MONTHS[0])
    assert told(wallet) == [(1, 70, "open")]
    sweeps.monthly_grants().turn()
    use(wallet, 20)
    [one] = Invoice.objects.all()
    paid = invoices.pay(one.pk, reference="T1", actor="ada", **MONEY)
    assert invoices.pay(one.pk, reference="T1", actor="ada", **MONEY).grant == paid.grant
    grant = CreditGrant.objects.get()
    assert (grant.kind, grant.amount, grant.remaining, grant.paid_reference) == ("paid", 70, 0, "T1")
    assert posted(wallet) == -20
    with pytest.raises(ValueError, match="paid already"):
        invoices.pay(one.pk, reference="T2", actor="ada", **MONEY)
    with pytest.raises(ValueError, match="paid already"):
        invoices.void(one.pk, reason="r")
    end_month(clock, MONTHS[1])
    assert told(wallet) == [(1, 70, "paid"), (2, 20, "open")]


def test_an_invoice_that_is_paid_before_a_late_sweep_is_not_asked_for_again(clock):
    wallet = subscribed()
    use(wallet, 50)
    end_month(clock, MONTHS[0])
    clock.set(MONTHS[1])  # the month is over, and nobody has looked yet
    invoices.pay(Invoice.objects.get().pk, reference="T1", actor="ada", **MONEY)
    sweeps.monthly_grants().turn()
    assert told(wallet) == [(1, 50, "paid")]


def test_a_month_is_invoiced_as_it_stood_at_its_end_whatever_came_before_the_sweep(clock):
    """The new month's credit repays at once; requests of the new month and a sweep that is late change nothing."""
    wallet = subscribed("business")
    use(wallet, 80)  # 30 of the plan, 50 overdrawn
    in_document("31 January", f"−{-posted(wallet)}", "none")
    clock.set(MONTHS[0] + timedelta(hours=3))
    use(wallet, 25)
    sweeps.monthly_grants().turn()
    assert told(wallet) == [(1, 50, "open")]
    in_document("28 February, 25 were used", f"−{-posted(wallet)}", "No. 1: 50")
    end_month(clock, MONTHS[1])
    assert told(wallet) == [(1, 50, "open")]
    in_document("1 March: 30 of the plan; of 45, 50 are asked for already", f"−{-posted(wallet)}", "No. 1: 50")
    invoices.pay(Invoice.objects.get().pk, reference="T1", actor="ada", **MONEY)
    in_document("No. 1 is paid", posted(wallet), "No. 1: 50")


def test_numbers_have_no_gaps_and_each_month_of_a_wallet_has_one(clock):
    wallets = [subscribed() for _ in range(3)]
    for number, wallet in enumerate(wallets):
        use(wallet, 10 + number)
    end_month(clock, MONTHS[0])
    assert sorted(Invoice.objects.values_list("number", flat=True)) == [1, 2, 3]
    for wallet in wallets:
        assert invoices.issue(wallet, MONTHS[0]) is None
        assert invoices.issue(wallet, MONTHS[0] + timedelta(seconds=1)) is None, "it is asked for already"


def test_what_a_void_invoice_asked_for_is_part_of_the_next(clock):
    wallet = subscribed()
    use(wallet, 40)
    end_month(clock, MONTHS[0])
    [one] = Invoice.objects.all()
    for _ in range(2):
        assert invoices.void(one.pk, reason="wrong address").state == "void"
    with pytest.raises(ValueError, match="void already"):
        invoices.pay(one.pk, reference="T1", actor="ada", **MONEY)
    credits.grant(wallet_id=wallet.pk, amount=15, kind=CreditGrant.Kind.GOODWILL, key="g")
    end_month(clock, MONTHS[1])
    assert told(wallet) == [(1, 40, "void"), (2, 25, "open")]


@pytest.mark.parametrize("how", ["end at once", "end with the month", "another plan"])
def test_a_plan_that_ends_is_invoiced_to_its_end(clock, how):
    wallet = subscribed()
    use(wallet, 40)
    clock.set(START + timedelta(days=3))
    if how == "another plan":
        plans.change_plan(wallet.tenant_id, "free", START + timedelta(days=3), at_once=True)
    else:
        plans.end(wallet.tenant_id, START + timedelta(days=3), at_once=how == "end at once")
    end_month(clock, MONTHS[0])
    assert told(wallet) == [(1, 40, "open")]
    assert posted(wallet) == (-40 if how != "another plan" else posted(wallet))


def test_nobody_else_is_invoiced(clock):
    plans.publish_version(Plan.objects.get(slug="max"), overage="overdraft", overdraft_limit=100)
    wallet = subscribed()
    use(wallet, 40)
    end_month(clock, MONTHS[0])
    assert told(wallet) == []
