from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from billing import selectors
from billing.ids import uuid7
from billing.models import OutboxEvent
from billing.services import credits, rollups
from tests.billing.conftest import make_tenant, roll

pytestmark = [pytest.mark.money, pytest.mark.django_db]


def test_balance_shows_what_is_held_and_what_expires_next(tenant, give, hold):
    give(100)
    soon = give(30, expires_at=timezone.now() + timedelta(days=1))
    give(20, expires_at=timezone.now() + timedelta(days=2))
    hold(40)
    found = selectors.balance(tenant.pk)
    assert (found.posted, found.held, found.available) == (150, 40, 110)
    assert (found.expiring, found.expires_at) == (30, soon.expires_at)


def test_balance_leaves_out_what_expired_before_it_is_rolled(tenant, wallet, give, hold, clock):
    give(100, expires_at=timezone.now() + timedelta(days=1))
    give(50)
    hold(40)
    clock.set(timezone.now() + timedelta(days=2))
    before = selectors.balance(tenant.pk).available
    roll(wallet)
    assert before == selectors.balance(tenant.pk).available == 50


def test_balance_of_a_tenant_without_wallet_is_none(db):
    assert selectors.balance(make_tenant().pk) is None


def test_ledger_runs_backwards_from_the_posted_balance(wallet, give):
    for amount in (100, 20, 3):
        give(amount)
    credits.adjust(wallet_id=wallet.pk, amount=-50, key="a", actor="ada", reason="r")
    page = selectors.ledger_of(wallet.pk, limit=3)
    assert [(line.amount, line.balance) for line in page.lines] == [(-50, 73), (3, 123), (20, 120)]
    rest = selectors.ledger_of(wallet.pk, limit=3, before=page.next)
    assert [(line.amount, line.balance) for line in rest.lines] == [(100, 100)]
    assert rest.next is None


def test_ledger_never_reads_the_whole_table(wallet, give):
    """With an OR of its two sides PostgreSQL read all of it: 2.2 s at a million transfers."""
    if connection.vendor != "postgresql":
        pytest.skip("a plan of PostgreSQL")
    give(100)
    with CaptureQueriesContext(connection) as seen:
        page = selectors.ledger_of(wallet.pk, limit=1)
        selectors.ledger_of(wallet.pk, limit=1, before=selectors.LedgerCursor(page.lines[0].transfer.pk, 0))
    pages = [query["sql"] for query in seen if "UNION ALL" in query["sql"]]
    assert len(pages) == 2
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")  # a plan that can't do without still has it
        for sql in pages:
            cursor.execute("EXPLAIN " + sql)
            assert not [line for (line,) in cursor.fetchall() if "Seq Scan on billing_ledgertransfer" in line]


def test_ledger_takes_two_queries_whatever_its_length(wallet, give, django_assert_num_queries):
    for amount in range(1, 6):
        give(amount)
    for limit in (1, 5):
        with django_assert_num_queries(2):
            assert len(selectors.ledger_of(wallet.pk, limit=limit).lines) == limit


def test_ledger_of_nothing_is_empty(wallet):
    assert selectors.ledger_of(wallet.pk).lines == []
    assert selectors.ledger_of(uuid7()).lines == []


def rolled_up(*records):
    OutboxEvent.objects.create(topic="usage", payload={"records": [str(one.request) for one in records]})
    rollups.consume_usage()


def test_usage_by_day_groups_as_asked(tenant, record):
    one, two = uuid7(), uuid7()
    late = datetime(2026, 5, 1, 23, 59, 59, tzinfo=UTC)
    rolled_up(
        record(at=late, api_key=one, model="m", charge=1, output_tokens=5),
        record(at=late, api_key=two, model="m", charge=2),
        record(at=late, api_key=one, model="n", charge=4),
        record(at=late + timedelta(seconds=1), api_key=one, model="m", charge=8),
        record(at=late, api_key=one, model="m", charge=16, tenant=make_tenant().pk),
    )
    first, second = date(2026, 5, 1), date(2026, 5, 2)

    def charges(**options):
        rows = selectors.usage_by_day(tenant.pk, first, second, **options)
        return [(row.day, row.model, row.api_key, row.charge) for row in rows]

    assert charges() == [(first, None, None, 7), (second, None, None, 8)]
    assert charges(by=["model"]) == [(first, "m", None, 3), (first, "n", None, 4), (second, "m", None, 8)]
    assert charges(by=["api_key"], model="m", api_key=one) == [(first, None, one, 1), (second, None, one, 8)]
    assert [row.charge for row in selectors.usage_by_day(None, first, first)] == [23]
    assert selectors.usage_by_day(tenant.pk, first, first)[0].output_tokens == 5
    assert selectors.usage_by_day(tenant.pk, date(2026, 4, 1), date(2026, 4, 30)) == []
    with pytest.raises(ValueError, match="colour"):
        selectors.usage_by_day(tenant.pk, first, first, by=["colour"])


def test_recent_usage_is_newest_first_with_the_last_revision(tenant, record):
    now = timezone.now()
    old = record(at=now - timedelta(days=3), charge=1)
    middle = record(at=now - timedelta(hours=1), charge=2)
    corrected = record(at=now - timedelta(hours=1), request=middle.request, revision=1, charge=3)
    new = record(at=now, model="n", charge=4)
    record(at=now, tenant=make_tenant().pk)
    assert selectors.recent_usage(tenant.pk) == [new, corrected, old]
    assert selectors.recent_usage(tenant.pk, limit=1, before=new.request) == [corrected]
    assert selectors.recent_usage(tenant.pk, model="n") == [new]


def test_a_page_of_usage_walks_an_index_from_its_own_first_row(tenant, record):
    """Neither the history behind a page nor the day that it lies in is read or sorted for it."""
    if connection.vendor != "sqlite":
        pytest.skip("a small table's plan says nothing there")
    found = record()
    with CaptureQueriesContext(connection) as captured:
        selectors.recent_usage(tenant.pk, before=found.request)
    [query] = captured
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
        plan = " / ".join(row[3] for row in cursor.fetchall())
    assert "usage_record_tenant_day (tenant=? AND day<?" in plan
    assert "TEMP B-TREE" not in plan


def test_record_of_is_the_last_revision_and_the_tenant_s_own(tenant, record):
    first = record(charge=1)
    second = record(request=first.request, revision=1, charge=2)
    assert selectors.record_of(first.request, tenant.pk) == second
    assert selectors.record_of(first.request, make_tenant().pk) is None
    assert selectors.record_of(uuid7(), tenant.pk) is None
