from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from billing.selectors.balances import balance_of
from tests.billing.conftest import make_tenant, roll

pytestmark = [pytest.mark.money, pytest.mark.django_db]


def test_balance_shows_what_is_held_and_what_expires_next(tenant, give, hold):
    give(100)
    soon = give(30, expires_at=timezone.now() + timedelta(days=1))
    give(20, expires_at=timezone.now() + timedelta(days=2))
    hold(40)
    found = balance_of(tenant.pk)
    assert (found.posted, found.held, found.available) == (150, 40, 110)
    assert (found.expiring, found.expires_at) == (30, soon.expires_at)


def test_balance_leaves_out_what_expired_before_it_is_rolled(tenant, wallet, give, hold, clock):
    give(100, expires_at=timezone.now() + timedelta(days=1))
    give(50)
    hold(40)
    clock.set(timezone.now() + timedelta(days=2))
    before = balance_of(tenant.pk).available
    roll(wallet)
    assert before == balance_of(tenant.pk).available == 50


def test_balance_of_a_tenant_without_wallet_is_none(db):
    assert balance_of(make_tenant().pk) is None
