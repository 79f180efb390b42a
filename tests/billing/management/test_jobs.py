from __future__ import annotations

import logging
import os
import signal
import threading

import pytest
from django.core.management import call_command

from billing.management.commands.jobs import Job, StopSignal, run_forever
from billing.models import CreditGrant, OutboxEvent, Subscription, UsageRollup
from billing.services import plans, sweeps

SWEEPS = pytest.mark.django_db


@pytest.mark.money
@SWEEPS
def test_once_does_everything_that_is_due(tenant, record):
    plans.ensure_default_plans()
    plans.subscribe(tenant.pk, "free")
    CreditGrant.objects.update(source="another month")
    Subscription.objects.update(granted_until=None)
    for _ in range(20):
        OutboxEvent.objects.create(topic="usage", payload={"records": [str(record().request)]})
    call_command("jobs", once=True)
    assert UsageRollup.objects.get().requests == 20
    assert Subscription.objects.get().granted_until is not None
    assert not OutboxEvent.objects.exists()


@SWEEPS
def test_a_job_with_more_to_do_goes_on_at_once_and_a_signal_ends_the_loop():
    done = []

    def step():
        done.append(1)
        if len(done) == 3:
            signal.raise_signal(signal.SIGTERM)
        return True

    with StopSignal() as stop:
        run_forever([Job("busy", step, every_s=3600)], stop)
    assert len(done) == 3


@SWEEPS
def test_a_failing_job_is_logged_and_does_not_stop_the_others(caplog):
    order = []

    def fail():
        order.append("fails")
        raise RuntimeError("broken row")

    def work():
        order.append("works")
        if order.count("works") == 3:
            signal.raise_signal(signal.SIGINT)
        return True

    with StopSignal() as stop, caplog.at_level(logging.ERROR, logger="sluice.jobs"):
        run_forever([Job("bad", fail, every_s=0), Job("good", work, every_s=0)], stop)
    assert order == ["fails", "works", "works", "works"]
    assert "broken row" in caplog.text


def test_a_wait_ends_when_the_signal_comes():
    with StopSignal() as stop:
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGTERM)).start()
        stop.wait(3600)
        assert stop.has_come


def test_handlers_are_as_before_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.money
@SWEEPS
def test_one_bad_subscription_does_not_keep_the_others_from_their_month(tenant, wallet, monkeypatch):
    from tests.billing.conftest import make_tenant

    plans.ensure_default_plans()
    bad, good = (plans.subscribe(one.pk, "free") for one in (tenant, make_tenant()))
    grant_month = plans.grant_month

    def fragile(subscription, now):
        if subscription == bad.pk:
            raise RuntimeError("bad")
        return grant_month(subscription, now)

    monkeypatch.setattr(plans, "grant_month", fragile)
    with pytest.raises(ExceptionGroup, match="1 of 2"):
        sweeps.grant_monthly(good.granted_until)
    before = good.granted_until
    good.refresh_from_db()
    assert good.granted_until > before


@pytest.mark.money
@SWEEPS
def test_wallets_without_holds_expire_first(tenant, wallet, give, hold, clock):
    from datetime import timedelta

    from django.utils import timezone

    from billing.services import credits, wallets
    from tests.billing.conftest import make_tenant

    tomorrow = timezone.now() + timedelta(days=1)
    give(5, expires_at=tomorrow)
    hold(5)
    other = wallets.open_wallet(tenant_id=make_tenant().pk)
    credits.grant(wallet_id=other.pk, amount=7, kind="paid", key="other", expires_at=tomorrow + timedelta(hours=1))
    clock.set(tomorrow + timedelta(days=1))
    assert sweeps.expire_grants(limit=1) == 7
    assert sweeps.expire_grants(limit=1) == 0
