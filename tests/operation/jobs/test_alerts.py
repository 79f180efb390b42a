"""The troubles that alerts tell of are those of checks, of credit and of keys."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from base.ids import uuid7
from base.units import MICRO
from billing.models import CreditGrant, Wallet
from billing.services import credits
from gateway.runtime.models import Observation, RefusalCount
from gateway.runtime.observed import note
from operation.jobs import alerts
from tenancy.models import Alert
from tests.parties import _looks_often, _nothing_counted, _patience, acme, other, terms

__all__ = ["_looks_often", "_nothing_counted", "_patience", "acme", "other", "terms"]
pytestmark = [pytest.mark.django_db]


def seen():
    alerts.look()
    return {row.kind: row for row in Alert.objects.filter(resolved_at=None)}


def test_a_failing_check_is_one_for_the_operators():
    finding = {"text": "Redis can't be reached", "mend": "start it", "subject": "redis:6379"}
    note(
        Observation.Kind.CHECK,
        "redis",
        {"severity": "critical", "is_fine": False, "findings": [finding], "every_s": 60},
    )
    row = seen()["check.redis"]
    assert (row.tenant, row.severity, row.title, row.remedy) == (None, "critical", "redis redis:6379", "start it")
    assert row.path == "/operate/"


@pytest.fixture
def credit(acme):
    """`credit(share)` leaves so many hundredths of all that was granted."""
    wallet = Wallet.objects.get(tenant=acme.tenant)
    Wallet.objects.filter(pk=wallet.pk).update(held=0, overdraft_limit=0)
    credits.grant(wallet_id=wallet.id, amount=50 * MICRO, kind=CreditGrant.Kind.PAID, key="alerts")
    granted = sum(CreditGrant.objects.filter(wallet=wallet).values_list("amount", flat=True))

    def leave(share):
        Wallet.objects.filter(pk=wallet.pk).update(posted=granted * share // 100)

    return leave


@pytest.mark.parametrize(("share", "severity"), [(0, "critical"), (10, "warning")])
def test_credit_that_ends_is_one_for_the_tenant(acme, other, credit, share, severity):
    credit(share)
    row = seen()["credit.low"]
    assert (row.tenant, row.severity) == (acme.tenant, severity)
    assert ("Requests are refused" in row.text) is (share == 0)


def test_enough_credit_is_no_trouble(acme, credit):
    credit(11)
    assert "credit.low" not in seen()


def refused(party, minutes, times):
    now = timezone.now()
    for number in range(minutes):
        RefusalCount(
            id=uuid7(),
            minute=now.replace(second=0, microsecond=0) - timedelta(minutes=number),
            tenant=party.tenant,
            api_key=party.key,
            status=400,
            code="context_length_exceeded",
            count=times,
            last_request=uuid7(),
            last_at=now,
        ).save(force_insert=True)


def test_a_key_that_is_refused_again_and_again_is_one_for_its_tenant(acme):
    refused(acme, minutes=5, times=4)
    row = seen()["key.failing"]
    assert row.tenant == acme.tenant
    assert row.text == "20 requests in ten minutes, most often: Context length exceeded."


@pytest.mark.parametrize(("minutes", "times"), [(4, 50), (5, 3)])
def test_a_burst_or_a_few_refusals_are_none(acme, minutes, times):
    refused(acme, minutes, times)
    assert "key.failing" not in seen()
