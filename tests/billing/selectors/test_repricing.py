"""What usage would have cost at other prices is what rating would have charged, request by request."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from django.db.models import Max

from base.ids import day_of, uuid7
from base.units import MICRO
from billing.models import UsageRecord
from billing.rating import CLASSES, CardPrices, charge
from billing.selectors.repricing import repriced

pytestmark = [pytest.mark.money, pytest.mark.django_db]

TIERS = [
    *[(0, name, rate * MICRO) for name, rate in (("input", 3), ("output", 7), ("cache_read", 1), ("reasoning", 9))],
    *[(900, name, rate) for name, rate in (("input", 333_333), ("output", 7_777_777))],
]


def record(tenant, classes, *, multiplier=10_000, model="m", **more):
    request = more.pop("request", None) or uuid7()
    UsageRecord.objects.create(
        id=request if not more.get("revision") else uuid7(), request=request, day=day_of(request), tenant=tenant.pk,
        project=tenant.pk, wallet=tenant.pk, model=model, deployment=tenant.pk, card_version=tenant.pk,
        multiplier_bp=multiplier, charge=more.pop("charge", 5), held=5, reserved_at="2026-01-01T00:00Z",
        **{f"{name}_tokens": tokens for name, tokens in classes.items()}, **more,
    )  # fmt: skip
    return request


def test_each_request_is_rated_and_rounded_as_it_would_be(tenant):
    chance = random.Random(5)
    card = CardPrices.build(uuid7(), 17, TIERS)
    expected = 0
    for multiplier in (0, 1, 3_333, 10_000, 12_345):
        for _ in range(8):
            classes = {name: chance.choice([0, 1, 77, 450, 5_000]) for name in CLASSES} | {"input": 1}
            record(tenant, classes, multiplier=multiplier)
            expected += charge(classes, card, multiplier)
    huge = {"input": 2**31 - 1, "output": 2**31 - 1}
    record(tenant, huge)
    expected += charge(huge, card, 10_000)
    day = UsageRecord.objects.aggregate(day=Max("day"))["day"]
    found = repriced(card, ["m"], day - timedelta(days=1), day)
    assert (found.requests, found.charge, found.would_be) == (41, 41 * 5, expected)


def test_only_the_last_revision_of_what_ran_for_these_models_and_days_counts(tenant):
    card = CardPrices.build(uuid7(), 0, [(0, "input", MICRO), (0, "output", MICRO)])
    corrected = record(tenant, {"input": 1000}, charge=1)
    record(tenant, {"input": 3000}, request=corrected, revision=1, charge=3)
    record(tenant, {"input": 500}, waived=True, charge=0)
    record(tenant, {}, charge=0)
    record(tenant, {"input": 500}, model="another")
    day = day_of(corrected)
    assert repriced(card, ["m"], day, day).would_be == 3000
    assert repriced(card, ["m"], day, day).charge == 3
    assert repriced(card, ["m"], day - timedelta(days=9), day - timedelta(days=1)).requests == 0
