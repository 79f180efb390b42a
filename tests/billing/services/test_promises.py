"""A missed promise gives the plan's share of the charge back, once, up to the month's cap, whatever dies between."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from django.db import connection

from base.ids import uuid7
from billing import promises, reconcile
from billing.models import CreditGrant, LedgerTransfer, MissedPromise, Plan, PromiseDay, UsageRecord, Wallet
from billing.promises import Measured, Promise, Run, measured
from billing.services import plans, rollups
from billing.services import promises as service
from billing.services.credits import refund_request
from billing.writer.apply import apply_now
from billing.writer.operations import Rerate
from tests.billing.requests import last, publish, ran
from tests.billing.writer.world import grant, make_wallet

PRICE = 2_697  # of 899 tokens of input


def run(first=0.5, ended=1.5, waited=0.0, uncached=0, written=101, **rest):
    return Run(waited, first, ended, uncached, written, **{"is_whole": True, **rest})


TTFT, RATE = {"ttft_ms": 500}, {"rate": 100, "rate_from": 50}
CASES = {
    "kept to the millisecond": (TTFT | RATE, run(), "", (500, 100.0), ()),
    "late": (TTFT, run(0.501), "", (501, None), ("ttft",)),
    "late by its own queue alone": (TTFT, run(0.9, waited=0.4), "", (500, None), ()),
    "late beside its own queue": (TTFT, run(0.91, waited=0.4), "", (510, None), ("ttft",)),
    "late by a long prompt": (TTFT | {"ttft_per_1k_ms": 100}, run(0.75, uncached=2_500), "", (750, None), ()),
    "late beyond a long prompt": (
        TTFT | {"ttft_per_1k_ms": 100},
        run(0.76, uncached=2_599),
        "",
        (760, None),
        ("ttft",),
    ),
    "slow": (RATE, run(ended=1.502), "", (None, 99.8), ("rate",)),
    "slow and late": (TTFT | RATE, run(1.0, 3.0), "", (1_000, 50.0), ("ttft", "rate")),
    "short": (RATE, run(ended=9.0, written=49), "short", (None, None), ()),
    "long enough": (RATE, run(ended=9.0, written=50), "", (None, 5.8), ("rate",)),
    "of one token": (RATE | {"rate_from": 0}, run(ended=9.0, written=1), "short", (None, None), ()),
    "at once": (RATE, run(0.5, 0.5), "", (None, 100_000.0), ()),
    "slow, and cut": (RATE, run(ended=9.0, is_whole=False), "short", (None, None), ()),
    "late, slow, and cut": (TTFT | RATE, run(1.0, 9.0, is_whole=False), "", (1_000, None), ("ttft",)),
    "without a token": (TTFT, run(None, 0.5, written=0), "short", (None, None), ()),
    "left in time": (TTFT, run(None, 0.5, is_whole=False), "left", (None, None), ()),
    "left after waiting for too long": (TTFT, run(None, 0.6, is_whole=False), "", (600, None), ("ttft",)),
    "failed and waived": (TTFT | RATE, run(0.6, 9.0, is_waived=True), "failed", (None, None), ()),
    "failed, and what was delivered is charged": (
        TTFT | RATE,
        run(0.6, 9.0, is_whole=False),
        "",
        (600, None),
        ("ttft",),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_measured_and_what_is_not_counted(case):
    promised, what, why, (ttft, rate), missed = CASES[case]
    one = measured(Promise(uuid7(), **promised), what)
    assert (one.not_counted, one.ttft_ms, one.rate, one.missed) == (why, ttft, rate, missed)
    assert promises.read(msgspec.to_builtins(one)) == one
    assert promises.in_words(one)


@pytest.mark.parametrize(
    ("price", "bp", "due"), [(2_697, 2_500, 675), (1, 1, 1), (0, 10_000, 0), (7, 10_000, 7), (7, 0, 0)]
)
def test_the_share_is_rounded_up_and_never_more_than_the_price(price, bp, due):
    assert promises.due(price, bp) == due


# -- credited ----------------------------------------------------------------------------------------------------------

money = [pytest.mark.contract, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def _books(db):
    yield
    connection.close()
    rollups.consume_usage()
    assert reconcile.check(connection) == []


def version(**terms):
    plan, _ = Plan.objects.get_or_create(slug="p", defaults={"name": "P"})
    given = {"request_limit": 1, "request_burst": 1, "credit_limit": 1, "credit_burst": 1, "concurrency": 1}
    terms = {"promised_ttft_ms": 500, "promise_credit_bp": 2_500, **terms}
    return plans.publish_version(plan, **(terms if plan.versions.exists() else given | terms))


def served(wallet, card, of, *, missed=("ttft",), **fields):
    """A request that was charged 2,697 µcr under the terms `of`."""
    one = Measured(of.pk, ttft_ms=812, ttft_most_ms=500, missed=missed, **fields)
    return ran(wallet, {"input": 899}, card, ended={"promise": one})


def credited(*requests):
    """What each was given back, by its miss, its record and its transfers; None: it isn't decided."""
    found = []
    for request in requests:
        miss = MissedPromise.objects.filter(pk=request).first()
        moved = LedgerTransfer.objects.filter(request=request, code=LedgerTransfer.Code.PROMISE)
        assert (miss.credited or 0 if miss else 0) == last(request).refunded == sum(one.amount for one in moved)
        found.append(miss.credited if miss else None)
    return found


def turn():
    """Take the outbox's events and credit what was missed, as the jobs do."""
    rollups.consume_usage()
    while service.credits_due().turn():
        pass


class TestCredit:
    pytestmark = [*money, pytest.mark.usefixtures("_books")]

    def test_a_miss_gives_the_share_back_as_a_transfer_of_its_own(self):
        wallet, of, card = make_wallet(), version(), publish()
        grants = [grant(wallet, 2_500, priority=0), grant(wallet, 50_000)]
        request = served(wallet, card, of)
        turn()
        assert credited(request) == [675]
        record = last(request)
        assert (record.charge, record.refunded, record.revision, record.exact) == (PRICE - 675, 675, 1, True)
        assert promises.read(record.promise).ttft_ms == 812  # the correction keeps it
        left = [CreditGrant.objects.get(pk=one.pk).remaining for one in grants]
        assert left == [478, 50_000]  # the last taken first
        [first, _] = LedgerTransfer.objects.filter(request=request, code=LedgerTransfer.Code.PROMISE).order_by("order")
        assert (first.key, first.actor) == (f"promise:{request}", "sluice")
        assert first.reason == "Promise missed: first token after 812 ms, promised within 500 ms"
        assert list(PromiseDay.objects.values_list("counted", "missed", "credited")) == [(1, 1, 675)]
        turn()
        assert UsageRecord.objects.filter(request=request).count() == 2
        refund_request(request=request, key="a", actor="op", reason="broken")
        left = [CreditGrant.objects.get(pk=one.pk).remaining for one in grants]
        assert left == [2_500, 50_000]  # what the promise gave back is not given back twice

    def test_what_was_kept_or_does_not_count_gives_nothing_back(self):
        wallet, of, card = make_wallet(credit=50_000), version(), publish()
        kept, flex = served(wallet, card, of, missed=()), served(wallet, card, of, missed=(), not_counted="flex")
        without = ran(wallet, {"input": 899}, card)
        turn()
        assert credited(kept, flex, without) == [None, None, None]
        assert list(PromiseDay.objects.values_list("counted", "missed", "credited")) == [(1, 0, 0)]

    def test_a_month_gives_back_no_more_than_its_cap(self):
        wallet, card = make_wallet(credit=50_000), publish()
        of = version(promise_cap=1_500)
        requests = sorted(served(wallet, card, of) for _ in range(4))
        turn()
        assert credited(*requests) == [675, 675, 150, 0]
        assert set(MissedPromise.objects.values_list("due", flat=True)) == {675}
        later = served(wallet, card, of)
        turn()
        assert credited(later) == [0]

    def test_a_refund_before_leaves_no_more_than_the_rest_and_a_rerating_after_keeps_it(self):
        wallet, of, card = make_wallet(credit=50_000), version(promise_credit_bp=10_000), publish()
        request = served(wallet, card, of)
        refund_request(request=request, amount=2_000, key="a", actor="op", reason="broken")
        rollups.consume_usage()
        service.credit(wallet.pk)
        assert MissedPromise.objects.get().credited == PRICE - 2_000
        record = last(request)
        assert (record.charge, record.refunded) == (0, PRICE)
        dear = publish("dear", 2)
        said = {"run": uuid7(), "actor": "op", "reason": "r", "card_version": dear.id, "multiplier_bp": 10_000}
        apply_now([Rerate(request=request, wallet=wallet.pk, revision=record.revision, charge=2 * PRICE, **said)])
        assert (last(request).charge, last(request).refunded) == (0, 2 * PRICE)  # it stays free

    @pytest.mark.parametrize("dies", ["before", "after"])
    def test_a_job_that_dies_credits_neither_twice_nor_never(self, monkeypatch, dies):
        wallet, of, card = make_wallet(credit=50_000), version(promise_cap=1_000), publish()
        requests = sorted(served(wallet, card, of) for _ in range(2))
        rollups.consume_usage()
        real = service.apply_now

        def dying(operations):
            if dies == "after":
                real(operations)
            raise SystemExit

        monkeypatch.setattr(service, "apply_now", dying)
        with pytest.raises(SystemExit):
            service.credit(wallet.pk)
        monkeypatch.setattr(service, "apply_now", real)
        assert Wallet.objects.get(pk=wallet.pk).posted == 50_000 - 2 * PRICE
        turn()
        assert credited(*requests) == [675, 325]

    @pytest.mark.postgresql
    def test_two_jobs_at_once_credit_once_and_never_pass_the_cap(self):
        wallet, of, card = make_wallet(credit=90_000), version(promise_cap=2_000), publish()
        requests = [served(wallet, card, of) for _ in range(6)]
        rollups.consume_usage()
        together = threading.Barrier(2)

        def one(_):
            try:
                together.wait(30)
                service.credit(wallet.pk)
            finally:
                connection.close()

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(one, range(2)))
        assert sum(credited(*requests)) == 2_000

    def test_reconcile_finds_a_credit_without_its_miss_and_a_miss_without_its_credit(self):
        wallet, of, card = make_wallet(credit=50_000), version(), publish()
        request = served(wallet, card, of)
        turn()
        rollups.consume_usage()  # of the credit too: what is still to be summed isn't compared
        MissedPromise.objects.update(credited=1)
        assert {one.check for one in reconcile.check(connection)} == {"missed_promise", "promise_days"}
        MissedPromise.objects.update(credited=675)
        miss = MissedPromise.objects.get()
        MissedPromise.objects.all().delete()
        found = {one.check for one in reconcile.check(connection)}
        assert found == {"promise_without_miss", "promise_days", "miss_not_noted"}
        miss.save(force_insert=True)
        assert credited(request) == [675]
