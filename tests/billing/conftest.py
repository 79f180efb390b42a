"""Tenants and wallets for the tests of billing."""

from __future__ import annotations

import itertools
from datetime import UTC, timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from base import clock as database_clock
from base.ids import day_of, uuid7
from billing.models import CreditGrant, Hold, UsageRecord, Wallet
from billing.services import credits, wallets
from billing.writer.apply import apply_now
from billing.writer.operations import ExpireGrants
from tenancy.models import Tenant

_numbers = itertools.count()
PROJECT = uuid7()


class MovedClock:
    """The database's clock, standing at `moment` once that is set; wherever in the database's time somebody asks."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch

    def set(self, moment):
        text = moment.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        statements = {"postgresql": f"SELECT TIMESTAMPTZ '{text}+00'", "sqlite": f"SELECT '{text}'"}
        self._monkeypatch.setattr(database_clock, "STATEMENTS", statements)


@pytest.fixture
def clock(monkeypatch):
    return MovedClock(monkeypatch)


@pytest.fixture
def tenant(db):
    return make_tenant()


def make_tenant():
    number = next(_numbers)
    return Tenant.objects.create(name=f"Tenant {number}", slug=f"tenant-{number}")


@pytest.fixture
def wallet(tenant):
    """An empty wallet."""
    return wallets.open_wallet(tenant_id=tenant.pk)


@pytest.fixture
def give(wallet):
    """Grant credit to the wallet: `give(100, kind=…, expires_at=…)`; every call is a new grant."""

    def give(amount, *, kind=CreditGrant.Kind.PROMOTIONAL, **options):
        options.setdefault("key", f"test:{next(_numbers)}")
        return credits.grant(wallet_id=wallet.pk, amount=amount, kind=kind, **options)

    return give


@pytest.fixture
def hold(wallet):
    """Open a hold on the wallet by hand, as the writer leaves it: `hold(40, reserved_at=…)`."""

    def hold(amount, *, reserved_at=None):
        return open_hold(wallet, amount, reserved_at=reserved_at)

    return hold


def roll(wallet):
    """Let what has ended expire, as jobs do, and return the sum."""
    [answer] = apply_now([ExpireGrants(wallet.pk)])
    return answer.expired


def open_hold(wallet, amount, *, reserved_at=None):
    Wallet.objects.filter(pk=wallet.pk).update(held=F("held") + amount)
    moment = reserved_at or timezone.now()
    return Hold.objects.create(
        id=uuid7(),
        wallet=wallet,
        tenant=wallet.tenant_id,
        project=uuid7(),
        model="m",
        deployment=uuid7(),
        card_version=uuid7(),
        amount=amount,
        owner=uuid7(),
        reserved_at=moment,
        lease_until=moment + timedelta(seconds=30),
    )


@pytest.fixture
def record(wallet):
    """Make a usage record as the writer leaves it: `record(model="m", charge=5, output_tokens=3, at=…)`."""

    def record(*, at=None, tenant=None, request=None, **columns):
        moment = at or timezone.now()
        request = request or uuid7(int(moment.timestamp() * 1000))
        columns = {"project": PROJECT, "model": "m", "charge": 1, "held": 1, "input_tokens": 1, **columns}
        return UsageRecord.objects.create(
            day=day_of(request),
            request=request,
            tenant=tenant or wallet.tenant_id,
            wallet=wallet.pk,
            deployment=PROJECT,
            card_version=PROJECT,
            reserved_at=moment,
            **columns,
        )

    return record
