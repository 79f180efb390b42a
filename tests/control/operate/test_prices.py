"""The operator's prices: now and soon, compared with whom they concern before they are published."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone
from django_scopes import scopes_disabled

from base.ids import day_of, uuid7
from base.units import MICRO
from billing.models import CostSample, RateCardVersion, UsageRecord
from billing.selectors.prices import prices_after, prices_at
from billing.services import cards
from billing.services.plans import subscribe
from tenancy.models import AuditEvent, Tenant
from tests.control.operate.test_models import fake, operator, signed_in, text_of

__all__ = ["operator"]
pytestmark = pytest.mark.django_db
RATES = {0: {"input": 10 * MICRO, "cache_read": MICRO, "output": 40 * MICRO}}
FORM = {"input": "12", "cache_read": "1", "output": "40", "note": "dearer"}


def test_the_matrix_shows_prices_in_force_those_to_come_and_models_without(operator):
    fake("small", card="small")
    fake("none", card="")
    cards.publish("small", RATES | {0: {"input": 99 * MICRO, "output": 99 * MICRO}}, timezone.now() + timedelta(days=2))
    cards.publish("nobody's", RATES)
    page = text_of(operator.get(reverse("operate-prices")))
    assert page.index("small</a>") < page.index('value="10"') < page.index("from ") < page.index('value="99"')
    assert "no price" in page[page.index("none</a>") :]
    assert "nobody&#x27;s</a>" in page[page.index("Price lists of no model") :]
    later = text_of(operator.get(reverse("operate-price", args=["small"])))
    assert later.index("coming") < later.index("in force")


def test_a_list_named_like_a_path_has_its_page(operator):
    fake("acme/law", card="acme/law")
    assert operator.get(reverse("operate-price", args=["acme/law"])).status_code == 200
    assert operator.get(reverse("operate-price-new", args=["acme/law"])).status_code == 200
    assert operator.get(reverse("operate-price", args=["nothing"])).status_code == 404


def used(model, tenant, *, multiplier=10_000, charge=5):
    request = uuid7(int(timezone.now().timestamp() * 1000) - 3_600_000)
    UsageRecord.objects.create(
        id=request, request=request, day=day_of(request), tenant=tenant, project=tenant, wallet=tenant,
        model=model, deployment=tenant, card_version=tenant, multiplier_bp=multiplier, charge=charge, held=5,
        input_tokens=1_000, output_tokens=100, reserved_at=timezone.now(),
    )  # fmt: skip


def test_new_prices_are_compared_named_and_rated_on_the_last_month_before_they_are_published(operator, acme):
    fake("small", card="small")
    tenant = Tenant.objects.create(name="On business", slug="on-business")
    subscribe(tenant.pk, "business")
    page = reverse("operate-price-new", args=["small"])
    form = operator.get(page).context["form"]
    assert (form["input"].value(), form["reasoning"].value()) == ("10", None)  # reasoning costs what output costs
    used("small", acme.tenant.pk, charge=14_000)
    used("small", acme.tenant.pk, multiplier=5_000, charge=7_000)
    used("other", acme.tenant.pk, charge=99)
    compared = operator.post(page, FORM)
    told = text_of(compared)
    assert "Publish these prices of small?" in told
    assert "for <strong>small</strong>" in told
    assert "+20.0%" in told
    assert "Business</a>" in told
    assert "<dt>Tenants</dt><dd>1</dd>" in told
    assert 'hx-trigger="load"' in told
    assert RateCardVersion.objects.filter(card__name="small").count() == 1
    usage = operator.post(page, {**FORM, "usage": "1"})
    found = usage.context["usage"]["found"]
    assert (found.counted, found.before, found.after) == (2, 21_000, 16_000 + 8_000)
    again = operator.post(page, {**FORM, "usage": "1"}).context["usage"]["found"]
    assert again.pk == found.pk
    shadow = operator.post(reverse("operate-rerating-shadow", args=[found.pk])).url
    assert operator.post(reverse("operate-rerating-shadow", args=[found.pk])).url == shadow
    assert "beside the real prices" in text_of(operator.get(shadow))
    assert "0.024</strong> credits" in text_of(usage)
    assert "+14.3%" in text_of(usage)
    back = operator.post(page, {**FORM, "edit": "1"})
    assert back.context["form"]["note"].value() == "dearer"
    sent = dict(compared.context["sent"])
    assert operator.post(page, {**sent, "publish": "1"}).url == reverse("operate-price", args=["small"])
    assert prices_at(timezone.now())["small"].tiers[0].rates["input"] == 12 * MICRO
    with scopes_disabled():
        event = AuditEvent.objects.filter(action="prices.published").latest("at")
    assert (event.before["input from 0"], event.after["input from 0"]) == ("10", "12")
    assert event.actor == "root@example.com"


def test_what_cannot_be_published_is_refused_at_its_field(operator):
    fake("small", card="small")
    page = reverse("operate-price-new", args=["small"])
    for changes, field in (
        ({"input": ""}, "input"),
        ({"cache_read": "13"}, "cache_read"),
        ({"output": "-1"}, "output"),
        ({"tiers": "32k: input 2"}, "tiers"),
        ({"tiers": "32000: entry 2"}, "tiers"),
        ({"effective_from": "2020-01-01T00:00"}, "effective_from"),
        ({"batch_percent": "101"}, "batch_percent"),
    ):
        answer = operator.post(page, {**FORM, **changes})
        assert answer.status_code == 400, changes
        assert set(answer.context["form"].errors) == {field}, changes
    soon = f"{timezone.now() + timedelta(days=1):%Y-%m-%dT%H:%M}"
    tiers = {"tiers": "32000: input 20, output 80", "effective_from": soon, "publish": "1"}
    assert operator.post(page, {**FORM, **tiers}).status_code == 302
    [coming] = prices_after(timezone.now())
    assert [tier.min_context for tier in coming.prices.tiers] == [0, 32000]
    assert operator.get(page).context["form"]["tiers"].value() == "32000: input 20, output 80"


def test_a_new_list_begins_with_its_name(operator):
    answer = operator.post(reverse("operate-price-list-new"), {"name": "gold"})
    assert answer.url == reverse("operate-price-new", args=["gold"])
    assert operator.post(answer.url, {**FORM, "publish": "1"}).status_code == 302
    assert prices_at(timezone.now())["gold"].tiers[0].rates["output"] == 40 * MICRO
    assert operator.post(reverse("operate-price-list-new"), {"name": "a?b"}).status_code == 400


def test_a_role_without_publishing_sees_prices_alone(operator):
    fake("small", card="small")
    viewer = signed_in("v@example.com", "viewer")
    assert "Publish new prices" not in text_of(viewer.get(reverse("operate-price", args=["small"])))
    assert viewer.post(reverse("operate-price-new", args=["small"]), FORM).status_code == 403


def test_a_proposal_from_measured_cost_stands_beside_the_prices_and_fills_the_form(operator):
    fake("small", card="small")
    page = reverse("operate-price", args=["small"])
    assert "From measured cost" not in text_of(operator.get(page))
    proposal = {
        "tiers": {
            "0": {"input": 12 * MICRO, "output": 50 * MICRO},
            "2048": {"input": 20 * MICRO, "output": 60 * MICRO},
        },
        "fee": 30,
    }
    CostSample.objects.create(
        deployment=uuid7(), name="small-1", model="small", card="small", device="a device",
        point={"concurrency": 4, "reach": 8192, "measured_by": "the worker's steps"},
        seconds={}, rates={"input": 9 * MICRO, "output": 40 * MICRO, "request": 20},
        price={"hour": 200 * MICRO, "utilisation_bp": 6_000, "margin_bp": 12_500},
        proposal=proposal, residual=0.031, recovery=0.98, created_at=timezone.now() - timedelta(hours=5),
    )  # fmt: skip
    told = text_of(operator.get(page))
    for words in ("residual 3.1%", "held-out mix 98.0%", "200 credits", "busy share of 60 %", "125 %", "a device"):
        assert words in told
    rows = re.findall(r'value="([\d.]+)"', told[told.index("From measured cost, in") :])
    assert rows[:3] == ["9", "10", "12"], "cost, in force, proposed"
    link = f"{reverse('operate-price-new', args=['small'])}?measured=1"
    assert link in told
    form = operator.get(link).context["form"]
    assert (form["input"].value(), form["request_fee"].value(), form["output"].value()) == ("12", "0.00003", "50")
    assert form["tiers"].value() == "2048: input 20, output 60"
    assert "from cost measured on" in form["note"].value()
    assert operator.get(reverse("operate-price-new", args=["small"])).context["form"]["input"].value() == "10"
    cards.publish("small", {int(at): tier for at, tier in proposal["tiers"].items()}, request_fee=30)
    told = text_of(operator.get(page))
    assert "nothing else is proposed" in told
    assert link not in told
