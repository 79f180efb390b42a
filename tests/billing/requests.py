"""Requests that ran and were charged by published prices, made through the writer."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from base import clock
from base.ids import uuid7
from base.units import MICRO
from billing import rating
from billing.models import UsageRecord, prices_of
from billing.services import cards
from billing.writer.apply import apply_now
from billing.writer.operations import EndFacts, Settle, Settled
from tests.billing.writer.world import reserve

RATES = {
    0: {"input": 3 * MICRO, "cache_read": 300_001, "output": 12 * MICRO},
    900: {"input": 7 * MICRO, "output": MICRO},
}


def publish(name="m", times=1, **options):
    """Prices in force from now on."""
    rates = {start: {one: rate * times for one, rate in tier.items()} for start, tier in RATES.items()}
    version = cards.publish(name, rates, **options)
    return prices_of([version.pk])[version.pk]


def ran(wallet, classes, card, *, ago=3600, model="m", multiplier=10_000, exact=True, ended=None, **reserved):
    """A request that began so many seconds ago, charged for `classes` by `card`; returns its id."""
    moment = clock.now() - timedelta(seconds=ago)
    request = uuid7(int(moment.timestamp() * 1000))
    charge = rating.charge(classes, card, multiplier)
    made = reserve(wallet, charge, request=request)
    made = msgspec.structs.replace(made, card_version=card.id, model=model, multiplier_bp=multiplier, **reserved)
    settle = Settle(request, wallet.pk, charge, classes, EndFacts(**(ended or {})), exact=exact)
    _, answer = apply_now([made, settle])
    assert isinstance(answer, Settled)
    return request


def last(request):
    return UsageRecord.objects.filter(request=request).order_by("-revision").first()
