from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from billing.models import Rate, RateCardVersion
from billing.selectors.prices import prices_at
from billing.services import cards
from billing.services.errors import CardError

pytestmark = [pytest.mark.money, pytest.mark.django_db]

SIMPLE = {0: {"input": 10, "cache_read": 1, "output": 40}}


def test_publish_stores_every_class_resolved_and_is_published():
    version = cards.publish("m", {**SIMPLE, 1_000: {"input": 20, "output": 80}}, request_fee=3, note="first")
    stored = {(rate.tier_min_context, rate.usage_class): rate.rate for rate in Rate.objects.filter(version=version)}
    assert len(stored) == 12
    assert (stored[0, "reasoning"], stored[0, "cache_write_short"], stored[1_000, "cache_read"]) == (40, 10, 20)
    version.refresh_from_db()
    assert version.published_at is not None
    assert (version.request_fee, version.note) == (3, "first")


def test_prices_at_is_the_last_version_that_is_effective():
    now = timezone.now()
    first = cards.publish("m", SIMPLE)
    second = cards.publish("m", {0: {"input": 99, "output": 99}}, now + timedelta(days=1))
    other = cards.publish("n", SIMPLE)
    RateCardVersion.objects.create(card=first.card, effective_from=now - timedelta(days=9))  # a draft is no price
    assert prices_at(now - timedelta(days=1)) == {}
    today = prices_at(timezone.now())
    assert {name: prices.id for name, prices in today.items()} == {"m": first.pk, "n": other.pk}
    tomorrow = prices_at(now + timedelta(days=1))
    assert (tomorrow["m"].id, tomorrow["m"].tiers[0].rates["input"]) == (second.pk, 99)


def test_prices_at_takes_a_fixed_number_of_queries(django_assert_num_queries):
    for name in "abc":
        cards.publish(name, SIMPLE)
    with django_assert_num_queries(2):
        assert len(prices_at(timezone.now())) == 3


def test_batches_cost_half_unless_the_version_says_otherwise():
    cards.publish("m", SIMPLE)
    cards.publish("n", SIMPLE, batch_bp=9_000)
    assert {name: prices.batch_bp for name, prices in prices_at(timezone.now()).items()} == {"m": 5_000, "n": 9_000}
    with pytest.raises(CardError, match="batches"):
        cards.publish("o", SIMPLE, batch_bp=10_001)


@pytest.mark.parametrize(
    ("rates", "field"),
    [
        ({0: {"input": 1}}, "output"),
        ({1: {"input": 1, "output": 1}}, "context 0"),
        ({0: {"input": 1, "output": -1}}, "output"),
        ({0: {"input": 1, "output": 1, "images": 1}}, "images"),
        ({0: {"input": 1, "output": 1, "cache_read": 2}}, "cache_read"),
    ],
)
def test_publish_refuses_wrong_rates(rates, field):
    with pytest.raises(CardError, match=field):
        cards.publish("m", rates)
    assert not RateCardVersion.objects.exists()


def test_publish_never_changes_the_past():
    with pytest.raises(CardError, match="past"):
        cards.publish("m", SIMPLE, timezone.now() - timedelta(seconds=1))
    cards.publish("m", SIMPLE, timezone.now() + timedelta(days=1))
    with pytest.raises(CardError, match="later than"):
        cards.publish("m", SIMPLE)


def test_default_cards_are_published_once():
    cards.ensure_default_cards()
    cards.ensure_default_cards()
    prices = prices_at(timezone.now())
    chat, vectors = "smollm2-135m-instruct", "all-minilm-l6-v2"
    assert set(prices) == {chat, vectors, "sluice-desk", "sluice-desk-labels"}
    rates = prices[chat].tiers[0].rates
    assert rates["cache_read"] * 5 < rates["input"] < rates["output"]
    assert RateCardVersion.objects.count() == 4
    # The specialists cost what they take: an adapter leaves 0.95 of its base's speed.
    for name in ("input", "cache_read", "output"):
        assert prices["sluice-desk"].tiers[0].rates[name] * 0.95 == pytest.approx(rates[name], rel=0.001)
    assert prices["sluice-desk-labels"].tiers[0].rates["input"] == 3_700_000
    assert prices[vectors].tiers[0].rates["input"] == 2_000_000


def test_a_second_of_a_label_costs_the_same_from_each_of_the_first_models_that_can_write_one():
    """The stated rule of the prices: credits are in the ratio of what was measured, which the benchmarks' table has.

    Within a factor of two: how much quicker the head is depends on the machine.
    """
    table = (Path(__file__).parents[3] / "docs/benchmarks.md").read_text().partition("## Tickets")[2]
    found = {}
    for line in table.splitlines():
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if len(cells) == 6 and (name.endswith("guided") or name.startswith("head")):
            found[name.partition(" ")[0].strip(",")] = float(cells[4]) / float(cells[2])
    assert found.keys() == {"generalist", "specialist", "head"}
    assert max(found.values()) < 2 * min(found.values())
