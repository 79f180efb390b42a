"""Two writers on one wallet, one of which decides from memory: it sees what came between, or overspends the wallet."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta

import pytest
from django.db import connection, connections
from django.utils import timezone

from base import clock
from billing import reconcile
from billing.models import CreditGrant, Plan, PlanVersion, Wallet
from billing.services import plans
from billing.writer import open_writer
from billing.writer.operations import ExpireGrants, Held, Refused
from billing.writer.postgresql import driver
from billing.writer.postgresql.pipeline import Pipeline
from billing.writer.postgresql.statements import STATEMENTS, sql_of
from tests.billing.writer.world import grant, make_wallet, patient, reserve, settle

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _clock_that_jumps(monkeypatch):
    """The database's clock goes on by two days, for everybody, once there is a plan of that name."""
    jumps = "SELECT clock_timestamp() + CASE WHEN EXISTS (SELECT 1 FROM billing_plan WHERE slug = 'in two days')"
    monkeypatch.setitem(clock.STATEMENTS, "postgresql", f"{jumps} THEN interval '2 days' ELSE interval '0' END")


async def by_the_other_writer(other, wallet):
    assert await other.submit(reserve(wallet, 900)) == Held(900, 100)


async def by_a_grant_that_ends(other, wallet):
    await asyncio.to_thread(alone, lambda: Plan.objects.create(slug="in two days", name="later"))
    assert (await other.submit(ExpireGrants(wallet.pk))).expired == 900


async def by_a_plan_without_overdraft(_other, wallet):
    await asyncio.to_thread(alone, lambda: plans.change_plan(wallet.tenant_id, "prepaid", at_once=True))


def alone(work):
    """Do `work` on a connection of this thread's own, and close it."""
    try:
        return work()
    finally:
        connections.close_all()


def wallet_of_1000():
    return make_wallet(credit=1000)


def wallet_with_a_grant_that_ends():
    wallet = make_wallet(credit=100)
    grant(wallet, 900, CreditGrant.Kind.PROMOTIONAL, expires_at=timezone.now() + timedelta(days=1))
    return wallet


def wallet_on_a_plan_with_overdraft():
    plans.ensure_default_plans()
    free = plans.latest_version("free")
    terms = {name: getattr(free, name) for name in plans.TERMS} | {"monthly_credits": 0}
    for slug, more in {
        "prepaid": {},
        "postpaid": {"overage": PlanVersion.Overage.OVERDRAFT, "overdraft_limit": 900},
    }.items():
        plans.publish_version(Plan.objects.create(slug=slug, name=slug), **terms | more)
    wallet = make_wallet(credit=100)
    plans.subscribe(wallet.tenant_id, "postpaid")
    return Wallet.objects.get(pk=wallet.pk)


CASES = {
    by_the_other_writer: wallet_of_1000,
    by_a_grant_that_ends: wallet_with_a_grant_that_ends,
    by_a_plan_without_overdraft: wallet_on_a_plan_with_overdraft,
}


def remembered_then_changed(monkeypatch, wallet, change):
    """Have one writer, which knows the wallet, decide to hold 900, `change` it before that is sent, and return the
    answer and how often a flush was decided from memory.
    """
    monkeypatch.setattr(driver, "ANSWER_SECONDS", 15.0)
    remembered = 0
    real = Pipeline.exchange

    async def both():
        nonlocal remembered
        first, other = (patient(open_writer(connection.settings_dict)) for _ in range(2))
        is_due = False

        async def exchange(pipeline, sent):
            nonlocal is_due, remembered
            if is_due and sent[0][0] == sql_of(("move_known_wallets", ())):
                is_due, remembered = False, remembered + 1
                await change(other, wallet)
            return await real(pipeline, sent)

        monkeypatch.setattr(Pipeline, "exchange", exchange)
        try:
            made = reserve(wallet, 10)
            await first.submit(made)
            await first.submit(settle(made, 0))  # now it knows the wallet and its grants
            is_due = True
            return await first.submit(reserve(wallet, 900))
        finally:
            await first.close()
            await other.close()

    return asyncio.run(both()), remembered


@pytest.mark.parametrize("change", CASES)
def test_what_came_between_a_decision_from_memory_and_its_writing_is_seen(monkeypatch, change):
    wallet = CASES[change]()
    answer, remembered = remembered_then_changed(monkeypatch, wallet, change)
    assert isinstance(answer, Refused)
    assert (answer.limit, answer.available, remembered) == ("wallet", 100, 1)
    now = Wallet.objects.get(pk=wallet.pk)
    assert now.posted - now.held >= -now.overdraft_limit
    assert reconcile.check(connection, recompute=False) == []


@pytest.mark.parametrize("change", CASES)
def test_without_the_guard_the_wallet_is_overspent(monkeypatch, change):
    guarded = STATEMENTS["move_known_wallets"]
    without = re.sub(r"WHERE known\.version.*?ORDER BY", "ORDER BY", guarded, flags=re.DOTALL)
    without = re.sub(r" AND \(\{clock\}\) [<>]=? (%s::timestamptz)", r" AND \1 IS NOT NULL", without)
    assert "version = g.version" not in without
    assert "{clock}" not in without
    monkeypatch.setitem(STATEMENTS, "move_known_wallets", without)
    wallet = CASES[change]()
    answer, remembered = remembered_then_changed(monkeypatch, wallet, change)
    assert (type(answer), remembered) == (Held, 1)
    now = Wallet.objects.get(pk=wallet.pk)
    assert now.posted - now.held < -now.overdraft_limit
