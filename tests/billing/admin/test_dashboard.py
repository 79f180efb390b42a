from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from billing.admin import dashboard
from billing.ids import uuid7
from billing.models import UsageRollup
from billing.unit import MICRO

pytestmark = pytest.mark.django_db


def used(days_ago, model, charge, requests=1, tenant=None):
    day = timezone.now().date() - timedelta(days=days_ago)
    hour = datetime(day.year, day.month, day.day, 5, tzinfo=UTC)
    UsageRollup.objects.create(
        hour=hour,
        tenant=tenant or uuid7(),
        project=uuid7(),
        model=model,
        charge=charge,
        requests=requests,
        input_tokens=requests * 10,
        output_tokens=requests,
    )


def test_chart_stacks_models_by_day(django_assert_num_queries):
    used(0, "small", MICRO)
    used(0, "large", 3 * MICRO)
    used(2, "large", MICRO // 2)
    used(3, "large", MICRO)
    with django_assert_num_queries(1):
        chart = dashboard.usage_chart(days=3)
    assert chart["labels"][-1] == timezone.now().date().isoformat()
    assert [(one["label"], one["data"]) for one in chart["datasets"]] == [
        ("large", [0.5, 0, 3]),
        ("small", [0, 0, 1]),
    ]


def test_chart_of_one_tenant_and_another_measure():
    tenant = uuid7()
    used(0, "m", MICRO, requests=4, tenant=tenant)
    used(0, "m", MICRO, requests=5)
    chart = dashboard.usage_chart(days=1, measure="requests", tenant=tenant)
    assert chart["datasets"][0]["data"] == [4]
    with pytest.raises(ValueError, match="measure"):
        dashboard.usage_chart(measure="colour")


def test_many_models_share_other():
    for number in range(dashboard.MOST_MODELS + 3):
        used(0, f"m{number}", (number + 1) * MICRO)
    chart = dashboard.usage_chart(days=1)
    assert [one["label"] for one in chart["datasets"]][-2:] == ["m3", "Other"]
    assert chart["datasets"][-1]["data"] == [1 + 2 + 3]


def test_headline_sums_usage_and_wallets(give, hold):
    give(100)
    hold(40)
    used(0, "m", 7, requests=2)
    used(40, "m", 1000)
    found = dashboard.headline(days=30)
    assert (found.requests, found.tokens, found.charge) == (2, 22, 7)
    assert (found.posted, found.held, found.open_holds) == (100, 40, 1)
