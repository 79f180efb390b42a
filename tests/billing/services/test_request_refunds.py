"""A request is given back at most what it was charged, to where that was taken from, once for each key."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import msgspec
import pytest
from django.db import connection
from django.utils import timezone

from billing import reconcile
from billing.models import CreditGrant, LedgerTransfer, UsageRecord, UsageRollup, Wallet
from billing.selectors.prices import bill_of
from billing.services import rollups
from billing.services.budgets import terms_of
from billing.services.credits import refund_request
from billing.services.errors import KeyReusedError, RefundError
from billing.writer.apply import apply_now
from billing.writer.operations import Bearing, Moved, Refund, Refused, Settle, TrueUp
from tests.billing.requests import last, publish, ran
from tests.billing.writer.test_trueup import end
from tests.billing.writer.world import counts, grant, make_budget, make_wallet

pytestmark = [pytest.mark.contract, pytest.mark.django_db(transaction=True)]
SAID = {"actor": "op", "reason": "broken answer"}


@pytest.fixture(autouse=True)
def _books():
    yield
    rollups.consume_usage()
    assert reconcile.check(connection) == []


def charged(*amounts, classes=None):
    """A wallet with grants of these µcr, and a request of 1,000 tokens of input that cost 3,000 of them."""
    wallet = make_wallet()
    grants = [grant(wallet, amount, priority=at) for at, amount in enumerate(amounts)]
    return wallet, grants, ran(wallet, classes or {"input": 1_000 - 101}, publish())


def left(grants):
    return [CreditGrant.objects.get(pk=one.pk).remaining for one in grants]


def moves(request):
    found = LedgerTransfer.objects.filter(request=request, code=LedgerTransfer.Code.REQUEST_REFUND).order_by("order")
    return list(found.values_list("debit__kind", "credit__kind", "amount", "grant", "actor", "reason"))


def test_a_refund_in_parts_goes_back_in_reverse_burn_order(db):
    wallet, grants, request = charged(1_000, 1_000, 5_000)  # 2,697 are charged: 1,000, 1,000, 697
    assert refund_request(request=request, amount=700, key="a", **SAID) == 700
    assert left(grants) == [0, 3, 5_000]
    assert refund_request(request=request, amount=1_000, key="b", **SAID) == 1_000
    assert left(grants) == [3, 1_000, 5_000]
    assert moves(request) == [
        ("usage", "wallet", 697, grants[2].pk, "op", "broken answer"),
        ("usage", "wallet", 3, grants[1].pk, "op", "broken answer"),
        ("usage", "wallet", 997, grants[1].pk, "op", "broken answer"),
        ("usage", "wallet", 3, grants[0].pk, "op", "broken answer"),
    ]
    record = last(request)
    assert (record.charge, record.refunded, record.revision, record.exact) == (997, 1_700, 2, True)
    assert Wallet.objects.get(pk=wallet.pk).posted == 7_000 - 997
    assert refund_request(request=request, key="c", **SAID) == 997
    assert left(grants) == [1_000, 1_000, 5_000]
    bill = [(line.usage_class, line.amount) for line in bill_of(last(request))]
    assert bill == [("input", 2_697), ("refund", -2_697)]


def test_no_more_is_given_back_than_was_charged(db):
    _, _, request = charged(5_000)
    with pytest.raises(RefundError, match=r"0\.002697 credits are left"):
        refund_request(request=request, amount=2_698, key="a", **SAID)
    refund_request(request=request, key="a", **SAID)
    with pytest.raises(RefundError):
        refund_request(request=request, amount=1, key="b", **SAID)
    with pytest.raises(RefundError):
        refund_request(request=request, key="b", **SAID)
    for wrong in ({"amount": 0}, {"amount": -5}, {"reason": " "}):
        with pytest.raises(ValueError, match=r"^(amount|reason): "):
            refund_request(**{"request": request, "key": "c", **SAID, **wrong})
    assert UsageRecord.objects.filter(request=request).count() == 2


def test_a_key_takes_effect_once(db):
    _, grants, request = charged(1_000, 5_000)
    for _ in range(3):
        assert refund_request(request=request, amount=2_000, key="a", **SAID) == 2_000
    assert left(grants) == [303, 5_000]
    assert refund_request(request=request, key="a", **SAID) == 2_000  # whatever is left now
    with pytest.raises(KeyReusedError):
        refund_request(request=request, amount=1, key="a", **SAID)
    another = ran(Wallet.objects.get(), {"input": 10}, publish("n"))
    with pytest.raises(KeyReusedError):
        refund_request(request=another, key="a", **SAID)


def test_what_a_grant_paid_that_has_ended_goes_to_breakage(db):
    wallet = make_wallet()
    gone, stays = grant(wallet, 1_000, expires_at=timezone.now() + timedelta(days=1)), grant(wallet, 5_000)
    request = ran(wallet, {"input": 899}, publish())
    end(gone)
    assert refund_request(request=request, key="a", **SAID) == 2_697
    assert left([gone, stays]) == [0, 5_000]
    assert moves(request)[-1][:4] == ("usage", "breakage", 1_000, gone.pk)
    assert Wallet.objects.get(pk=wallet.pk).posted == 5_000


def test_a_refund_counts_back_in_the_sums_and_in_its_budget(db):
    wallet = make_wallet(credit=5_000)
    budget = make_budget(wallet, 4_000)
    request = ran(wallet, {"input": 899}, publish(), ago=0, budgets=Bearing((terms_of(budget),)))
    rollups.consume_usage()
    refund_request(request=request, amount=2_000, key="a", **SAID)
    rollups.consume_usage()
    assert counts(budget) == (0, 697)
    assert list(UsageRollup.objects.values_list("requests", "input_tokens", "charge")) == [(1, 899, 697)]


def test_an_estimates_refund_outlives_its_true_up(db):
    wallet = make_wallet(credit=50_000)
    card = publish()
    part, whole = (ran(wallet, {"input": 899}, card, exact=False) for _ in range(2))
    refund_request(request=part, amount=1_000, key="a", **SAID)
    refund_request(request=whole, key="b", **SAID)
    assert not last(part).exact
    for request in (part, whole):
        apply_now([TrueUp(request, wallet.pk, 300, {"input": 100}, "stop")])
    assert [(last(one).charge, last(one).refunded, last(one).exact) for one in (part, whole)] == [(0, 300, True)] * 2
    assert Wallet.objects.get(pk=wallet.pk).posted == 50_000
    late = ran(wallet, {"input": 899}, card, exact=False)
    refund_request(request=late, amount=1_000, key="c", **SAID)
    apply_now([TrueUp(late, wallet.pk, 1_500, {"input": 500}, "stop")])
    assert (last(late).charge, last(late).refunded) == (500, 1_000)


def test_a_settlement_that_is_sent_again_after_a_refund_is_known(db):
    _, _, request = charged(5_000)
    refund_request(request=request, amount=1_000, key="a", **SAID)
    record = last(request)
    [answer] = apply_now([Settle(request, record.wallet, 2_697, {"input": 899})])
    assert answer.charge == 2_697


@pytest.mark.postgresql
def test_two_refunds_at_once_give_back_once():
    _, grants, request = charged(5_000)
    together = threading.Barrier(2)

    def one(key):
        try:
            together.wait(30)
            return refund_request(request=request, key=key, **SAID)
        except RefundError:
            return 0
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(one, ["a", "b"])) == [0, 2_697]
    assert left(grants) == [5_000]


def test_the_writer_itself_gives_back_no_more_than_is_charged(db):
    """Whatever a service looked at before."""
    _, _, request = charged(5_000)
    record = last(request)
    op = Refund(request=request, wallet=record.wallet, amount=record.charge, key="a", actor="a", reason="r")
    assert apply_now([op]) == [Moved(2_697)]
    assert apply_now([msgspec.structs.replace(op, key="b")]) == [Refused("charge", 0)]
