from __future__ import annotations

import logging
import os
import signal
import threading
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.utils import timezone

from billing.management.commands.jobs import Job, StopSignal, run_forever, sweep_job
from billing.models import CreditGrant, OutboxEvent, Subscription, UsageRollup
from billing.services import credits, plans, sweeps, wallets
from tests.billing.conftest import make_tenant

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
def test_subscriptions_that_always_fail_keep_no_other_from_its_month(tenant, monkeypatch):
    """The twenty that were due first came first each time, for ever."""
    plans.ensure_default_plans()
    made = [plans.subscribe(one.pk, "free") for one in (tenant, *(make_tenant() for _ in range(5)))]
    now = made[-1].granted_until
    bad = {one.pk for one in made[:3]}
    grant_month = plans.grant_month

    def fragile(subscription, now):
        if subscription in bad:
            raise RuntimeError("bad")
        return grant_month(subscription, now)

    monkeypatch.setattr(plans, "grant_month", fragile)
    sweep = sweeps.monthly_grants(lambda: now)
    assert [sweep.turn(limit=2) for _ in range(3)] == [2, 2, 2]
    with pytest.raises(ExceptionGroup, match="3 rows failed"):
        sweep.turn(limit=2)
    still_due = set(Subscription.objects.filter(granted_until__lte=now).values_list("pk", flat=True))
    assert still_due == bad
    bad.clear()
    assert sweep.turn() == 3


@pytest.mark.money
@SWEEPS
def test_wallets_whose_holds_keep_expired_credit_are_done_once_a_round(tenant, wallet, give, hold, clock):
    tomorrow = timezone.now() + timedelta(days=1)
    give(5, expires_at=tomorrow)
    hold(5)
    other = wallets.open_wallet(tenant_id=make_tenant().pk)
    credits.grant(wallet_id=other.pk, amount=7, kind="paid", key="other", expires_at=tomorrow + timedelta(hours=1))
    clock.set(tomorrow + timedelta(days=1))
    job = sweep_job("expiry", sweeps.expiry(), every_s=5)
    assert not job.step()
    wallet.refresh_from_db()
    other.refresh_from_db()
    assert (wallet.posted, other.posted) == (5, 0)
