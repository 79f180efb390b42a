"""Services of credit at the same moment, in threads with connections of their own."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from billing.models import CreditGrant, LedgerTransfer, Subscription, Wallet
from billing.services import credits, plans, wallets
from billing.services.errors import InsufficientCreditError
from billing.writer.apply import apply_now
from billing.writer.operations import Held
from tests.billing.books import assert_books_balance
from tests.billing.conftest import roll
from tests.billing.writer.world import reserve

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]


def at_once(*actions):
    """Run the actions together; return what each answered, or the error that it raised."""
    start = threading.Barrier(len(actions))
    answers = [None] * len(actions)

    def run(position, action):
        try:
            start.wait()
            answers[position] = action()
        except Exception as error:  # noqa: BLE001 - handed to the test's thread
            answers[position] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=item) for item in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_one_key_at_once_grants_once(wallet):
    def grant():
        return credits.grant(wallet_id=wallet.pk, amount=10, kind="paid", key="top-up")

    answers = at_once(*[grant] * 4)
    assert len({answer.pk for answer in answers}) == 1
    assert Wallet.objects.get(pk=wallet.pk).posted == 10


def test_corrections_at_once_never_overspend(wallet, give):
    give(100)

    def take(number):
        return lambda: credits.adjust(wallet_id=wallet.pk, amount=-40, key=f"k{number}", actor="a", reason="r")

    answers = at_once(*[take(number) for number in range(4)])
    assert sum(isinstance(answer, InsufficientCreditError) for answer in answers) == 2
    assert answers.count(None) == 2
    assert Wallet.objects.get(pk=wallet.pk).posted == 20
    assert_books_balance(wallet)


def test_rolls_and_voids_at_once_take_each_grant_once(wallet, give, clock):
    made = [give(10, expires_at=timezone.now() + timedelta(days=1)) for _ in range(3)]
    clock.set(timezone.now() + timedelta(days=2))
    at_once(
        lambda: roll(wallet),
        lambda: roll(wallet),
        lambda: credits.void(grant_id=made[0].pk, key="v", actor="a", reason="r"),
    )
    assert Wallet.objects.get(pk=wallet.pk).posted == 0
    assert_books_balance(wallet)


def test_a_grant_is_paid_back_once_and_not_for_what_a_request_holds(wallet, give):
    """Without the wallet's lock both refunds paid for the whole grant, and the request was charged to nobody."""
    made = give(100, kind="paid", paid_amount=1_000, currency="EUR")

    def refund(number):
        asked = {"key": f"refund:{number}", "reference": f"re_{number}", "actor": "a", "reason": "r"}
        return lambda: credits.refund(grant_id=made.pk, **asked)

    held, *answers = at_once(lambda: apply_now([reserve(wallet, 40)]), refund(1), refund(2))
    made.refresh_from_db()
    kept = 40 if isinstance(held[0], Held) else 0
    assert sorted(map(str, answers)) == sorted([str(100 - kept), "grant: nothing is left of it that isn't held"])
    assert (made.refunded_amount, made.remaining) == (10 * (100 - kept), kept)
    fresh = Wallet.objects.get(pk=wallet.pk)
    assert (fresh.posted, fresh.held) == (kept, kept)
    assert_books_balance(wallet)


def test_overlapping_sweeps_grant_a_month_once(tenant):
    plans.ensure_default_plans()
    made = plans.subscribe(tenant.pk, "free")
    answers = at_once(*[lambda: plans.grant_month(made.pk, made.granted_until)] * 3)
    assert sum(answer is not None for answer in answers) == 1
    assert CreditGrant.objects.count() == 2


def test_subscribing_at_once_makes_one_subscription_with_one_month(tenant):
    plans.ensure_default_plans()
    answers = at_once(*[lambda: plans.subscribe(tenant.pk, "free")] * 3)
    assert len({answer.pk for answer in answers}) == 1
    assert Subscription.objects.count() == CreditGrant.objects.count() == LedgerTransfer.objects.count() == 1


def test_opening_a_wallet_at_once_makes_one(tenant):
    answers = at_once(*[lambda: wallets.open_wallet(tenant_id=tenant.pk)] * 3)
    assert len({answer.pk for answer in answers}) == 1
