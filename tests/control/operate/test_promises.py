"""A plan's promise on the pages of both sides: its words, what became of each request, sums, and what misses cost."""

from __future__ import annotations

import csv
import re
from io import StringIO

import pytest
from django.urls import reverse

from base.units import MICRO
from billing.models import CreditGrant, PlanVersion, Subscription, Wallet
from billing.promises import Measured
from billing.services import credits, plans, rollups
from billing.services import promises as service
from gateway.apis.usage.endpoint import usage_of
from tests.billing.requests import publish, ran
from tests.control.operate.test_now import operator
from tests.control.operate.test_plans import TERMS

__all__ = ["operator"]
pytestmark = pytest.mark.django_db
PROMISED = {
    "promised_ttft_ms": "500", "promised_ttft_per_1k_ms": "100", "promised_rate": "20", "promise_share": "0.25",
    "promise_cap": "0.0008",
}  # fmt: skip
WORDS = (
    "first token within 500 ms and 100 ms for each 1,000 tokens of the prompt that aren’t cached; "
    "20 tokens/s in answers of 64 tokens or more. A miss gives 25 % of the charge back, at most 0.0008 credits a month."
)


@pytest.fixture
def promised(acme):
    """Terms of the tenant's plan that promise something."""
    terms = {"promised_ttft_ms": 500, "promised_ttft_per_1k_ms": 100, "promised_rate": 20, "promise_credit_bp": 2_500}
    present = Subscription.objects.get(tenant=acme.tenant, state="active").version
    made = plans.publish_version(present.plan, **terms, promise_cap=800)
    Subscription.objects.filter(tenant=acme.tenant).update(version=made)
    wallet = Wallet.objects.get(tenant=acme.tenant)
    credits.grant(wallet_id=wallet.pk, amount=MICRO, kind=CreditGrant.Kind.PROMOTIONAL, key="some")
    return made


@pytest.fixture
def serve(acme, promised):
    """Serve a request of 2,697 µcr that did so by the promise."""
    wallet, card = Wallet.objects.get(tenant=acme.tenant), publish()

    def served(*missed, **fields):
        one = Measured(promised.pk, missed=missed, **fields)
        project = {"project": acme.project.pk}
        return ran(wallet, {"input": 899}, card, ago=1, ended={"promise": one}, **project)

    return served


def text_of(answer):
    """The words of a page, without tags and the addresses in them."""
    return " ".join(re.sub(r"<[^>]*>", " ", answer.content.decode()).split())


def turn():
    rollups.consume_usage()
    while service.credits_due().turn():
        pass


def test_a_promise_is_published_compared_and_told(operator, acme):
    operator.post(reverse("operate-plan-new"), {"name": "Pro", "slug": "pro", "is_offered": "on"})
    page = reverse("operate-plan-publish", args=["pro"])
    wrong = operator.post(page, {**TERMS, **PROMISED, "promise_share": "1.1", "promised_ttft_ms": "0"})
    assert set(wrong.context["form"].errors) == {"promise_share", "promised_ttft_ms"}
    assert operator.post(page, {**TERMS, **PROMISED}).status_code == 302
    made = plans.latest_version("pro")
    assert (made.promised_ttft_ms, made.promised_rate, made.promised_rate_from) == (500, 20, 64)
    assert (made.promise_credit_bp, made.promise_cap) == (2_500, 800)
    assert WORDS in text_of(operator.get(reverse("operate-plan", args=["pro"])))
    both = operator.get(reverse("operate-plans"), {"a": "pro", "b": "free"})
    rows = {row.values[0]: row.values[1:] for row in both.context["comparison"].rows}
    assert rows["Promise"] == [WORDS, "none"]
    assert operator.post(page, TERMS).status_code == 302
    without = plans.latest_version("pro")
    assert (without.promised_ttft_ms, without.promise_cap, without.promised_rate_from) == (None, None, 64)


def test_a_share_above_the_whole_is_refused_with_the_fields_name(db):
    plans.ensure_default_plans()
    with pytest.raises(Exception, match="promise_credit_bp"):
        plans.publish_version(PlanVersion.objects.first().plan, promise_credit_bp=10_001)


def test_the_tenant_reads_its_promise_and_what_became_of_each_request(acme, serve):
    client = acme.client()
    assert f"Promised: {WORDS}" in text_of(client.get("/billing/"))
    late = serve("ttft", ttft_ms=812, ttft_most_ms=700, uncached=2_000, waited_ms=400)
    before = text_of(client.get(f"/requests/{late}/"))
    assert "What it gives back is booked within seconds." in before
    assert usage_of(acme.tenant.pk, acme.project.pk, late).promise.credited is None
    turn()
    page = text_of(client.get(f"/requests/{late}/"))
    assert "The plan’s promise missed" in page
    assert "First token after 812 ms, promised within 700 ms. 400 ms behind other requests of its tenant don’t" in page
    assert "2,000 tokens of the prompt weren’t cached. 0.000675 credits were given back." in page
    assert "Request, promise missed" in page
    told = usage_of(acme.tenant.pk, acme.project.pk, late).promise
    assert (told.kept, told.missed, told.own_queue_ms, told.credited, told.credited_micro) == (
        *(False, ["ttft"], 400, "0.000675", 675),
    )
    capped = serve("ttft", ttft_ms=812, ttft_most_ms=700)
    turn()
    page = text_of(client.get(f"/requests/{capped}/"))
    assert "0.000125 credits were given back of 0.000675: the month’s limit was reached." in page


@pytest.mark.parametrize(
    ("fields", "text", "kept"),
    [
        ({"rate": 25.5, "rate_least": 20}, "kept 25.5 tokens/s, promised 20.", True),
        ({"not_counted": "flex"}, "not counted Flex requests have no promise.", None),
    ],
)
def test_what_was_kept_or_not_counted_says_so(acme, serve, fields, text, kept):
    request = serve(**fields)
    turn()
    assert f"The plan’s promise {text}" in text_of(acme.client().get(f"/requests/{request}/"))
    told = usage_of(acme.tenant.pk, acme.project.pk, request).promise
    assert (told.kept, told.credited, told.missed) == (kept, None, [])


def test_a_request_without_a_promise_has_nothing_of_one(acme, serve):
    plain = ran(Wallet.objects.get(tenant=acme.tenant), {"input": 9}, publish("other"), project=acme.project.pk)
    assert "promise" not in text_of(acme.client().get(f"/requests/{plain}/"))
    assert usage_of(acme.tenant.pk, acme.project.pk, plain).promise is None


def test_both_sides_see_how_it_was_kept_and_the_operator_what_it_cost(operator, acme, serve):
    usage, tenant, money = "/usage/", reverse("operate-tenant", args=[acme.tenant.slug]), reverse("operate-money")
    for page in (text_of(operator.get(tenant)), text_of(operator.get(money)), text_of(acme.client().get(usage))):
        assert "romise" not in page
    late = [serve("ttft", ttft_ms=812, ttft_most_ms=700) for _ in range(2)]
    kept = [serve(ttft_ms=12, ttft_most_ms=700) for _ in range(6)]
    assert len({*late, *kept}) == 8
    turn()
    tile = text_of(acme.client().get(usage))
    assert "Promise kept 75.0 % of 8; 0.0008 credits back" in tile
    assert "Promise kept" not in text_of(acme.client().get(f"{usage}?model=m"))
    shown = text_of(operator.get(tenant))
    assert "75.0 % of 8 requests" in shown
    assert "Given back 0.0008 credits" in shown
    plan = PlanVersion.objects.get(subscriptions__tenant=acme.tenant).plan.name
    rows = [row.values for row in operator.get(money).context["promises"].rows]
    assert rows == [[plan, "m", 8, "75.0 %", 2, 800]]
    sent = operator.get(reverse("operate-money-csv", args=["promises"])).content.decode()
    assert list(csv.reader(StringIO(sent)))[1:] == [[plan, "m", "8", "2", "0.0008"]]
