"""A tenant with plan, credit and key, a priced fake model, and a real runtime over the test database."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch
from uuid import UUID

from django.db import connections
from django.utils import timezone

from billing.models import CreditGrant, Hold, LedgerAccount, LedgerTransfer, Plan, RateCard, UsageRecord, Wallet
from billing.services import cards, credits, plans, wallets
from billing.services.plans import TERMS
from gateway.batches.driver import Driver
from gateway.bootstrap import open_runtime
from inference.clients.fake import FakeEngine
from routing.services.catalogue import add_model
from tenancy.models import Project, Tenant
from tenancy.services import keys
from tests.rows import again
from tests.waiting import until

RATES = {0: {"input": 10_000_000, "cache_read": 1_000_000, "output": 40_000_000}}
_numbers = itertools.count()


@dataclass
class World:
    """What the database has, for tests that run against it."""

    tenant: Tenant
    project: Project
    wallet: Wallet
    secret: str
    key_id: UUID
    deployment: UUID


def make_world(*, credit=10_000_000, terms=None, **options) -> World:
    """Return a world whose plan allows everything unless `terms` say otherwise; `options` are the fake engine's."""
    make = partial(_make_tenant, credit, terms)
    is_first = not (Tenant.objects.exists() or Plan.objects.exists())
    made = again(("world", credit, repr(terms), timezone.now().date()), make) if is_first else make()
    deployment = add_model(
        name="fake",
        kinds=["chat", "embedding"],
        context_length=8192,
        rate_card="fake-card",
        source="",
        backend="fake",
        options=options,
    )
    return World(*made, deployment.id)


def _make_tenant(credit, terms):
    """Return what a world has but its model, and make what all tenants share where it is missing."""
    wallets.ensure_operator_accounts()
    plans.ensure_default_plans()
    if not Plan.objects.filter(slug="test").exists():
        base = plans.latest_version("business")
        plan = Plan.objects.create(slug="test", name="Test")
        given = {name: getattr(base, name) for name in TERMS}
        plans.publish_version(plan, **(given | {"monthly_credits": 0, "slice_tokens": 16} | (terms or {})))
    if not RateCard.objects.filter(name="fake-card").exists():
        cards.publish("fake-card", RATES)
    number = next(_numbers)
    tenant = Tenant.objects.create(name=f"Tenant {number}", slug=f"tenant-{number}")
    project = Project.objects.create(tenant=tenant, name="Default")
    wallet = wallets.open_wallet(tenant_id=tenant.id)
    plans.subscribe(tenant.id, "test")
    if credit:
        credits.grant(wallet_id=wallet.id, amount=credit, kind=CreditGrant.Kind.PROMOTIONAL, key=f"world:{number}")
    key, secret = keys.create_key(tenant=tenant, project=project, name="test")
    return tenant, project, wallet, secret, key.id


@asynccontextmanager
async def opened(home, *, runs_lines=False):
    """Open a real runtime over the test database, and close it. It runs no lines of batches, unless it says so."""
    with nullcontext() if runs_lines else patch.object(Driver, "keep", resting):
        runtime = await open_runtime()
    try:
        yield runtime
    finally:
        await runtime.close()


async def resting(_):
    """Do nothing, until cancelled."""
    await asyncio.Event().wait()


async def principal_of(runtime, world):
    return await runtime.principals.by_key(world.secret)


def engine_of(runtime, world) -> FakeEngine:
    engine = runtime.engines.get(world.deployment)
    assert isinstance(engine, FakeEngine)
    return engine


async def settled(runtime):
    """Return when nothing runs any more."""
    await until(lambda: not (runtime.requests._tasks or runtime.requests.live))


async def in_database(function, *args, **kwargs):
    """Return what `function` does on a thread that leaves no connection behind."""

    def call():
        try:
            return function(*args, **kwargs)
        finally:
            connections.close_all()

    return await asyncio.to_thread(call)


def assert_books(world, *, records):
    """No hold is open; wallet, ledger and the latest usage records tell the same sum of charges."""
    assert not Hold.objects.exists()
    wallet = Wallet.objects.get(pk=world.wallet.pk)
    assert wallet.held == 0
    assert wallet.posted >= 0
    account = LedgerAccount.objects.get(wallet=wallet)
    charged = sum(LedgerTransfer.objects.filter(debit=account).values_list("amount", flat=True))
    granted = sum(LedgerTransfer.objects.filter(credit=account).values_list("amount", flat=True))
    assert wallet.posted == granted - charged
    rows = list(UsageRecord.objects.filter(wallet=wallet.pk))
    assert len(rows) == records
    assert sum(row.charge for row in rows) == charged
    return charged, rows
