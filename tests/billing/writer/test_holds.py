from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.utils import timezone

from billing import reconcile
from billing.models import Hold, UsageRecord, Wallet
from billing.services.holds import end_leases_of_earlier_owners, end_restored_leases, take_expired
from billing.writer.apply import apply_now
from billing.writer.entry import WriterError
from billing.writer.operations import Held, Refused, Renewed, RequestFacts, Settled, Stale
from tests.billing.writer.world import OWNER, extend, make_wallet, release, renew, repin, reserve, settle

pytestmark = [pytest.mark.contract, pytest.mark.django_db(transaction=True)]


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


def test_a_hold_that_is_pinned_anew_is_recorded_and_swept_as_what_it_is_now(desk):
    made = reserve(make_wallet(credit=100), 10, route={"model": "first"}, task="chat", streamed=True)
    moved = repin(made, 40, least=30, facts=RequestFacts(route={"model": "second"}, task="chat", streamed=True))
    assert desk.ask_one(made) == Held(10, 90)
    assert desk.ask_one(moved) == Held(40, 60)
    expire(made)
    [orphan] = take_expired()
    assert (orphan.deployment, orphan.card_version, orphan.amount) == (moved.deployment, moved.card_version, 40)
    assert desk.ask_one(settle(made, 35)) == Settled(35, 65, 0)
    record = UsageRecord.objects.get(request=made.request)
    assert (record.model, record.deployment, record.card_version) == (moved.model, moved.deployment, moved.card_version)
    assert (record.route, record.task, record.held) == ({"model": "second"}, "chat", 40)


def test_pinning_anew_changes_the_multiplier_only_where_one_is_given(desk):
    """A request of a batch costs another part of another card's rates: the record's formula has to come out."""
    wallet = make_wallet(credit=100)
    for given, kept in ((None, 10_000), (7_500, 7_500)):
        made = reserve(wallet, 10)
        desk.ask_one(made)
        desk.ask_one(repin(made, 20, multiplier_bp=given))
        assert Hold.objects.get(pk=made.request).multiplier_bp == kept
        desk.ask_one(settle(made, 5))
        assert UsageRecord.objects.get(request=made.request).multiplier_bp == kept


def test_pinning_anew_takes_what_fits_or_changes_nothing(desk):
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 10)
    desk.ask_one(made)
    assert desk.ask_one(repin(made, 200, least=101)) == Refused("wallet", 90, 100)
    hold = Hold.objects.get(pk=made.request)
    assert (hold.deployment, hold.card_version, hold.model) == (made.deployment, made.card_version, made.model)
    assert hold.amount == 10
    assert desk.ask_one(repin(made, 200, least=100)) == Held(100, 0)
    assert desk.ask_one(repin(made, 5, least=5)) == Held(100, 0), "a hold never falls"


def test_pinning_anew_may_be_repeated(desk):
    made = reserve(make_wallet(credit=100), 10)
    desk.ask_one(made)
    moved = repin(made, 40, least=40)
    assert desk.ask(moved, moved) == [Held(40, 60), Held(40, 60)]
    assert apply_now([moved]) == [Held(40, 60)]
    assert Wallet.objects.get(pk=made.wallet).held == 40


def test_nothing_is_pinned_anew_that_is_not_held(desk):
    made, swept = (reserve(make_wallet(credit=100), 10) for _ in range(2))
    assert desk.ask_one(repin(made, 20)) == Stale()
    desk.ask(made, swept)
    desk.ask_one(settle(made, 4))
    expire(swept)
    take_expired()
    assert desk.ask(repin(made, 20), repin(swept, 20)) == [Stale(), Stale()]


def test_of_a_frozen_wallet_nothing_more_is_held_for_another_price(desk):
    made = reserve(make_wallet(credit=100), 10)
    desk.ask_one(made)
    Wallet.objects.update(state=Wallet.State.FROZEN)
    assert desk.ask_one(repin(made, 20, least=11)) == Refused("wallet_frozen", 0)
    assert desk.ask_one(repin(made, 20, least=10)) == Held(10, 90)


@pytest.mark.parametrize(
    "fields", [{"amount": -1}, {"amount": 1, "least": -1}, {"amount": 1, "facts": RequestFacts(task="t" * 41)}]
)
def test_what_could_never_be_recorded_is_not_pinned(desk, fields):
    made = reserve(make_wallet(credit=100), 10)
    desk.ask_one(made)
    with pytest.raises(WriterError, match=f"repin {made.request}"):
        desk.ask_one(repin(made, **fields))
    assert Hold.objects.get(pk=made.request).deployment == made.deployment


def test_a_record_tells_the_route_that_its_end_tells(desk):
    made, plain = (reserve(make_wallet(credit=100), 10, route={"node": "n1"}) for _ in range(2))
    desk.ask(made, plain)
    told = {"node": "n2", "attempts": [{"node": "n1", "failed": 'a "quoted" \\ reason'}, None]}
    desk.ask(settle(made, 4, route=told), settle(plain, 4))
    assert UsageRecord.objects.get(request=made.request).route == told
    assert UsageRecord.objects.get(request=plain.request).route == {"node": "n1"}
