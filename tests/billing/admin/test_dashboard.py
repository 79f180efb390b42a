from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from base.units import MICRO
from billing.admin import dashboard
from billing.models import UsageDay

pytestmark = pytest.mark.django_db


def used(days_ago, model, charge, requests=1):
    UsageDay.objects.create(
        day=timezone.now().date() - timedelta(days=days_ago),
        model=model,
        charge=charge,
        requests=requests,
        input_tokens=requests * 10,
        cache_read_tokens=0,
        output_tokens=requests,
    )


def test_the_first_page_sums_wallets_and_the_days_of_each_model(give, hold, django_assert_num_queries):
    give(100)
    hold(40)
    used(0, "small", MICRO, requests=2)
    used(0, "large", 3 * MICRO)
    used(2, "large", MICRO // 2)
    used(3, "large", MICRO)
    with django_assert_num_queries(3):
        numbers, chart = dashboard.overview(days=3)
    assert chart["labels"][-1] == timezone.now().date().isoformat()
    assert [(one["label"], one["data"]) for one in chart["datasets"]] == [
        ("large", [0.5, 0, 3]),
        ("small", [0, 0, 1]),
    ]
    assert (numbers.requests, numbers.tokens, numbers.charge) == (4, 44, 4 * MICRO + MICRO // 2)
    assert (numbers.held, numbers.open_holds) == (40, 1)


def test_many_models_share_other():
    for number in range(dashboard.MOST_MODELS + 3):
        used(0, f"m{number}", (number + 1) * MICRO)
    _, chart = dashboard.overview(days=1)
    assert [one["label"] for one in chart["datasets"]][-2:] == ["m3", "Other"]
    assert chart["datasets"][-1]["data"] == [1 + 2 + 3]
