"""The audit trail in words: filters in the address, credits in credits, links to the objects."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.http import QueryDict
from django.urls import reverse
from django.utils import timezone

from base.units import MICRO
from billing.models import CreditGrant, Wallet
from billing.services import cards, credits, plans
from control.screens import audit as trail
from tenancy.audit.tracked import TRACKED
from tenancy.models import AuditEvent, Tenant
from tenancy.services import keys, tenants
from tests.control.operators import browser_of, operator, text_of

pytestmark = pytest.mark.django_db
PATH = "/operate/audit/"


@pytest.fixture
def root(db):
    return browser_of(operator())


def last(action):
    return AuditEvent.objects.unscoped().filter(action=action).order_by("-pk").first()


def told(action):
    return list(map(str, trail.changes_of(last(action), trail._names_of([last(action)]))))


def test_every_tracked_kind_has_its_words_and_a_kind_to_filter_by():
    assert set(trail.NOUNS) == {one.word for one in TRACKED}
    grouped = {word for _, words in trail.KINDS.values() for word in words}
    assert {action.partition(".")[0] for action in trail.ACTIONS} == grouped


def test_credits_are_told_in_credits(acme):
    wallet = Wallet.objects.get(tenant=acme.tenant)
    credits.grant(wallet_id=wallet.pk, amount=1_234_500_000, kind=CreditGrant.Kind.PAID, key="g", reason="invoice 7")
    assert told("credit.granted") == ["Credits: 1,234.5 credits", "Reason: invoice 7"]
    plan = plans.latest_version("free").plan
    plans.publish_version(plan, monthly_credits=250 * MICRO, multiplier_bp=12_500)
    assert {"Monthly credits: 250 credits", "Price factor: × 1.25"} <= set(told("plan_version.created"))


def test_of_prices_what_changed_is_told_with_its_class(terms):
    cards.publish("own", {0: {"input": 2 * MICRO, "output": 8 * MICRO}})
    cards.publish(
        "own", {0: {"input": 2_500_000, "output": 8 * MICRO}}, effective_from=timezone.now() + timedelta(days=1)
    )
    assert "Input: 2 → 2.5 credits for a million tokens" in told("prices.published")
    assert not [one for one in told("prices.published") if one.startswith("Output")]


def test_ids_are_told_as_names_and_choices_as_words(acme):
    keys.create_key(tenant=acme.tenant, project=acme.project, name="ci", created_by=acme.owner)
    assert "Project: Default" in told("key.created")
    tenants.set_settings(tenant=acme.tenant, response_storage="forbidden", file_days=3)
    told_of = ["Stored responses: Where a request asks for it → Never", "Days of files: none → 3"]
    assert told("tenant.changed") == told_of
    tenants.deactivate_tenant(tenant=Tenant.objects.get(pk=acme.tenant.pk))
    event = last("tenant.changed")
    assert trail.phrase_of(event) == "suspended the tenant"
    assert told("tenant.changed") == []


def test_the_operators_trail_leads_to_the_objects(root, acme, other, django_assert_max_num_queries):
    with django_assert_max_num_queries(15):
        text = text_of(root.get(PATH))
    assert f'Made the key <a href="{reverse("operate-tenant-keys", args=["acme"])}">all (' in text
    assert f'of <a href="{reverse("operate-tenant", args=["acme"])}">Acme</a>' in text
    assert not re.findall(r">[^<]*[0-9a-f]{8}-[0-9a-f]{4}-7[^<]*<", text)
    assert "micro" not in text
    assert "µcr" not in text


def asked(**data):
    query = QueryDict(mutable=True)
    query.update({name.rstrip("_"): value for name, value in data.items()})
    return trail.Asked.of(query)


def test_filters_stand_in_the_address(acme, other):
    credits.adjust(wallet_id=Wallet.objects.get(tenant=acme.tenant).pk, amount=MICRO, key="k", actor="x", reason="y")
    events = AuditEvent.objects.unscoped()
    today = timezone.now().date()

    def found(**data):
        return {event.action for event in asked(**data).rows(events)}

    assert found(action="credit") == {"credit.adjusted", "subscription.created", "wallet.created"}
    assert found(action="key.created") == {"key.created"}
    assert found(action="keys") == {"key.created"}
    assert found(object=str(acme.key.pk)) == {"key.created"}
    assert found(object="all (sk") == {"key.created"}
    assert found(who=acme.owner.email.upper()) == {"invitation.accepted"}
    assert found(who="nobody") == set()
    assert found(from_=str(today)) == found() == found(to=str(today))
    assert found(to=str(today - timedelta(days=1))) == set() == found(from_=str(today + timedelta(days=1)))
    assert found(action="nonsense", before="x", from_="x", to="9999-12-31") == found()
    first = asked(who="a@x", action="keys", object="o", from_=str(today), before=str(acme.key.pk))
    assert asked(**dict(QueryDict(first.query()[1:]).items())) == first


def test_a_tenants_trail_is_its_own_on_both_sides(root, acme, other):
    text = text_of(root.get(reverse("operate-tenant-audit", args=["acme"])))
    assert "owner@acme.example" in text
    assert "owner@other.example" not in text
    own = text_of(acme.client().get("/audit/"))
    assert "Made the key <strong>all (" in own
    assert "/operate/" not in own
    assert "owner@other.example" not in own
    assert browser_of(operator("viewer")).get(PATH).status_code == 200
    assert acme.client().get(PATH).status_code == 404
