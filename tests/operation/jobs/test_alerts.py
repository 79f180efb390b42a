"""The troubles that alerts tell of are those of checks, of credit and of keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from base.ids import uuid7
from base.units import MICRO
from billing.models import BudgetWindow, CreditGrant, Invoice, Wallet
from billing.periods import minute_of
from billing.services import credits, invoices
from billing.services.budgets import make_budget, period_of
from gateway.runtime.models import Observation, RefusalCount
from gateway.runtime.observed import note
from operation.jobs import alerts
from tenancy.models import Alert, OutgoingMail
from tests.billing.conftest import MovedClock
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


def test_credit_for_some_models_is_not_what_others_have_left(acme, credit):
    """It hides no end of what is for all, and its own end is no trouble."""
    credit(11)
    wallet = Wallet.objects.get(tenant=acme.tenant)
    credits.grant(wallet_id=wallet.pk, amount=500 * MICRO, kind=CreditGrant.Kind.PAID, key="some", models=["m"])
    assert "credit.low" not in seen()
    granted = sum(CreditGrant.objects.filter(wallet=wallet, restriction="").values_list("amount", flat=True))
    Wallet.objects.filter(pk=wallet.pk).update(posted=F("posted") - 2 * granted // 100)
    assert (seen()["credit.low"].severity, seen()["credit.low"].title) == ("warning", "Credit for every model is low")


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


def test_an_open_invoice_is_one_for_its_tenant_and_the_operators(acme, monkeypatch):
    wallet, now = Wallet.objects.get(tenant=acme.tenant), datetime(2030, 5, 5, 12, tzinfo=UTC)
    clock = MovedClock(monkeypatch)
    one = Invoice.objects.create(wallet=wallet, number=7, ends_at=now - timedelta(days=2), amount=70 * MICRO)
    for minutes in range(2):
        clock.set(now + timedelta(minutes=minutes))
        alerts.look()
    found = Alert.objects.filter(kind="invoice.open", told_at__isnull=False)
    assert {(row.tenant_id, row.title) for row in found} == {
        (acme.tenant.pk, "Invoice 7 is open"), (None, "Invoice 7 is open"),
    }  # fmt: skip
    assert all("asks for 70 credits: what was overdrawn at 2030-05-03" in row.text for row in found)
    invoices.void(one.pk, reason="r")
    clock.set(now + timedelta(minutes=9))
    alerts.look()
    assert not Alert.objects.filter(kind="invoice.open", resolved_at=None).exists()


def test_a_threshold_of_a_budget_is_told_once_and_over_with_its_window(acme, monkeypatch):
    clock = MovedClock(monkeypatch)
    now = datetime(2030, 5, 5, 12, tzinfo=UTC)
    clock.set(now)
    wallet = Wallet.objects.get(tenant=acme.tenant)
    terms = {"scope": "tenant", "window": "day", "amount": 100, "by_operator": True, "thresholds": (80, 100)}
    budget = make_budget(wallet=wallet.pk, name="All", **terms)
    start = minute_of(period_of(budget, now).start)
    row = BudgetWindow.objects.create(wallet=wallet, number=budget.number, start=start, spent=79, held=0)

    def told(minutes):
        """Look at each of the minutes, and return what web-hooks and people heard so far."""
        nonlocal now
        for _ in range(minutes):
            now += timedelta(minutes=1)
            clock.set(now)
            alerts.look()
        rows = Alert.objects.filter(kind="budget.threshold", told_at__isnull=False)
        return sorted((one.title[:4], one.tenant_id is None, one.resolved_at is not None) for one in rows)

    assert told(3) == []
    BudgetWindow.objects.filter(pk=row.pk).update(spent=85)
    eighty = [("80 %", False, False), ("80 %", True, False)]
    assert told(3) == eighty
    mails = OutgoingMail.objects.count()
    assert told(3) == eighty
    assert OutgoingMail.objects.count() == mails
    BudgetWindow.objects.filter(pk=row.pk).update(spent=100)
    assert told(3) == [("100 ", False, False), ("100 ", True, False), *eighty]
    now = datetime(2030, 5, 6, 0, 1, tzinfo=UTC)
    assert all(is_over for _, _, is_over in told(6))
