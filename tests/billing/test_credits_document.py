"""The example of docs/credits.md is what the ledger, the meter and the price list make of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from django.utils import timezone

from base.units import MICRO, format_credits
from billing import rating
from billing.costs import CostRates, DevicePrice, proposed, terms_of
from billing.models import CreditGrant, LedgerTransfer
from billing.promises import NOT_COUNTED, Promise, Run, due, measured
from billing.selectors.balances import balance_of
from billing.selectors.usage import record_of
from billing.services import budgets, cards, credits
from billing.writer.apply import apply_now
from billing.writer.operations import Settle, TrueUp
from gateway.apis.usage.endpoint import usage_of
from gateway.generation.credit import Meter
from tests.billing.books import assert_books_balance
from tests.billing.writer.test_trueup import end
from tests.billing.writer.world import CARD, make_budget, of_budgets, reserve, settle

pytestmark = [pytest.mark.money, pytest.mark.django_db]

TEXT = " ".join((Path(__file__).parents[2] / "docs" / "credits.md").read_text().split())
CLASSES = {"input": 401, "cache_read": 601, "output": 150, "reasoning": 50}
RATES = {"input": 3 * MICRO, "cache_read": 300_000, "output": 12 * MICRO, "reasoning": 15 * MICRO}
TIERS = {0: RATES, 32_000: {name: 2 * rate for name, rate in RATES.items()}}
MULTIPLIER = 9_000


def told(*cells):
    """Check that the document has a row of a table with these cells."""
    assert f"| {' | '.join(map(str, cells))} |" in TEXT


@pytest.fixture
def charged(wallet, give):
    """Return a function that charges the example's request to the example's wallet by a published card."""
    version = cards.publish("example", TIERS, request_fee=100)
    give(2_000, kind=CreditGrant.Kind.PLAN, expires_at=timezone.now() + timedelta(days=30))
    give(1_000)
    give(10 * MICRO, kind=CreditGrant.Kind.PAID, paid_amount=999, currency="EUR")

    def charged(*, exact=True):
        made = msgspec.structs.replace(reserve(wallet, 4_534), card_version=version.pk, multiplier_bp=MULTIPLIER)
        apply_now([made, Settle(made.request, wallet.pk, 3_640, CLASSES, exact=exact)])
        return made.request

    return charged


def test_what_the_example_costs():
    card = cards.resolved(TIERS, request_fee=100)
    charge = rating.charge(CLASSES, card, MULTIPLIER)
    assert f"Together {format_credits(charge)} credits" in TEXT
    batch = rating.charge(CLASSES, card, rating.batch_multiplier(MULTIPLIER, card))
    assert f"As a line of a batch the same costs {format_credits(batch)}." in TEXT
    meter = Meter(card, MULTIPLIER, prompt_tokens=1_002, max_output=4_000, slice_tokens=128)
    assert f"At first {format_credits(meter.first_hold(MICRO).amount)} were held" in TEXT
    longer = {**CLASSES, "cache_read": 40_601}
    assert card.rates_for(rating.context_of(longer))["output"] == 2 * RATES["output"]


def test_the_bill_keeps_the_rates_of_an_older_version(wallet, charged):
    request = charged()
    cards.publish("example", {0: {"input": 1, "output": 1}})
    record = record_of(request, wallet.tenant_id)
    told_by_api = usage_of(wallet.tenant_id, record.project, request)
    for line in told_by_api.bill:
        told(line.usage_class, line.tokens, line.credits_per_million, line.credits)
    assert [line.usage_class for line in told_by_api.bill] == [*CLASSES, "request"]
    assert told_by_api.rate_card_version == str(record.card_version)


def test_the_refunds_of_the_example(wallet, charged):
    request = charged()
    plan, promotional, paid = CreditGrant.objects.filter(wallet=wallet).order_by("created_at", "pk")
    credits.refund_request(request=request, amount=1_000, key="a", actor="op", reason="r")
    assert [CreditGrant.objects.get(pk=one.pk).remaining for one in (promotional, paid)] == [360, 10 * MICRO]
    assert "0.00064 back into the paid grant and 0.00036 into the promotional one" in TEXT
    end(plan)
    assert credits.refund_request(request=request, key="b", actor="op", reason="r") == 2_640
    assert "A second refund may give back 0.00264 at most" in TEXT
    lost = LedgerTransfer.objects.get(request=request, credit__kind="breakage")
    assert (lost.amount, lost.grant_id, CreditGrant.objects.get(pk=promotional.pk).remaining) == (2_000, plan.pk, 1_000)
    assert "0.00064 of that fill the promotional grant up, and 0.002, which were the plan's, go to breakage" in TEXT


def test_the_re_rating_of_the_example():
    before, after = (
        rating.charge({"input": 1_001}, cards.resolved({0: {"input": rate * MICRO, "output": 0}}, 0), 10_000)
        for rate in (3, 2)
    )
    assert f"{format_credits(before)} credits each" in TEXT
    sums = [format_credits(999 * one) for one in (before, after, before - after)]
    assert "The what-if says {} before, {} after, −{}.".format(*sums) in TEXT
    assert f"999 requests are given back {format_credits(before - after)} each" in TEXT


def test_the_grants_that_it_is_taken_from_and_a_refund(wallet, charged):
    request = charged()
    taken = LedgerTransfer.objects.filter(request=request).select_related("grant").order_by("order")
    assert [one.grant.kind for one in taken] == ["plan", "promotional", "paid"]
    for one in taken:
        told(one.grant.kind, format_credits(one.amount))
    paid = CreditGrant.objects.get(kind="paid")
    out = credits.refund(grant_id=paid.pk, key="k", actor="a", reason="r", reference="x")
    paid.refresh_from_db()
    assert f"takes {format_credits(out)} credits out and is worth {paid.refunded_amount / 100} EUR" in TEXT
    assert_books_balance(wallet)


def test_a_true_up_gives_back_to_the_last_grant(wallet, charged):
    request = charged(exact=False)
    apply_now([TrueUp(request, wallet.pk, 3_000, {"input": 1_000})])
    back = LedgerTransfer.objects.get(request=request, code=LedgerTransfer.Code.TRUE_UP)
    assert (back.grant.kind, f"then {format_credits(back.amount)} would go back to the paid grant" in TEXT) == (
        "paid",
        True,
    )


def test_what_the_example_is_quoted_at():
    card = cards.resolved(TIERS, request_fee=100)
    most = rating.charge({"input": 1_002, "reasoning": 300}, card, MULTIPLIER)
    half, nine = (
        rating.charge({"input": 401, "cache_read": 601, "output": output}, card, MULTIPLIER) for output in (150, 280)
    )
    assert f"at most {format_credits(most)} credits (1,002 tokens of input, 300 of reasoning)" in TEXT
    assert f"probably {format_credits(half)}, nine in ten {format_credits(nine)}." in TEXT


def test_what_the_example_of_a_measured_cost_comes_to():
    seconds = (80e-6, 9e-9, 4e-3, 30e-9, 2e-6, 3e-3)
    price, usage = DevicePrice(200 * MICRO, utilisation_bp=6_000, margin_bp=12_500), {"input": 1_000, "output": 100}
    rates = CostRates.of(seconds, price)
    busy = sum(each * count for each, count in zip(seconds, terms_of(usage), strict=True))
    cost = rates.cost(usage)
    share = -(-cost * 6 // 10)
    told("busy", f"{busy:.5f}", format_credits(share))
    assert f"| its share of idle hours | | {format_credits(cost - share)} |" in TEXT
    assert f"| together | | {format_credits(cost)} |" in TEXT
    card = proposed(rates, price.margin_bp, 8_192, with_cached=True)
    charge = rating.charge(usage, cards.resolved(card.tiers, card.request_fee), 10_000)
    assert f"at a margin of 1.25 charges {format_credits(charge)}: each tier" in TEXT


def test_what_the_example_of_budgets_counts(clock, wallet, give):
    def now(text):
        clock.set(datetime.fromisoformat(text).astimezone(UTC))

    def spend(credits, *bearing):
        made = of_budgets(reserve(wallet, round(credits * MICRO)), *bearing)
        apply_now([made, settle(made, round(credits * MICRO))])

    def counted(*found):
        """What the table says of budgets: spent and held."""
        return [f"{format_credits(one.spent)}, {format_credits(one.held)}" for one in budgets.standings(found)]

    now("2026-03-28T23:57:00+01:00")
    give(500 * MICRO)
    berlin = {"time_zone": "Europe/Berlin", "subject": "x"}
    day = make_budget(wallet, 10 * MICRO, "day", scope="key", **berlin)
    month = make_budget(wallet, 200 * MICRO, "month", scope="project", **berlin)
    spend(110.6, month)
    spend(9.4, day, month)
    now("2026-03-28T23:58:00+01:00")
    assert counted(day, month) == ["9.4, 0", "120, 0"]
    first = of_budgets(reserve(wallet, MICRO // 2), day, month)
    assert apply_now([first])[0].total == MICRO // 2
    assert counted(day, month) == ["9.4, 0.5", "120, 0.5"]
    refused = apply_now([of_budgets(reserve(wallet, 300_000), day, month)])[0]
    assert (refused.budget, refused.available) == (day.number, 100_000)
    now("2026-03-29T00:01:00+01:00")
    apply_now([settle(first, 200_000)])
    [standing] = budgets.standings([day])
    assert (standing.spent, standing.period.end - standing.period.start) == (0, timedelta(hours=23))
    [then] = budgets.standings([day], datetime(2026, 3, 28, 22, tzinfo=UTC))
    assert then.spent == 9_600_000
    apply_now([of_budgets(reserve(wallet, MICRO // 2), day, month)])
    assert counted(day, month) == ["0, 0.5", "120.2, 0.5"]
    told("before", "9.4, 0", "120, 0")
    told("00:01, settled with 0.2: counts on the 28th", "9.6, 0 (the 28th)", "120.2, 0")
    told("00:02, held for 0.5: the 29th is new, and has 23 hours", "0, 0.5 (the 29th)", "120.2, 0.5")


def test_the_example_of_credit_for_some_models(wallet, give):
    give(100 * MICRO)
    give(30 * MICRO, models=["small"])
    give(50 * MICRO, models=["large", "vision"])

    def row(what):
        """Check a row by the wallet as it is."""
        found = balance_of(wallet.tenant_id)
        models = [found.available_for(name) // MICRO for name in ("small", "large", "other")]
        assert found.available_for("vision") == found.available_for("large")
        told(what, *models, found.posted // MICRO, found.held // MICRO)

    row("available at first")
    made = reserve(wallet, 70 * MICRO, model="large")
    apply_now([made])
    row("a request of `large` holds 70: 50 of its pool, 20 of the rest")
    apply_now([settle(made, 60 * MICRO)])
    row("it costs 60: its pool is used up, 10 come from the rest")
    [refused] = apply_now([reserve(wallet, 95 * MICRO, model="other")])
    assert refused.available == 90 * MICRO
    row("a request of `other` that needs 95: 402, 90 are available")
    made = reserve(wallet, 40 * MICRO, model="small")
    apply_now([made, settle(made, 40 * MICRO)])
    row("one of `small` holds and costs 40")


def test_the_example_of_a_missed_promise():
    promise = Promise(CARD, ttft_ms=500, ttft_per_1k_ms=100)
    run = Run(waited=0.4, first=1.212, ended=2.0, uncached=2_000, written=100, is_whole=True)
    one = measured(promise, run)
    assert (one.ttft_most_ms, one.ttft_ms, one.waited_ms, one.missed) == (700, 812, 400, ("ttft",))
    share = due(2_697, 2_500)
    assert f"price of {format_credits(2_697)} credits {format_credits(share)} are given back" in TEXT
    assert f"is given back {format_credits(800 - share)}, a third nothing" in TEXT
    for reason in NOT_COUNTED:
        assert f"`{reason}`" in TEXT
