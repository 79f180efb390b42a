"""Money: what a period's credit did, by model, plan and tenant; and the same as CSV."""

from __future__ import annotations

import csv
import re
from datetime import timedelta
from io import StringIO

import pytest
from django.core.cache import cache
from django.urls import reverse
from django.utils import timezone

from base.units import MICRO
from billing.models import CostSample, CreditGrant, OutboxEvent, Wallet
from billing.services import cards, credits
from billing.services.rollups import consume_usage
from control.operate import money
from routing.models import PublicModel
from tenancy.models import Tenant, User
from tests.control.operate.test_now import client_of, operator, page, record

__all__ = ["operator"]
pytestmark = pytest.mark.django_db
MONEY = reverse("operate-money")


def use(party, days, charge, model="river", **fields):
    """Charge a tenant so many credits that many days ago."""
    wallet = Wallet.objects.get(tenant=party.tenant)
    one = record(wallet, timedelta(days=days, minutes=1), charge=charge * MICRO, model=model, **fields)
    OutboxEvent.objects.create(topic="usage", payload={"records": [str(one.request)]})
    consume_usage()
    return one


def tiles(text):
    """Each tile: its name → its figure."""
    return dict(re.findall(r'<span class="muted">([A-Z][a-z]+)</span><strong><data[^>]*>([^<]+)', text))


def table(text, name):
    """The rows of a table: text of its cells."""
    found = re.search(rf'aria-label="{name}".*?</table>', text, re.DOTALL)
    rows = re.findall(r"<tr>(<th scope=\"row\".*?)</tr>", found[0] if found else "", re.DOTALL)
    return [[re.sub(r"<[^>]+>", "", one) for one in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


def test_the_tiles_are_of_the_period(operator, acme):
    wallet = Wallet.objects.get(tenant=acme.tenant)
    given = sum(CreditGrant.objects.values_list("amount", flat=True)) // MICRO
    soon = timezone.now() + timedelta(days=3)
    version = cards.publish("x", {0: {"input": 2 * MICRO, "output": 8 * MICRO}})
    for key, kind, amount, more in (
        ("a", "paid", 500, {"paid_amount": 4_950, "currency": "EUR"}),
        ("b", "promotional", 70, {"expires_at": soon, "rollover": 30 * MICRO, "rollover_until": soon}),
        ("c", "goodwill", 5, {}),
        ("d", "rollover", 9, {}),
    ):
        credits.grant(wallet_id=wallet.pk, amount=amount * MICRO, kind=kind, key=key, **more)
    use(acme, 1, 3)
    use(acme, 20, 4)
    broken = {"waived": True, "card_version": version.pk, "input_tokens": 1_000_000, "output_tokens": 500_000}
    use(acme, 2, 0, **broken)
    text = page(operator, f"{MONEY}?days=7")
    found = tiles(text)
    assert found["Sold"] == "500"
    assert "for 49.50 EUR" in text
    assert found["Given"] == f"{given + 75:,}", "what rolled over was given before"
    assert "and 5 as goodwill" in text
    assert found["Burnt"] == "3"
    assert found["Expired"] == "0"
    assert found["Expiring"] == "40", "30 roll over"
    assert found["Waived"] == "6", "two for a million of input, four for half a million of output"
    assert tiles(page(operator, MONEY))["Burnt"] == "7", "30 days without a word"
    assert "no margin is shown" in text


def test_models_plans_and_tenants_add_up(operator, acme, other):
    use(acme, 1, 30, "river")
    use(acme, 2, 10, "lake", input_tokens=1_000_000)
    use(other, 3, 5, "river")
    use(other, 40, 25, "river")
    text = page(operator, MONEY)
    assert [row[0] for row in table(text, "By model")] == ["river", "lake"]
    [river, lake] = table(text, "By model")
    assert (river[5], river[6], lake[7]) == ("35", "77.8 %", "10")
    [plan] = table(text, "By plan")
    assert plan == ["Free", "2", "3", "45", "100.0 %", "22.5"]
    assert table(text, "Top tenants") == [["Acme", "2", "40", "0", "new"], ["Other", "1", "5", "25", "-80 %"]]
    assert table(text, "Falling tenants") == [["Other", "1", "5", "25", "-80 %"]]
    assert "burnt by day" in text
    text = page(operator, f"{MONEY}?days=90")
    assert "burnt by week" in text
    assert text.count('class="bar"') == 13, "90 bars of six models would be most of the page"
    assert sum(map(int, re.findall(r'aria-label="[^":]+: (\d+)', text))) == 70


def test_a_model_whose_cost_is_entered_has_a_margin(operator, acme):
    PublicModel.objects.create(name="lake", context_length=10, rate_card="x", cost_input=4 * MICRO, cost_output=0)
    use(acme, 2, 10, "lake", input_tokens=1_000_000, output_tokens=0, cache_read_tokens=0)
    use(acme, 1, 30, "river")
    text = page(operator, MONEY)
    [river, lake] = table(text, "By model")
    assert (lake[-2:], river[-2:]) == (["4", "60 %"], ["–", "–"])
    assert "no margin is shown" not in text
    sent = operator.get(reverse("operate-money-csv", args=["models"])).content.decode()
    assert "lake,1,1000000,0,0,10,4" in sent


def calibrated(deployment, days, **rates):
    """A calibration of that many days ago, at µcr per million."""
    return CostSample.objects.create(
        deployment=deployment, name="d", model="river", device="d", seconds={}, price={"hour": 1}, proposal={},
        rates=rates, residual=0.0, recovery=1.0, created_at=timezone.now() - timedelta(days=days),
    )  # fmt: skip


def test_a_measured_cost_takes_the_place_of_an_entered_one_by_model_plan_and_tenant(operator, acme, other):
    PublicModel.objects.create(name="river", context_length=10, rate_card="x", cost_input=9 * MICRO, cost_output=0)
    tokens = {"input_tokens": 1_000_000, "output_tokens": 0, "cache_read_tokens": 0}
    first = use(acme, 5, 100, "river", **tokens)
    calibrated(first.deployment, 4, input=4 * MICRO)
    use(acme, 3, 10, "river", **tokens, deployment=first.deployment)
    use(other, 2, 8, "river", **tokens, deployment=first.deployment)
    use(acme, 1, 50, "lake")
    text = page(operator, MONEY)
    [river, lake] = table(text, "By model")
    assert river[-2:] == ["8", "56 %"], "of the 18 credits since the calibration, not of those before"
    assert lake[-2:] == ["–", "–"]
    [plan] = table(text, "By plan")
    assert plan[-2:] == ["8", "56 %"]
    assert [row[-2:] for row in table(text, "Top tenants")] == [["4", "60 %"], ["4", "50 %"]]
    for name, row in (
        ("models", "river,3,3000000,0,0,118,8,18,measured"),
        ("plans", "Free,2,4,168,8,18,measured"),
        ("tenants", f"Other,{other.tenant.slug},1,8,0,4,8,measured"),
    ):
        assert row in operator.get(reverse("operate-money-csv", args=[name])).content.decode().splitlines()


def test_a_tenant_below_a_tenth_is_listed(operator, acme, other):
    CreditGrant.objects.filter(wallet__tenant=acme.tenant).update(remaining=CreditGrant.objects.first().amount // 20)
    [row] = table(page(operator, MONEY), "Below a tenth of their grants")
    assert (row[0], row[3]) == ("Acme", "5.0 %")
    old = {"created_at": timezone.now() - timedelta(days=100), "remaining": 0, "expires_at": None}
    CreditGrant.objects.filter(wallet__tenant=acme.tenant).update(**old)
    assert table(page(operator, MONEY), "Below a tenth of their grants") == [], "used up long ago"


def test_csv_has_every_row_and_no_formula(operator, acme, other):
    Tenant.objects.filter(pk=acme.tenant.pk).update(name="=cmd()")
    use(acme, 1, 30, "@model")
    use(other, 3, 5)
    use(other, 40, 25)

    def rows(name):
        answer = operator.get(reverse("operate-money-csv", args=[name]))
        assert answer.headers["content-type"].startswith("text/csv")
        return list(csv.reader(StringIO(answer.content.decode())))

    unknown = ["", "", ""]
    models = [["'@model", "1", "0", "0", "0", "30", *unknown], ["river", "1", "0", "0", "0", "5", *unknown]]
    assert rows("models")[1:] == models
    assert rows("plans")[1:] == [["Free", "2", "2", "35", *unknown]]
    tenants = [["'=cmd()", "acme", "1", "30", "0", *unknown], ["Other", "other", "1", "5", "25", *unknown]]
    assert rows("tenants")[1:] == tenants
    assert rows("falling")[1:] == [["Other", "other", "1", "5", "25", *unknown]]
    CreditGrant.objects.filter(wallet__tenant=acme.tenant).update(remaining=0)
    assert [row[:3] for row in rows("low")[1:]] == [["'=cmd()", "acme", "0"]]
    assert operator.get(reverse("operate-money-csv", args=["else"])).status_code == 404


def test_sums_that_take_long_are_kept_for_a_while(operator, acme, monkeypatch):
    monkeypatch.setattr(money, "SLOW_SECONDS", 0.0)
    assert table(page(operator, MONEY), "Top tenants") == []
    use(acme, 1, 30)
    assert table(page(operator, MONEY), "Top tenants") == []
    cache.clear()
    assert [row[0] for row in table(page(operator, MONEY), "Top tenants")] == ["Acme"]


def test_it_needs_the_roles_of_billing(operator, acme):
    nobody = client_of(User.objects.create_user("nobody@example.com", is_staff=True))
    assert nobody.get(MONEY).status_code == 403
    assert nobody.get(reverse("operate-money-csv", args=["low"])).status_code == 403
    assert acme.client().get(MONEY).status_code == 404


def test_the_page_takes_a_fixed_number_of_queries(operator, acme, other, django_assert_max_num_queries):
    for days in range(5):
        use(acme, days, 1, f"m{days}")
        use(other, days + 30, 1, waived=True)
    with django_assert_max_num_queries(15):
        page(operator, MONEY)
