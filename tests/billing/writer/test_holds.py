from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.utils import timezone

from billing import reconcile
from billing.models import Hold
from billing.services.holds import end_leases_of_earlier_owners, end_restored_leases, take_expired
from billing.writer.operations import Renewed, Settled, Stale
from tests.billing.writer.world import OWNER, extend, make_wallet, release, renew, reserve, settle

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]


def expire(*made):
    Hold.objects.filter(pk__in=[one.request for one in made]).update(lease_until=timezone.now() - timedelta(seconds=1))


def test_expired_holds_are_orphaned_and_given_to_the_sweep_until_closed(desk):
    wallet, other = make_wallet(credit=100), make_wallet(credit=100)
    old, older, fresh = reserve(wallet, 10), reserve(other, 20), reserve(wallet, 30)
    desk.ask(old, older, fresh)
    desk.ask_one(renew(old, input=4))
    expire(old, older)
    found = {orphan.request: orphan for orphan in take_expired()}
    assert found.keys() == {old.request, older.request}
    one = found[old.request]
    assert (one.wallet, one.amount, one.checkpoint, one.deployment) == (wallet.pk, 10, {"input": 4}, old.deployment)
    assert (one.card_version, one.multiplier_bp, one.owner) == (old.card_version, 10_000, OWNER)
    assert take_expired() == [found[orphan.request] for orphan in take_expired()]
    assert len(take_expired(limit=1)) == 1
    assert desk.ask(renew(old, fresh), extend(old, 50)) == [Renewed(frozenset({fresh.request})), Stale()]
    assert desk.ask(settle(old, 4), release(older)) == [Settled(4, 96, 30), Settled(0, 100, 0)]
    assert take_expired() == []


def test_a_lease_renewed_in_time_is_not_taken(desk):
    made = reserve(make_wallet(credit=100), 10)
    desk.ask_one(made)
    expire(made)
    assert desk.ask_one(renew(made)) == Renewed(frozenset({made.request}))
    assert take_expired() == []


def test_a_new_owner_of_a_home_ends_the_leases_of_earlier_ones(desk):
    wallet = make_wallet(credit=100)
    mine, his = reserve(wallet, 10, owner=uuid.uuid4()), reserve(wallet, 20)
    desk.ask(mine, his)
    assert end_leases_of_earlier_owners(mine.owner) == 1
    assert [orphan.request for orphan in take_expired()] == [his.request]
    assert end_leases_of_earlier_owners(mine.owner) == 0


def test_a_new_owner_ends_leases_that_a_clock_which_went_back_left_in_the_future(desk):
    made = reserve(make_wallet(credit=100), 10)
    desk.ask_one(made)
    future = timezone.now() + timedelta(hours=3)
    Hold.objects.update(reserved_at=future, lease_until=future + timedelta(seconds=30))
    assert end_leases_of_earlier_owners(uuid.uuid4()) == 1
    Hold.objects.update(lease_until=F("lease_until") - timedelta(milliseconds=1))  # SQLite's clock counts these
    assert [orphan.request for orphan in take_expired()] == [made.request]


def test_a_hold_of_a_restored_database_is_looked_for_as_long_as_any(desk):
    """The backup may be days old: without a new lease its holds would count as left open, and as past all evidence."""
    wallet = make_wallet(credit=100)
    running, orphaned = reserve(wallet, 10), reserve(wallet, 20)
    desk.ask(running, orphaned)
    expire(orphaned)
    assert len(take_expired()) == 1
    long_ago = timezone.now() - timedelta(days=2)
    Hold.objects.update(reserved_at=long_ago, lease_until=long_ago)
    Hold.objects.filter(pk=orphaned.request).update(orphaned_at=long_ago)
    assert {finding.check for finding in reconcile.check(connection)} == {"hold_left_open"}
    assert end_restored_leases() == 2
    assert reconcile.check(connection) == []
    Hold.objects.update(lease_until=F("lease_until") - timedelta(milliseconds=1))  # SQLite's clock counts these
    taken = take_expired()
    assert {orphan.request for orphan in taken} == {running.request, orphaned.request}
    assert all(orphan.orphaned_at > long_ago for orphan in taken)


def test_orphans_that_were_taken_with_a_lease_are_left_alone_until_it_is_over(desk):
    wallet, other = make_wallet(credit=100), make_wallet(credit=100)
    made = [reserve(wallet, 10), reserve(other, 20), reserve(wallet, 30)]
    desk.ask(*made)
    expire(*made)
    lease = timedelta(minutes=1)
    first = [orphan.request for orphan in take_expired(2, lease=lease)]
    second = [orphan.request for orphan in take_expired(lease=lease)]
    assert (len(first), len(second)) == (2, 1)
    assert {*first, *second} == {one.request for one in made}
    assert take_expired(lease=lease) == []
    assert len(take_expired()) == 3, "who asks for no lease is shown all"
    expire(*made)
    assert len(take_expired(lease=lease)) == 3
