"""Every page opens, in a number of queries that does not grow with its rows."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from base.ids import uuid7
from billing.models import (
    CreditGrant,
    Hold,
    LedgerTransfer,
    Plan,
    PlanVersion,
    RateCard,
    RateCardVersion,
    Subscription,
    UsageDay,
    UsageRecord,
    Wallet,
)
from billing.services import cards, credits, plans, wallets
from billing.writer.apply import apply_now
from tests.billing.conftest import make_tenant
from tests.billing.writer.world import reserve, settle

pytestmark = [pytest.mark.django_db]

MODELS = [
    CreditGrant, Hold, LedgerTransfer, Plan, PlanVersion, RateCard, RateCardVersion, Subscription, UsageRecord, Wallet,
]  # fmt: skip
names = pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.model_name)


@pytest.fixture
def populated(tenant, wallet, give, hold, record):
    """Some of everything; call it for more."""

    def populate():
        other = make_tenant()
        plans.ensure_default_plans()
        plans.subscribe(other.pk, "free")
        filled = wallets.open_wallet(tenant_id=other.pk)
        credits.grant(wallet_id=filled.pk, amount=9, kind="paid", key=f"k{other.slug}")
        plan = Plan.objects.create(slug=other.slug, name=other.slug)
        free = plans.latest_version("free")
        plans.publish_version(plan, **{term: getattr(free, term) for term in plans.TERMS})
        cards.publish(other.slug, {0: {"input": 2, "output": 3}, 100: {"input": 4, "output": 5}})
        give(100)
        hold(1)
        record(tenant=other.pk)

    populate()
    return populate


def count_queries(client, url):
    with CaptureQueriesContext(
        connection,
    ) as captured:
        response = client.get(url)
    assert response.status_code == 200, response
    return len(captured), response.content.decode()


@names
def test_list_opens_in_a_fixed_number_of_queries(admin_client, populated, model):
    url = reverse(f"admin:billing_{model._meta.model_name}_changelist")
    admin_client.get(url)  # session and content types are warm from here on
    before, _ = count_queries(admin_client, url)
    for _ in range(3):
        populated()
    after, _ = count_queries(admin_client, url)
    assert after == before
    assert after <= 12


@names
def test_detail_opens_in_a_fixed_number_of_queries(admin_client, populated, model):
    row = model.objects.order_by("pk").first()
    url = reverse(f"admin:billing_{model._meta.model_name}_change", args=[row.pk])
    admin_client.get(url)
    before, _ = count_queries(admin_client, url)
    for _ in range(3):
        populated()
    after, _ = count_queries(admin_client, url)
    assert after == before
    assert after <= 14


@pytest.mark.parametrize("model", [Hold, UsageRecord, Wallet], ids=lambda model: model._meta.model_name)
def test_read_only_rows_have_no_way_to_change_them(admin_client, populated, model):
    name = model._meta.model_name
    row = model.objects.first()
    assert admin_client.get(reverse(f"admin:billing_{name}_add")).status_code == 403
    assert admin_client.get(reverse(f"admin:billing_{name}_delete", args=[row.pk])).status_code == 403
    assert admin_client.post(reverse(f"admin:billing_{name}_change", args=[row.pk]), {}).status_code == 403


@pytest.mark.parametrize(
    "model", [CreditGrant, LedgerTransfer, PlanVersion, RateCardVersion], ids=lambda model: model._meta.model_name
)
def test_made_rows_are_never_changed_or_deleted(admin_client, populated, model):
    name = model._meta.model_name
    row = model.objects.first()
    assert admin_client.get(reverse(f"admin:billing_{name}_delete", args=[row.pk])).status_code == 403
    assert admin_client.post(reverse(f"admin:billing_{name}_change", args=[row.pk]), {}).status_code == 403


def test_wallet_shows_its_ledger_with_the_running_balance(admin_client, wallet, give):
    give(1_500_000, reason="welcome")
    give(250_000)
    _, page = count_queries(admin_client, reverse("admin:billing_wallet_change", args=[wallet.pk]))
    text = " ".join(re.sub("<[^>]*>", " ", page).split())
    assert "Grant 0.25 1.75" in text
    assert "Grant 1.5 1.5 welcome" in text


def test_usage_tells_reasoning_as_output(admin_client, record):
    record(input_tokens=7, output_tokens=5, reasoning_tokens=1_200)
    page = admin_client.get(reverse("admin:billing_usagerecord_changelist")).content.decode()
    assert "7 in, 1,205 out" in page


def test_usage_can_be_filtered_by_model_and_found_by_request(admin_client, record):
    kept = record(model="kept")
    other = record(model="other")
    sums = dict.fromkeys(("requests", "input_tokens", "cache_read_tokens", "output_tokens", "charge"), 1)
    UsageDay.objects.create(day=timezone.now().date(), model="kept", **sums)
    url = reverse("admin:billing_usagerecord_changelist")
    page = admin_client.get(url, {"model": "kept"}).content.decode()
    assert str(kept.request) in page
    assert str(other.request) not in page
    page = admin_client.get(url, {"q": str(other.request)}).content.decode()
    assert str(other.request) in page
    assert str(kept.request) not in page


@pytest.mark.parametrize("written", ["{}", " {} ", "chatcmpl-{.hex}", "resp_{.hex}"])
def test_a_request_is_found_by_whatever_its_answer_called_it(admin_client, record, written):
    wanted, other = record(), record()
    url = reverse("admin:billing_usagerecord_changelist")
    page = admin_client.get(url, {"q": written.format(wanted.request)}).content.decode()
    assert str(wanted.request) in page
    assert str(other.request) not in page


@pytest.mark.parametrize(
    "model", [UsageRecord, LedgerTransfer, CreditGrant, Hold], ids=lambda model: model._meta.model_name
)
def test_a_search_by_tenant_finds_its_rows_and_walks_an_index(tenant, give, hold, record, model):
    """Comparing upper-cased texts of ids took 3 s at a million rows."""
    give(5), hold(5), record()
    pages = admin.site.get_model_admin(model)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")  # a plan that can't do without still has it
    for searched, is_found in ((tenant.name.upper(), True), ("nobody's", False), (str(uuid7()), False)):
        rows, _ = pages.get_search_results(None, model.objects.all(), searched)
        assert rows.exists() == is_found
        if connection.vendor == "postgresql":
            assert f"Seq Scan on {model._meta.db_table}" not in rows.order_by(*pages.ordering)[:100].explain()


@pytest.mark.parametrize("model", [UsageRecord, LedgerTransfer, Hold], ids=lambda model: model._meta.model_name)
def test_no_list_counts_a_whole_history(admin_client, populated, model):
    with CaptureQueriesContext(connection) as captured:
        assert admin_client.get(reverse(f"admin:billing_{model._meta.model_name}_changelist")).status_code == 200
    table = f'FROM "{model._meta.db_table}"'
    counts = [query["sql"] for query in captured if "COUNT(" in query["sql"] and table in query["sql"]]
    assert counts
    assert all("LIMIT 10000" in sql for sql in counts)
    assert not any("gateway_tenant" in sql for sql in counts), "each row counted looked up a name"


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("model", "query", "index"),
    [
        (UsageRecord, {"waived": True}, "usage_record_waived"),
        (UsageRecord, {"exact": False}, "usage_record_estimated"),
        (LedgerTransfer, {"code": 5}, "ledger_transfer_no_charges"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_rare_is_found_by_an_index_of_its_own(wallet, give, model, query, index):
    """A million records were read to find the 100 that were waived."""
    give(1000)
    made = [reserve(wallet, 1) for _ in range(100)]
    apply_now(made)
    apply_now([settle(one, 1) for one in made])
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {model._meta.db_table}")
        cursor.execute("SET LOCAL enable_seqscan = off")  # of a small table
    plan = model.objects.filter(**query).order_by(*admin.site.get_model_admin(model).ordering)[:100].explain()
    assert index in plan


@pytest.mark.parametrize("model", [CreditGrant, LedgerTransfer], ids=lambda model: model._meta.model_name)
def test_a_form_about_a_wallet_offers_no_list_of_all(admin_client, wallet, model):
    for _ in range(3):
        wallets.open_wallet(tenant_id=make_tenant().pk)
    url = reverse(f"admin:billing_{model._meta.model_name}_add")
    queries, page = count_queries(admin_client, f"{url}?wallet={wallet.pk}")
    assert re.findall(r'<option value="([0-9a-f-]{36})"', page) == [str(wallet.pk)]
    assert queries <= 6


def test_wallets_to_choose_from_are_found_in_a_fixed_number_of_queries(admin_client, wallet, tenant):
    choices = reverse("admin:autocomplete")
    asked = {"app_label": "billing", "model_name": "creditgrant", "field_name": "wallet", "term": "tenant"}
    admin_client.get(choices, asked)
    for _ in range(3):
        wallets.open_wallet(tenant_id=make_tenant().pk)
    with CaptureQueriesContext(connection) as captured:
        found = admin_client.get(choices, asked).json()["results"]
    assert str(wallet) in [one["text"] for one in found]
    assert len(captured) <= 4
