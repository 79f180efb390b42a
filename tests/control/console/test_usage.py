"""The usage page, its chart, its CSV, and one request."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from datetime import timedelta
from urllib.parse import urlencode

import pytest
from django.http import QueryDict
from django.utils import timezone

from base.ids import uuid7
from billing.models import Wallet
from billing.selectors import usage as usage_sums
from billing.services import cards
from control.console.period import asked_of
from control.console.refusals import error_rate
from control.console.tenancy import Place
from control.console.usage import Explored
from control.screens.figures import cell
from gateway.runtime.models import RefusalCount, RefusedRequest
from tenancy.models import User
from tenancy.services import keys, tenants
from tenancy.services.access import Access
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
    assert "Requests 1 in 30 days" in text
    assert "Tokens 45 5 of them written" in text
    assert "Cached 75.0 % of the tokens that were asked" in text


def test_a_tenant_without_usage_gets_the_next_command(acme):
    text = text_of(acme.client().get("/usage/"))
    assert "No usage in 30 days" in text
    assert "curl http://testserver/v1/chat/completions" in text


def test_the_chart_has_a_table_with_the_same_numbers(acme, used):
    used(acme, charge=2_500_000)
    used(acme, charge=500_000, model="large")
    page = acme.client().get("/usage/").content.decode()
    assert page.count('class="bar"') == 30
    rows = re.findall(r'<tr><th scope="row">\d+ \w+</th>.*?</tr>', page)
    assert len(rows) == 1
    assert re.findall(r"<td>([^<]*)</td>", rows[0]) == ["2.5", "0.5", "3"]


@pytest.mark.parametrize(
    ("query", "bars"),
    [
        ({"days": "7"}, 7),
        ({"days": "90"}, 90),
        ({"days": "1000"}, 30),
        ({"days": "x"}, 30),
        ({"days": "1"}, 24),
        ({"days": "7", "bucket": "hour"}, 7),  # hours would be too many bars
        ({"from": "2026-01-15", "to": "2026-03-02", "bucket": "month"}, 3),
        ({"from": "2026-01-31", "to": "2026-01-01"}, 24),  # a day for its hours
        ({"from": "2026-01-01", "to": "2026-01-04", "bucket": "hour"}, 96),
        ({"from": "0001-01-01", "to": "9999-12-31"}, 30),
    ],
    ids=str,
)
def test_the_range_stands_in_the_address(acme, used, query, bars):
    used(acme)
    view = explored(acme, **query)
    assert len(list(view.asked.starts())) == len(view.chart().bars) == bars


def explored(party, **query):
    data = QueryDict(urlencode(query))
    return Explored(asked_of(Place(Access(party.tenant, "owner", party.owner), ()), data))


def test_a_view_is_the_same_after_its_own_address(acme):
    query = {"from": "2026-01-15", "to": "2026-03-02", "measure": "refused", "group": "key", "bucket": "month"}
    asked = explored(acme, **query, model="large", key=str(acme.key.id), member=str(acme.owner.id)).asked
    assert asked_of(asked.place, QueryDict(asked.query()[1:])) == asked
    assert asked.query().count("&") == 7


def test_filters_apply_to_everything_and_stay_in_the_links(acme, used):
    second, _ = keys.create_key(tenant=acme.tenant, project=acme.project, name="second", scopes=["inference"])
    used(acme, charge=1_000_000)
    used(acme, charge=4_000_000, model="large")
    client = acme.client()
    response = client.get("/usage/", {"model": "large", "key": str(acme.key.id), "days": "7"})
    text = text_of(response)
    assert "Spent 4 credits in 7 days" in text
    page = response.content.decode()
    assert f"/usage/export.csv?days=7&amp;model=large&amp;key={acme.key.id}" in page
    assert f"?days=90&amp;model=large&amp;key={acme.key.id}" in page
    assert "Nothing in this range with this filter" in text_of(client.get("/usage/", {"key": str(second.id)}))


def test_measures(acme, used):
    used(acme)
    for measure, total in (("tokens", "45"), ("requests", "1"), ("cached", "75 %")):
        page = acme.client().get("/usage/", {"measure": measure}).content.decode()
        row = re.search(r'<tr><th scope="row">\d+ \w+</th>.*?</tr>', page)[0]
        assert re.findall(r"<td>([^<]*)</td>", row) == [total]


def test_groups(acme, used, people):
    """Each request counts to one group, whatever the split; a key counts to who made it."""
    people("member")
    member = User.objects.get(email="member@acme.example")
    side = tenants.create_project(tenant=acme.tenant, name="Side")
    mine, _ = keys.create_key(tenant=acme.tenant, project=side, name="mine", scopes=["inference"], created_by=member)
    used(acme, charge=1_000_000)
    used(acme, charge=2_000_000, key=False)
    used(replace(acme, key=mine, project=side), charge=4_000_000)
    found = {
        group: {label: sums.charge // 1_000_000 for label, sums in explored(acme, group=group).groups.items()}
        for group in ("model", "key", "project", "member")
    }
    assert found == {
        "model": {"smollm2-135m-instruct": 7},
        "key": {f"mine …{mine.last_four}": 4, "Chat": 2, f"all …{acme.key.last_four}": 1},
        "project": {"Side": 4, "Default": 3},
        "member": {"member@acme.example": 4, "owner@acme.example": 3},
    }
    narrowed = {
        "member": explored(acme, member=str(member.id)).total.charge,
        "project": explored(acme, project=str(side.id)).total.charge,
        "both": explored(acme, member=str(member.id), key=str(acme.key.id)).total.charge,
        "nobody": explored(acme, member=str(uuid7())).total.charge,
    }
    assert explored(acme, member=str(acme.owner.id)).total.charge == 3_000_000  # their key, and their chats
    assert narrowed == {"member": 4_000_000, "project": 4_000_000, "both": 0, "nobody": 0}


def test_endpoints_and_the_chats_members_are_told_apart_by_the_newest_records(acme, people, used, monkeypatch):
    """What is older than the bound is one group, so that sums stay those of the hours."""
    people("member")
    member = User.objects.get(email="member@acme.example")
    used(acme, key=False, endpoint="responses", charge=1_000_000)
    used(replace(acme, owner=member), key=False, endpoint="responses", charge=2_000_000)
    used(acme, endpoint="embeddings", charge=4_000_000)
    RefusedRequest(
        id=uuid7(), at=timezone.now(), tenant=acme.tenant, endpoint="chat_completions", status=400, code="x",
        message="", user=member.id,
    ).save(force_insert=True)  # fmt: skip
    RefusalCount(
        id=uuid7(), minute=timezone.now().replace(second=0, microsecond=0), tenant=acme.tenant, status=400, code="x",
        count=3, last_request=uuid7(), last_at=timezone.now(),
    ).save(force_insert=True)  # fmt: skip

    def told(**query):
        return {
            label: (sums.charge // 1_000_000, sums.requests, sums.refused)
            for label, sums in explored(acme, **query).groups.items()
        }

    assert told(group="endpoint", bucket="day") == {
        "responses": (3, 2, 0), "embeddings": (4, 1, 0), "chat.completions": (0, 0, 1), "Earlier requests": (0, 0, 2),
    }  # fmt: skip
    assert told(group="endpoint", member=str(member.id)) == {"responses": (2, 1, 0)}
    assert told(group="member") == {
        "member@acme.example": (2, 1, 1), "owner@acme.example": (5, 2, 0), "Chat": (0, 0, 2),
    }  # fmt: skip
    assert "not noted" not in told(group="endpoint", bucket="hour", days="1")
    monkeypatch.setattr(usage_sums, "MOST_RECORDED", 1)
    bounded = explored(acme, group="endpoint")
    assert {label: sums.charge // 1_000_000 for label, sums in bounded.groups.items() if sums.charge} == {
        "embeddings": 4, "Earlier requests": 3,
    }  # fmt: skip
    assert bounded.total.charge == 7_000_000
    assert "Told apart are the newest" in bounded.table().note
    page = acme.client().get("/usage/shown.csv", {"group": "endpoint"})
    assert "embeddings,1" in page.content.decode()


def test_a_bar_leads_to_its_requests(acme, used):
    used(acme)
    view = explored(acme, days="7", model="small", key=str(acme.key.id), measure="refused")
    asked = view.asked
    first = QueryDict(view.chart().bars[0].href.partition("?")[2])
    assert first.dict() == {
        "since": f"{asked.first}T00:00:00Z",
        "until": f"{asked.first + timedelta(days=1)}T00:00:00Z",
        "model": "small",
        "key": str(acme.key.id),
        "state": "refused",
    }


def test_csv_is_exact(acme, used):
    used(acme, charge=1_234_567)
    used(acme, charge=1, key=False)
    response = acme.client().get("/usage/export.csv", {"days": "7"})
    assert response["content-type"].startswith("text/csv")
    assert 'filename="usage-acme-' in response["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(response.content.decode())))
    found = {(row["key_name"], row["credits"], row["cached_tokens"], row["api_key"]) for row in rows}
    assert found == {("all", "1.234567", "30", str(acme.key.id)), ("chat", "0.000001", "30", "")}


def test_what_is_shown_is_there_as_csv(acme, used, refused):
    used(acme, charge=1_234_567)
    response = acme.client().get("/usage/shown.csv", {"days": "7", "group": "key"})
    assert '-by-key.csv"' in response["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(response.content.decode())))
    sums = {row["key"]: (row["credits"], row["requests"], row["refused"]) for row in rows}
    assert sums == {f"all …{acme.key.last_four}": ("1.234567", "1", "1234"), "Chat": ("0", "0", "2")}


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
    text = text_of(people("billing").get(f"/requests/{made}/"))
    assert "Input 10 – – Cached input 30 – – Output 5 – – Charge 0.000042" in text
    assert "The first usable target." in text
    assert "large · passed over: not in the plan" in text
    assert "small on small-1 · chosen" in text
    assert "It was tried 2 times:" in text
    assert "medium on medium-1 at n1 · failed: its worker was lost" in text
    assert "small on small-1 · served it" in text
    assert "First token after 20 ms, 120 ms in all, 40 tokens/s while it decoded" in text


def test_a_bill_adds_up_line_by_line(acme, used):
    card = cards.publish("m", {0: {"input": 10_000_000, "cache_read": 1_000_000, "output": 40_000_000}}, request_fee=7)
    made = used(acme, charge=337, card_version=card.pk)
    text = text_of(acme.client().get(f"/requests/{made}/"))
    assert "Input 10 10 0.0001 Cached input 30 1 0.00003 Output 5 40 0.0002 Request fee – – 0.000007" in text
    assert "Charge 0.000337" in text


def test_a_request_that_runs_has_a_page(acme, other):
    made = open_hold(Wallet.objects.get(tenant=acme.tenant), 1_500_000)
    text = text_of(acme.client().get(f"/requests/{made.id}/"))
    assert "1.5 credits are held for it" in text
    assert other.client().get(f"/requests/{made.id}/").status_code == 404


def test_requests_of_others_are_unknown(acme, other, used):
    made = used(other)
    assert acme.client().get(f"/requests/{made}/").status_code == 404
    assert acme.client().get(f"/requests/{uuid7()}/").status_code == 404


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
    assert "Refused 1,236 error rate 99.7 %" in text
    first, second = re.findall(r"(\S+ \S+ exhausted|Rate \S+ exceeded) (\d+) ([\d,]+) ", text)
    assert (first, second) == (("Rate limit exceeded", "429", "1,234"), ("Credit balance exhausted", "402", "2"))
    assert f"/requests/{refused.last_request}/" in acme.client().get("/usage/").content.decode()
    assert "Tenant inactive" not in text
    assert "Model not allowed" not in text


def test_refusals_follow_the_filters(acme, used, refused):
    text = text_of(acme.client().get("/usage/", {"key": str(acme.key.id), "days": "90"}))
    assert "Refused 1,239 error rate 100.0 %" in text
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
    for group, queries in {"model": 12, "key": 12, "project": 12, "member": 14, "endpoint": 13}.items():
        with django_assert_num_queries(queries):
            client.get("/usage/", {"group": group})
    with django_assert_num_queries(6):
        client.get("/usage/export.csv")
    with django_assert_num_queries(12):
        client.get(f"/requests/{made}/")
