"""The usage page, its chart, its CSV, and one request."""

from __future__ import annotations

import csv
import io
import re
from datetime import timedelta

import pytest
from django.utils import timezone

from base.ids import uuid7
from billing.models import Wallet
from billing.services import cards, plans
from control.console.refusals import error_rate
from control.screens.figures import cell
from gateway.runtime.models import RefusalCount
from tenancy.services import keys
from tests.billing.conftest import open_hold

pytestmark = pytest.mark.django_db


def text_of(response):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", response.content.decode()))


@pytest.mark.parametrize("role", ["owner", "admin", "member", "billing"])
def test_every_role_sees_usage(people, used, acme, role):
    used(acme, charge=2_500_000)
    response = people(role).get("/usage/")
    assert response.status_code == 200
    text = text_of(response)
    assert "Spent 2.5 credits in 30 days" in text
    assert "Requests 1 " in text
    assert "Tokens 45 5 out · 75 % of input cached" in text
    assert "Balance 100.00 " in text
    assert "Plan Free +100.00 credits on" in text


def test_a_plan_that_ends_promises_no_further_month(acme):
    ended = plans.end(acme.tenant.pk)
    text = text_of(acme.client().get("/usage/"))
    assert f"Plan Free Ends on {ended.granted_until:%-d %b %Y}: ask your operator" in text


def test_a_tenant_without_usage_gets_the_next_command(acme):
    text = text_of(acme.client().get("/usage/"))
    assert "No usage yet" in text
    assert "curl http://testserver/v1/chat/completions" in text


def test_the_chart_has_a_table_with_the_same_numbers(acme, used):
    used(acme, charge=2_500_000)
    used(acme, charge=500_000, model="large")
    page = acme.client().get("/usage/").content.decode()
    assert page.count('class="bar"') == 30
    rows = re.findall(r'<tr><th scope="row">\d+ \w+</th>.*?</tr>', page)
    assert len(rows) == 1
    assert re.findall(r'<td class="number">([^<]*)</td>', rows[0]) == ["2.5", "0.5", "3"]


@pytest.mark.parametrize(("days", "bars"), [("7", 7), ("90", 90), ("1000", 30), ("x", 30)])
def test_the_period_stands_in_the_address(acme, used, days, bars):
    used(acme)
    page = acme.client().get("/usage/", {"days": days}).content.decode()
    assert page.count('class="bar"') == bars


def test_filters_apply_to_everything_and_stay_in_the_links(acme, used):
    second, _ = keys.create_key(tenant=acme.tenant, project=acme.project, name="second", scopes=["inference"])
    used(acme, charge=1_000_000)
    used(acme, charge=4_000_000, model="large")
    client = acme.client()
    response = client.get("/usage/", {"model": "large", "key": str(acme.key.id), "days": "7"})
    text = text_of(response)
    assert "Spent 4 credits in 7 days" in text
    assert text.count("Details") == 1
    page = response.content.decode()
    assert f"/usage/export.csv?days=7&amp;key={acme.key.id}&amp;model=large" in page
    assert f"?days=90&amp;key={acme.key.id}&amp;model=large" in page
    assert "None with this filter" in text_of(client.get("/usage/", {"key": str(second.id)}))


def test_measures(acme, used):
    used(acme)
    for measure, total in (("tokens", "45"), ("requests", "1")):
        page = acme.client().get("/usage/", {"measure": measure}).content.decode()
        row = re.search(r'<tr><th scope="row">\d+ \w+</th>.*?</tr>', page)[0]
        assert re.findall(r'<td class="number">([^<]*)</td>', row) == [total]


def test_a_request_in_the_list_generated_its_reasoning_too(acme, used):
    used(acme, reasoning_tokens=1_200)
    page = acme.client().get("/usage/").content.decode()
    assert '<td class="number">10</td><td class="number">30</td><td class="number">1,205</td>' in page


def test_requests_are_paged(acme, used):
    made = [used(acme) for _ in range(30)]
    client = acme.client()
    first = client.get("/usage/").content.decode()
    shown = re.findall(r"/usage/requests/([\w-]+)/", first)
    assert shown == [str(one) for one in reversed(made)][:25]
    older = re.search(r'href="(\?[^"]*before=[^"#]*)#[^"]*">Older', first)[1]
    second = client.get("/usage/" + older).content.decode()
    assert re.findall(r"/usage/requests/([\w-]+)/", second) == [str(one) for one in reversed(made)][25:]
    assert "Newest" in second
    assert "Older" not in second


def test_csv_is_exact(acme, used):
    used(acme, charge=1_234_567)
    used(acme, charge=1, key=False)
    response = acme.client().get("/usage/export.csv", {"days": "7"})
    assert response["content-type"].startswith("text/csv")
    assert 'filename="usage-acme-' in response["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(response.content.decode())))
    found = {(row["key_name"], row["credits"], row["cached_tokens"], row["api_key"]) for row in rows}
    assert found == {("all", "1.234567", "30", str(acme.key.id)), ("chat", "0.000001", "30", "")}


def test_csv_holds_no_formulas():
    assert cell("=1+1") == "'=1+1"
    assert cell("plain") == "plain"


def test_one_request_tells_everything(acme, used, people):
    route = {
        "reason": "The first usable target.",
        "task": "chat",
        "task_source": "plan",
        "rule": "default",
        "candidates": [
            {"model": "large", "deployment": "large", "rejected": "not in the plan"},
            {"model": "small", "deployment": "small-1", "rejected": ""},
        ],
        "attempts": [
            {"model": "medium", "deployment": "medium-1", "node": "n1", "failed": "its worker was lost"},
            {"model": "small", "deployment": "small-1", "node": "local", "failed": ""},
        ],
    }
    made = used(acme, route=route, finish="stop", ttft_ms=20, duration_ms=120, charge=42)
    text = text_of(people("billing").get(f"/usage/requests/{made}/"))
    assert "Input 10 – – Cached input 30 – – Output 5 – – Charge 0.000042" in text
    assert "The first usable target." in text
    assert "large · passed over: not in the plan" in text
    assert "small on small-1 · chosen" in text
    assert "It was tried 2 times:" in text
    assert "medium on medium-1 at n1 · failed: its worker was lost" in text
    assert "small on small-1 · served it" in text
    assert str(made) in text
    assert "120 ms · 40 tokens/s" in text


def test_a_bill_adds_up_line_by_line(acme, used):
    card = cards.publish("m", {0: {"input": 10_000_000, "cache_read": 1_000_000, "output": 40_000_000}}, request_fee=7)
    made = used(acme, charge=337, card_version=card.pk)
    text = text_of(acme.client().get(f"/usage/requests/{made}/"))
    assert "Input 10 10 0.0001 Cached input 30 1 0.00003 Output 5 40 0.0002 Request fee – – 0.000007" in text
    assert "Charge 0.000337" in text


def test_a_request_that_runs_has_a_page(acme, other):
    made = open_hold(Wallet.objects.get(tenant=acme.tenant), 1_500_000)
    text = text_of(acme.client().get(f"/usage/requests/{made.id}/"))
    assert "1.5 credits are held for it" in text
    assert other.client().get(f"/usage/requests/{made.id}/").status_code == 404


def test_requests_of_others_are_unknown(acme, other, used):
    made = used(other)
    assert acme.client().get(f"/usage/requests/{made}/").status_code == 404
    assert acme.client().get(f"/usage/requests/{uuid7()}/").status_code == 404


@pytest.fixture
def refused(acme, other):
    """Refusals of two tenants, today and long ago, by `acme`'s key and in its chat."""
    now = timezone.now()
    minutes = [now.replace(second=0, microsecond=0) - timedelta(minutes=number) for number in range(2)]
    for party, key, minute, code, count in (
        (acme, acme.key, minutes[0], "rate_limit_exceeded", 1200),
        (acme, acme.key, minutes[1], "rate_limit_exceeded", 34),
        (acme, None, minutes[1], "credit_balance_exhausted", 2),
        (acme, acme.key, minutes[0] - timedelta(days=40), "tenant_inactive", 5),
        (other, other.key, minutes[0], "model_not_allowed", 7),
    ):
        RefusalCount(
            id=uuid7(),
            minute=minute,
            tenant=party.tenant,
            api_key=key,
            status=402 if code.startswith("credit") else 429,
            code=code,
            model="small",
            count=count,
            last_request=uuid7(),
            last_at=minute + timedelta(seconds=5),
        ).save(force_insert=True)
    return RefusalCount.objects.of(acme.tenant).order_by("-minute").first()


def test_refusals_of_the_period_are_told_with_the_error_rate(acme, used, refused):
    for _ in range(4):
        used(acme)
    text = text_of(acme.client().get("/usage/"))
    assert "Requests 4 and 1,236 refused : error rate 99.7 %" in text
    first, second = re.findall(r"(\S+ \S+ exhausted|Rate \S+ exceeded) (\d+) ([\d,]+) \S+ \S+ \S+ (\S+)", text)
    assert first == ("Rate limit exceeded", "429", "1,234", str(refused.last_request))
    assert second[:3] == ("Credit balance exhausted", "402", "2")
    assert "Tenant inactive" not in text
    assert "Model not allowed" not in text


def test_refusals_follow_the_filters(acme, used, refused):
    text = text_of(acme.client().get("/usage/", {"key": str(acme.key.id), "days": "90"}))
    assert "and 1,239 refused : error rate 100.0 %" in text
    assert "Credit balance" not in text
    assert "Refused requests" not in text_of(acme.client().get("/usage/", {"model": "large"}))


def test_an_error_rate_is_never_rounded_to_nothing():
    assert [error_rate(*counts) for counts in ((0, 0), (0, 5), (1, 5_000), (1, 1))] == ["–", "0 %", "< 0.1 %", "50.0 %"]


def test_queries_do_not_grow_with_rows(acme, used, django_assert_num_queries):
    client = acme.client()
    for number in range(8):
        used(acme, model=f"model-{number}")
        keys.create_key(tenant=acme.tenant, project=acme.project, name=f"key {number}", scopes=["inference"])
    made = used(acme)
    client.get("/usage/")
    with django_assert_num_queries(13):
        client.get("/usage/")
    with django_assert_num_queries(5):
        client.get("/usage/export.csv")
    with django_assert_num_queries(11):
        client.get(f"/usage/requests/{made}/")
