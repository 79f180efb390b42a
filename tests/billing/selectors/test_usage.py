from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from base.ids import uuid7
from billing.models import OutboxEvent
from billing.selectors.usage import (
    Lengths,
    models_since,
    recent_usage,
    record_of,
    usage_by_day,
    usage_of_all,
    usual_lengths,
)
from billing.services import rollups
from tests.billing.conftest import make_tenant

pytestmark = [pytest.mark.contract, pytest.mark.django_db]


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
        rows = usage_by_day(tenant.pk, first, second, **options)
        return [(row.day, row.model, row.api_key, row.charge) for row in rows]

    assert charges() == [(first, None, None, 7), (second, None, None, 8)]
    assert charges(by=["model"]) == [(first, "m", None, 3), (first, "n", None, 4), (second, "m", None, 8)]
    assert charges(by=["api_key"], model="m", api_key=one) == [(first, None, one, 1), (second, None, one, 8)]
    assert [(row.model, row.charge, row.output_tokens) for row in usage_of_all(first, first)] == [
        ("m", 19, 5),
        ("n", 4, 0),
    ]
    assert [(row.day, row.requests) for row in usage_of_all(first, second)][-1] == (second, 1)
    assert (models_since(first), models_since(second)) == (["m", "n"], ["m"])
    assert usage_by_day(tenant.pk, first, first)[0].output_tokens == 5
    assert usage_by_day(tenant.pk, date(2026, 4, 1), date(2026, 4, 30)) == []
    with pytest.raises(ValueError, match="colour"):
        usage_by_day(tenant.pk, first, first, by=["colour"])


def test_recent_usage_is_newest_first_with_the_last_revision(tenant, record):
    now = timezone.now()
    old = record(at=now - timedelta(days=3), charge=1)
    middle = record(at=now - timedelta(hours=1), charge=2)
    corrected = record(at=now - timedelta(hours=1), request=middle.request, revision=1, charge=3)
    new = record(at=now, model="n", charge=4)
    record(at=now, tenant=make_tenant().pk)
    assert recent_usage(tenant.pk) == [new, corrected, old]
    assert recent_usage(tenant.pk, limit=1, before=new.request) == [corrected]
    assert recent_usage(tenant.pk, model="n") == [new]


def test_a_page_of_usage_walks_an_index_from_its_own_first_row(tenant, record):
    """Neither the history behind a page nor the day that it lies in is read or sorted for it."""
    if connection.vendor != "sqlite":
        pytest.skip("a small table's plan says nothing there")
    found = record()
    with CaptureQueriesContext(connection) as captured:
        recent_usage(tenant.pk, before=found.request)
    [query] = captured
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
        plan = " / ".join(row[3] for row in cursor.fetchall())
    assert "usage_record_tenant_day (tenant=? AND day<?" in plan
    assert "TEMP B-TREE" not in plan


def test_record_of_is_the_last_revision_and_the_tenant_s_own(tenant, record):
    first = record(charge=1)
    second = record(request=first.request, revision=1, charge=2)
    assert record_of(first.request, tenant.pk) == second
    assert record_of(first.request, make_tenant().pk) is None
    assert record_of(uuid7(), tenant.pk) is None


def test_usual_lengths_are_of_the_latest_requests_by_model_in_one_bounded_query(tenant, record, monkeypatch):
    at = datetime(2026, 5, 1, 12, tzinfo=UTC)

    def used(number, **columns):
        return record(at=at + timedelta(seconds=number), **{"model": "m", **columns})

    for number in range(10):
        used(number, output_tokens=number, reasoning_tokens=number)
    used(20, model="n", output_tokens=7)
    used(21, output_tokens=900, waived=True, charge=0)
    used(22, input_tokens=0, output_tokens=900)
    used(23, request=used(24, output_tokens=100, exact=False).request, revision=1, output_tokens=900)
    used(25, tenant=make_tenant().id, output_tokens=500)
    with CaptureQueriesContext(connection) as captured:
        assert usual_lengths(tenant.id) == {"m": Lengths(11, 10, 18), "n": Lengths(1, 7, 7)}
    [query] = captured
    assert "LIMIT 2000" in query["sql"]
    assert usual_lengths()["m"] == Lengths(12, 10, 100)
    monkeypatch.setattr("billing.selectors.usage.MOST_RECENT", 3)
    assert usual_lengths(tenant.id) == {"m": Lengths(1, 100, 100)}, "two revisions of one, one that used nothing"
