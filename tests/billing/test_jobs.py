from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.utils import timezone

from billing.jobs import Job, sweep_job
from billing.models import CreditGrant, OutboxEvent, Subscription, UsageRollup
from billing.services import credits, plans, sweeps, wallets
from tests.billing.conftest import make_tenant

SWEEPS = pytest.mark.django_db


@pytest.mark.money
@SWEEPS
def test_once_does_everything_that_is_due(tenant, record, monkeypatch):
    monkeypatch.setattr("operation.management.commands.jobs.need_database", lambda: None)  # it closes our connection
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


def test_a_run_goes_on_until_nothing_is_due():
    chunks = iter([True, True, False, True])
    Job("busy", lambda: next(chunks), every_s=3600).run()
    assert list(chunks) == [True]


@pytest.mark.parametrize("limit", [{"goes_on": lambda: False}, {"seconds": 0}])
def test_a_run_that_has_to_end_leaves_the_rest_to_the_next(limit):
    chunks = iter([True, True, False])
    job = Job("busy", lambda: next(chunks), every_s=3600)
    job.run(**limit)
    job.run()
    assert list(chunks) == []


def test_a_run_in_another_thread_leaves_it_alone():
    done = []
    job = Job("busy", lambda: done.append(other_thread()) is not None, every_s=3600)

    def other_thread():
        thread = threading.Thread(target=job.run)
        thread.start()
        thread.join()
        return "done"

    job.run()
    assert done == ["done"]


def test_a_run_that_fails_does_not_stop_the_next():
    chunks = iter([RuntimeError("broken row"), False])

    def step():
        if isinstance(chunk := next(chunks), Exception):
            raise chunk
        return chunk

    job = Job("bad", step, every_s=1)
    with pytest.raises(RuntimeError, match="broken row"):
        job.run()
    job.run()
    assert list(chunks) == []


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
