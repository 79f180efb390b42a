"""What each operation answers, and that it is safe to repeat."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from base.ids import uuid7
from billing.models import CreditGrant, Hold, LedgerAccount, LedgerTransfer, OutboxEvent, UsageRecord, Wallet
from billing.services import wallets
from billing.writer import WriterError
from billing.writer.apply import apply_now
from billing.writer.grants import MOST_OPEN_GRANTS
from billing.writer.operations import (
    EndFacts,
    ExpireGrants,
    GrantsExpired,
    Held,
    Refused,
    Renewed,
    Settle,
    Settled,
    Stale,
    TrueUp,
)
from tests.billing.writer.world import OWNER, extend, grant, make_wallet, release, renew, reserve, settle

pytestmark = [pytest.mark.contract, pytest.mark.django_db(transaction=True)]


def test_a_request_from_hold_to_record(desk):
    wallet = make_wallet(credit=100)
    route = {"reason": 'says "yes"', "passed": ["a,b", "{c}", "d\\e", None, "é"]}
    known = {"endpoint": "responses", "task": "chät", "route": route, "end_user": "e'"}
    made = reserve(wallet, 40, **known)
    assert desk.ask_one(made) == Held(40, 60)
    assert Hold.objects.get().facts == known
    assert desk.ask_one(extend(made, 70)) == Held(70, 30)
    facts = {"finish": "stop", "ttft_ms": 7}
    closing = Settle(made.request, wallet.pk, 65, {"input": 3, "cache_read": 2, "reasoning": 1}, EndFacts(**facts))
    assert desk.ask_one(closing) == Settled(65, 35, 0)
    record = UsageRecord.objects.get()
    assert record.id == record.request == made.request
    assert {name: getattr(record, name) for name in known | facts} == known | facts
    assert (record.input_tokens, record.cache_read_tokens, record.output_tokens, record.reasoning_tokens) == (
        3,
        2,
        0,
        1,
    )
    assert (record.charge, record.held, record.exact, record.duration_ms, record.waived) == (65, 70, True, None, False)
    assert (record.tenant, record.wallet, record.model) == (wallet.tenant_id, wallet.pk, made.model)
    assert record.reserved_at <= record.settled_at <= timezone.now()
    transfer = LedgerTransfer.objects.get(request=made.request)
    assert (transfer.amount, transfer.debit.wallet_id, transfer.credit.kind) == (65, wallet.pk, "usage")
    assert [event.payload for event in OutboxEvent.objects.filter(topic="usage")] == [{"records": [str(made.request)]}]
    assert not Hold.objects.exists()


@pytest.mark.parametrize(("bad", "kept"), [("a\0b", "a\ufffdb"), ("a\ud83db", "a?b")])
def test_words_of_a_failure_that_no_database_keeps_leave_no_hold_open(desk, bad, kept):
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 40, endpoint="chat", route={"reason": bad})
    assert desk.ask_one(made) == Held(40, 60)
    route = {"attempts": [{"failed": bad, "model": "says \\u0000"}, {bad: None}]}
    closing = Settle(made.request, wallet.pk, 9, {"output": 1}, EndFacts(bad, route=route), exact=False)
    assert desk.ask_one(closing) == Settled(9, 91, 0)
    assert desk.ask_one(TrueUp(made.request, wallet.pk, 9, {"output": 1}, bad)) == Settled(9, 91, 0)
    stored = {"attempts": [{"failed": kept, "model": "says \\u0000"}, {kept: None}]}
    records = UsageRecord.objects.order_by("revision")
    assert [(one.finish, one.route) for one in records] == [(kept, stored), (kept, stored)]


def test_a_hold_without_facts_leaves_none_in_its_record(desk):
    made = reserve(make_wallet(credit=100), 40)
    desk.ask_one(made)
    desk.ask_one(release(made))
    record = UsageRecord.objects.get()
    assert (record.endpoint, record.task, record.route, record.end_user) == ("", "", {}, "")


@pytest.mark.parametrize(
    "facts", [{"endpoint": "e" * 41}, {"task": "t" * 41}, {"end_user": "u" * 65}, {"kept": "k" * 33}]
)
def test_facts_that_no_record_could_take_are_refused_before_anything_runs(desk, facts):
    wallet = make_wallet(credit=100)
    answers = desk.ask(reserve(wallet, 40, **facts), reserve(wallet, 10))
    assert isinstance(answers[0], WriterError)
    assert answers[1] == Held(10, 90)


def test_reserve_takes_what_fits_down_to_its_least(desk):
    wallet = make_wallet(credit=100)
    assert desk.ask_one(reserve(wallet, 80, 10)) == Held(80, 20)
    assert desk.ask_one(reserve(wallet, 80, 21)) == Refused("wallet", 20, 100)
    assert desk.ask_one(reserve(wallet, 80, 20)) == Held(20, 0)
    assert desk.ask_one(reserve(wallet, 80, 1)) == Refused("wallet", 0, 100)


def test_a_frozen_wallet_holds_nothing_until_it_is_opened(desk):
    wallet = make_wallet(credit=100)
    assert desk.ask_one(reserve(wallet, 10)) == Held(10, 90)  # the writer knows it as open
    wallets.set_state(wallet.pk, Wallet.State.FROZEN)
    assert desk.ask_one(reserve(wallet, 0, 0)) == Refused("wallet_frozen", 0)
    wallets.set_state(wallet.pk, Wallet.State.OPEN)
    assert desk.ask_one(reserve(wallet, 10)) == Held(10, 80)


def test_a_charge_is_taken_from_as_many_grants_as_a_wallet_may_have(desk):
    wallet = make_wallet(credit=1)
    most = MOST_OPEN_GRANTS
    grants = [CreditGrant(wallet=wallet, kind="paid", amount=1, remaining=1) for _ in range(most - 1)]
    CreditGrant.objects.bulk_create(grants)
    account, issuance = wallets.account_of(wallet), wallets.operator_account("issuance_paid")
    LedgerTransfer.objects.bulk_create(
        LedgerTransfer(debit=issuance, credit=account, amount=1, code=LedgerTransfer.Code.GRANT, grant=one)
        for one in grants
    )
    Wallet.objects.filter(pk=wallet.pk).update(posted=most)
    with pytest.raises(ValueError, match=f"wallet: it has {most} grants"):
        grant(wallet, 1, kind="promotional")
    for kind in ("paid", "plan"):
        assert grant(wallet, 1, kind=kind).remaining == 1, "money is never refused"
    made = reserve(wallet, most + 2)
    assert desk.ask_one(made) == Held(most + 2, 0)
    assert desk.ask_one(settle(made, most + 2)) == Settled(most + 2, 0, 0)
    assert grant(wallet, 1).remaining == 1


def test_an_overdrawn_wallet_holds_nothing_more(desk):
    wallet = make_wallet(credit=10, overdraft=5)
    made = reserve(wallet, 15)
    assert desk.ask_one(made) == Held(15, 0)
    assert desk.ask_one(settle(made, 30)) == Settled(30, -20, 0)
    taken = LedgerTransfer.objects.filter(request=made.request).order_by("order")
    assert [(t.amount, t.grant_id is None) for t in taken] == [(10, False), (20, True)]
    assert desk.ask_one(reserve(wallet, 0, 0)) == Refused("wallet", -15, -15)


def test_extend_never_lowers_and_ends_with_its_hold(desk):
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 50)
    desk.ask_one(made)
    assert desk.ask_one(extend(made, 20)) == Held(50, 50)
    assert desk.ask_one(extend(made, 500, 101)) == Refused("wallet", 50, 100)
    assert desk.ask_one(extend(made, 500, 100)) == Held(100, 0)
    assert desk.ask_one(extend(made, 500, 100)) == Held(100, 0)
    desk.ask_one(release(made))
    assert desk.ask_one(extend(made, 500)) == Stale()


def test_everything_may_be_repeated(desk):
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 50)
    assert desk.ask(made, made) == [Held(50, 50), Held(50, 50)]
    assert desk.ask(settle(made, 30), settle(made, 30), settle(made, 31), release(made)) == [
        Settled(30, 70, 0), Settled(30, 70, 0), Stale(), Stale(),
    ]  # fmt: skip
    nothing = reserve(wallet, 50)
    assert desk.ask(nothing, release(nothing), release(nothing)) == [Held(50, 20), Settled(0, 70, 0), Settled(0, 70, 0)]
    assert desk.ask_one(settle(nothing, 5)) == Stale()
    assert desk.ask_one(settle(reserve(wallet, 1), 1)) == Stale()
    assert UsageRecord.objects.count() == 2
    assert UsageRecord.objects.get(request=nothing.request).charge == 0


def test_grants_are_burnt_in_order_and_only_those_that_the_hold_saw(desk):
    wallet = make_wallet()
    soon, later = timezone.now() + timedelta(days=1), timezone.now() + timedelta(days=2)
    kinds = CreditGrant.Kind
    paid = grant(wallet, 10, kinds.PAID)
    promised = grant(wallet, 10, kinds.PROMOTIONAL)
    late = grant(wallet, 10, kinds.PAID, expires_at=later)
    early = grant(wallet, 10, kinds.PAID, expires_at=soon)
    first = grant(wallet, 10, kinds.PAID, priority=1)
    made = reserve(wallet, 45)
    desk.ask_one(made)
    since = grant(wallet, 10, kinds.PROMOTIONAL, priority=0)
    assert desk.ask_one(settle(made, 55)) == Settled(55, 5, 0)
    taken = LedgerTransfer.objects.filter(request=made.request).order_by("order")
    assert [t.grant_id for t in taken] == [g.pk for g in (first, early, late, promised, paid, since)]
    assert [t.amount for t in taken] == [10, 10, 10, 10, 10, 5]


def test_renew_keeps_leases_and_checkpoints_of_its_owner_only(desk):
    wallet = make_wallet(credit=100)
    mine, his = reserve(wallet, 1), reserve(wallet, 1, owner=uuid.uuid4())
    desk.ask(mine, his)
    Hold.objects.update(lease_until=timezone.now())
    assert desk.ask_one(renew(mine, his, reserve(wallet, 1), input=5, output=9)) == Renewed(frozenset({mine.request}))
    assert desk.ask_one(renew(mine, input=7, output=8)) == Renewed(frozenset({mine.request}))
    hold = Hold.objects.get(pk=mine.request)
    assert hold.checkpoint == {"input": 7, "output": 8}
    assert timezone.now() + timedelta(seconds=20) < hold.lease_until < timezone.now() + timedelta(seconds=31)
    assert Hold.objects.get(pk=his.request).lease_until <= timezone.now()
    assert desk.ask_one(renew(owner=OWNER)) == Renewed(frozenset())


def test_tokens_that_become_others_of_another_class_count_once(desk):
    """Some servers say only at the end how much was cached or reasoned: both ways of counting were charged together."""
    wallet = make_wallet(credit=1_000)
    made = reserve(wallet, 100)
    desk.ask_one(made)
    desk.ask_one(renew(made, input=100, output=50))
    last = {"input": 20, "cache_read": 80, "output": 10, "reasoning": 50}
    desk.ask_one(renew(made, **last))
    assert Hold.objects.get(pk=made.request).checkpoint == last
    desk.ask_one(renew(made))
    assert Hold.objects.get(pk=made.request).checkpoint == last, "an empty one says nothing"
    desk.ask(renew(made, input=21, cache_read=80), renew(made))
    assert Hold.objects.get(pk=made.request).checkpoint == {"input": 21, "cache_read": 80}


def test_what_has_ended_expires_in_the_flush_that_asks_for_credit(desk, clock):
    wallet = make_wallet(credit=30)
    gone = grant(wallet, 70, expires_at=timezone.now() + timedelta(days=1))
    clock.set(gone.expires_at)
    answers = desk.ask(reserve(wallet, 100, 10), reserve(wallet, 100, 10), reserve(make_wallet(credit=5), 5))
    assert answers == [Held(30, 0), Refused("wallet", 0, 30), Held(5, 0)]
    wallet.refresh_from_db()
    gone.refresh_from_db()
    assert (wallet.posted, wallet.next_grant_change_at) == (30, None)
    assert (gone.remaining, gone.expired_at) == (0, gone.expires_at)
    lost = LedgerTransfer.objects.get(grant=gone, code=LedgerTransfer.Code.EXPIRY)
    assert (lost.amount, lost.credit.kind, lost.effective_at) == (70, "breakage", gone.expires_at)


def test_a_roll_posts_what_has_ended_once(desk, clock):
    wallet = make_wallet(credit=30)
    gone = grant(wallet, 70, expires_at=timezone.now() + timedelta(days=1))
    made = reserve(wallet, 50)
    desk.ask_one(made)
    assert desk.ask_one(ExpireGrants(wallet.pk)) == GrantsExpired(0, 100, 50)
    clock.set(gone.expires_at)
    assert desk.ask(ExpireGrants(wallet.pk), ExpireGrants(wallet.pk)) == [
        GrantsExpired(20, 80, 50),
        GrantsExpired(0, 80, 50),
    ]
    assert desk.ask(settle(made, 35), ExpireGrants(wallet.pk)) == [Settled(35, 30, 0), GrantsExpired(0, 30, 0)]
    assert Wallet.objects.get(pk=wallet.pk).next_grant_change_at is None


@pytest.mark.parametrize("through", ["writer", "apply_now"])
def test_an_extend_stands_on_no_credit_that_has_ended_whenever_its_hold_was_made(desk, clock, through):
    wallet = make_wallet(credit=30)
    gone = grant(wallet, 70, expires_at=timezone.now() + timedelta(days=1))
    before = reserve(wallet, 20)
    desk.ask(before)
    clock.set(gone.expires_at)
    ask = desk.ask if through == "writer" else lambda *operations: apply_now(operations)
    # What `before` may need of the ended 70 is kept for it; nobody gets any of the rest.
    assert ask(extend(before, 25)) == [Held(25, 25)]
    after = reserve(wallet, 10)
    assert ask(after, extend(after, 100, 5)) == [Held(10, 15), Held(25, 0)]
    assert Wallet.objects.get(pk=wallet.pk).posted == 50
    ask(release(before), release(after))  # a day after its lease, reconciliation finds a hold that is open


def test_a_frozen_wallet_extends_no_hold(desk):
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 20)
    desk.ask_one(made)
    wallets.set_state(wallet.pk, Wallet.State.FROZEN)
    assert desk.ask_one(extend(made, 50, 21)) == Refused("wallet_frozen", 0)
    assert desk.ask_one(extend(made, 20, 20)) == Held(20, 80)
    assert desk.ask_one(settle(made, 15)) == Settled(15, 85, 0)


def test_a_bad_operation_fails_alone(desk):
    wallet = make_wallet(credit=1000)
    made = [reserve(wallet, 10) for _ in range(12)]
    desk.ask(*made)
    closing = [settle(one, 1) for one in made]
    closing[2] = settle(made[2], 2**70, {"input": 1})  # too large for the database
    closing[3] = settle(made[3], None, {"input": 1})
    closing[6] = settle(reserve(make_wallet(), 1), 1, {"inputs": 1})
    closing[8] = Settle(made[8].request, uuid7(), 1, {})
    answers = desk.ask(*closing)
    failed = {2, 3, 6, 8}
    assert {i for i, answer in enumerate(answers) if isinstance(answer, WriterError)} == failed
    assert {i for i, answer in enumerate(answers) if isinstance(answer, Settled)} == set(range(12)) - failed
    assert desk.ask(settle(made[2], 2), settle(made[8], 3))[1] == Settled(3, 1000 - 8 - 5, 20)


def test_a_duplicate_that_only_the_database_sees_fails_alone(desk):
    wallet = make_wallet(credit=1000)
    made = [reserve(wallet, 10) for _ in range(5)]
    desk.ask(*made)
    account, usage = wallet.accounts.get(), LedgerAccount.objects.get(kind="usage")
    code = LedgerTransfer.Code
    common = {"amount": 1, "request": made[3].request}
    LedgerTransfer.objects.create(debit=account, credit=usage, code=code.CHARGE, **common)
    answers = desk.ask(*(settle(one, 1) for one in made))
    assert [type(answer).__name__ for answer in answers] == [*["Settled"] * 3, "WriterError", "Settled"]
    LedgerTransfer.objects.create(debit=usage, credit=account, code=code.TRUE_UP, **common)
    assert desk.ask_one(release(made[3])) == Settled(0, 996, 0)
