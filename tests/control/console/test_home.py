"""The tenant's first page: figures, the step that is due, and who sees what."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from base.ids import uuid7
from billing.models import BudgetWindow, SpendBudget, UsageRollup, Wallet
from billing.periods import minute_of
from billing.services import plans
from billing.services.budgets import SpendLimits, period_of
from gateway.runtime.models import RefusalCount
from tenancy.models import APIKey, Membership, User
from tenancy.services import keys, members
from tenancy.services.restrictions import Restrictions

pytestmark = pytest.mark.django_db


def text_of(response):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", response.content.decode()))


def steps_of(response):
    return re.findall(r'class="panel step" aria-label="([^"]*)"', response.content.decode())


def join(party, role="member"):
    user = User.objects.create_user(f"{role}{uuid7().hex[-6:]}@acme.example")
    Membership(tenant=party.tenant, user=user, role=role).save(force_insert=True)


def test_steps_are_there_while_they_are_due_and_for_who_can_take_them(acme, used, people):
    APIKey.objects.of(acme.tenant).update(revoked_at=timezone.now())
    client = acme.client()
    assert steps_of(client.get("/")) == ["Make the first key", "Invite somebody"]
    client.post("/keys/new/", {"name": "ci", "access": "inference", "project": str(acme.project.id)})
    assert steps_of(client.get("/")) == ["Send the first request", "Invite somebody"]
    members.invite_member(tenant=acme.tenant, email="x@acme.example")
    used(acme)
    assert steps_of(client.get("/")) == []
    for role in ("billing", "member"):
        assert steps_of(people(role).get("/")) == []


def test_an_empty_wallet_is_said_with_the_next_credit_and_a_plan_that_is_missing(acme, used, people):
    join(acme)
    used(acme)
    Wallet.objects.filter(tenant=acme.tenant).update(posted=0)
    response = acme.client().get("/")
    assert steps_of(response) == ["There is no credit left"]
    assert "The next 100.00 come on" in text_of(response)
    assert 'class="button" href="/billing/"' in response.content.decode()
    assert "/billing/" not in people("member").get("/").content.decode()
    plans.end(acme.tenant.pk, at_once=True)
    assert steps_of(acme.client().get("/")) == ["There is no plan"]


def test_credit_that_runs_out_before_the_next_is_said(acme, used):
    """At 30 credits a day, 60 last for two days; the month's next credit is further away."""
    join(acme)
    used(acme)
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    common = {"tenant": acme.tenant.id, "project": acme.project.id, "model": "m", "requests": 1}
    for hours in (50, 2):
        UsageRollup.objects.create(hour=now - timedelta(hours=hours), charge=31_000_000, **common)
    Wallet.objects.filter(tenant=acme.tenant).update(posted=60_000_000)
    response = acme.client().get("/")
    assert steps_of(response) == ["Credit runs out soon"]
    assert re.search(r"Lasts 2 days at the rate of the last week", text_of(response))
    Wallet.objects.filter(tenant=acme.tenant).update(posted=6_000_000_000)
    response = acme.client().get("/")
    assert steps_of(response) == []
    assert "the next credit comes before" in text_of(response)


def test_a_plan_that_ends_promises_no_further_month(acme):
    ended = plans.end(acme.tenant.pk)
    text = text_of(acme.client().get("/"))
    assert f"Plan Free Ends on {ended.granted_until:%-d %b %Y}: ask your operator" in text


def test_a_key_that_expires_soon_is_said_to_who_may_change_it(acme, used, people):
    join(acme)
    used(acme)
    end = timezone.now() + timedelta(days=2)
    keys.create_key(tenant=acme.tenant, project=acme.project, name="ends", scopes=["inference"], expires_at=end)
    assert steps_of(acme.client().get("/")) == ["The key “ends” expires"]
    assert steps_of(people("member").get("/")) == []


def test_budgets_stand_with_their_use_the_nearest_to_its_end_first(acme, used):
    for name, limit in (("wide", 100_000_000), ("close", 1_000_000)):
        spend = Restrictions(spend=SpendLimits(day_limit=limit))
        key, _ = keys.create_key(
            tenant=acme.tenant, project=acme.project, name=name, scopes=["inference"], restrictions=spend
        )
        budget = SpendBudget.objects.get(subject=str(key.pk), window="day")
        start = minute_of(period_of(budget, timezone.now()).start)
        BudgetWindow.objects.create(wallet=budget.wallet, number=budget.number, start=start, spent=900_000, held=0)
    page = acme.client().get("/").content.decode()
    rows = re.findall(r"<tr>(?:(?!</tr>).)*credits a day.*?</tr>", page, re.DOTALL)
    assert [re.search("close|wide", row)[0] for row in rows] == ["close", "wide"]
    assert "90.0 %" in rows[0]
    assert 'class="state warn"' in rows[0]
    assert "Requests at once" in page


def test_refusals_of_a_day_stand_with_their_rate_and_lead_to_their_requests(acme, used):
    used(acme)
    now = timezone.now()
    for age, code in ((timedelta(hours=1), "rate_limit_exceeded"), (timedelta(hours=30), "context_length_exceeded")):
        RefusalCount(
            id=uuid7(), minute=now - age, tenant=acme.tenant, api_key=acme.key, status=429, code=code, model="m",
            count=3, last_request=uuid7(), last_at=now - age,
        ).save(force_insert=True)  # fmt: skip
    response = acme.client().get("/")
    assert "Refused in 24 h 3 error rate 75.0 %" in text_of(response)
    assert "Rate limit exceeded" in text_of(response)
    assert "Context length" not in text_of(response)
    assert "/requests/?hours=24&amp;state=refused" in response.content.decode()


def test_recent_requests_lead_to_their_pages(acme, used):
    made = used(acme, finish="stop")
    page = acme.client().get("/").content.decode()
    assert f'href="/requests/{made}/"' in page
    assert "</svg>stop</span>" in page


def test_roles_are_told_apart(people):
    text = text_of(people("billing").get("/"))
    assert "Who may do what; you are billing" in text
    assert "Billing (you)" in text


def test_queries_are_few(acme, used, people, django_assert_max_num_queries):
    client = acme.client()
    for number in range(8):
        used(acme, model=f"model-{number}")
        keys.create_key(tenant=acme.tenant, project=acme.project, name=f"key {number}", scopes=["inference"])
    client.get("/")
    with django_assert_max_num_queries(15):
        client.get("/")
