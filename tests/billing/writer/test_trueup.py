"""An estimate is corrected once, by its next revision, and the difference goes to where the charge came from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from base.ids import uuid7
from billing.models import CreditGrant, Hold, LedgerTransfer, OutboxEvent, UsageRecord, Wallet
from billing.selectors.usage import Estimate, estimates_since
from billing.services import credits
from billing.writer import WriterError
from billing.writer.entry import OutcomeUnknownError
from billing.writer.operations import EndFacts, Held, Settle, Settled, Stale, TrueUp
from tests.billing.books import assert_books_balance
from tests.billing.conftest import roll
from tests.billing.writer.test_queue import Faulty, times
from tests.billing.writer.world import CARD, DEPLOYMENT, grant, make_wallet, release, reserve, settle

pytestmark = [pytest.mark.contract, pytest.mark.django_db(transaction=True)]


def estimate(made, charge):
    return Settle(made.request, made.wallet, charge, {"input": charge}, EndFacts("lost", ttft_ms=9), exact=False)


def true_up(made, charge, finish="stop"):
    return TrueUp(made.request, made.wallet, charge, {"input": 3, "output": charge}, finish)


def estimated(desk, wallet, charge, amount=None):
    made = reserve(wallet, charge if amount is None else amount)
    assert isinstance(desk.ask_one(made), Held)
    assert isinstance(desk.ask_one(estimate(made, charge)), Settled)
    return made


def left(*grants):
    return [CreditGrant.objects.get(pk=one.pk).remaining for one in grants]


def moves(made):
    """The transfers of the true-up: from, to, amount, grant."""
    found = LedgerTransfer.objects.filter(request=made.request, code=LedgerTransfer.Code.TRUE_UP).order_by("order")
    return list(found.values_list("debit__kind", "credit__kind", "amount", "grant"))


def end(one):
    """Let the grant's time be over."""
    over = timezone.now() - timedelta(seconds=1)
    CreditGrant.objects.filter(pk=one.pk).update(expires_at=over)
    Hold.objects.update(reserved_at=over - timedelta(seconds=1))
    Wallet.objects.filter(pk=one.wallet_id).update(next_grant_change_at=over)


def test_a_dearer_truth_burns_grants_in_order_then_overdraws(desk):
    wallet = make_wallet()
    first, second = grant(wallet, 50, priority=1), grant(wallet, 30, priority=2)
    made = estimated(desk, wallet, 40)
    assert desk.ask_one(true_up(made, 100)) == Settled(100, -20, 0)
    assert left(first, second) == [0, 0]
    assert moves(made) == [
        ("wallet", "usage", 10, first.pk), ("wallet", "usage", 30, second.pk), ("wallet", "usage", 20, None),
    ]  # fmt: skip
    assert_books_balance(wallet)
    later = grant(wallet, 25)
    assert left(later) == [5]
    assert_books_balance(wallet)


def test_a_dearer_truth_leaves_what_has_ended_to_the_holds_before_it(desk):
    wallet = make_wallet()
    gone, stays = grant(wallet, 50, expires_at=timezone.now() + timedelta(days=1)), grant(wallet, 30)
    made, before = estimated(desk, wallet, 10), reserve(wallet, 35)
    desk.ask_one(before)
    end(gone)
    assert desk.ask_one(true_up(made, 25)) == Settled(25, 50, 35)
    assert left(gone, stays) == [35, 15]
    assert desk.ask_one(settle(before, 35)) == Settled(35, 15, 0)


def test_a_cheaper_truth_repays_the_overdraft_first_then_the_grants_from_the_last(desk):
    wallet = make_wallet()
    first, second = grant(wallet, 50, priority=1), grant(wallet, 30, priority=2)
    made = estimated(desk, wallet, 100, amount=80)
    assert (left(first, second), Wallet.objects.get(pk=wallet.pk).posted) == ([0, 0], -20)
    assert desk.ask_one(true_up(made, 35)) == Settled(35, 45, 0)
    assert left(first, second) == [15, 30]
    assert moves(made) == [
        ("usage", "wallet", 20, None), ("usage", "wallet", 30, second.pk), ("usage", "wallet", 15, first.pk),
    ]  # fmt: skip
    assert_books_balance(wallet)


def test_credit_of_a_grant_that_has_ended_goes_to_breakage(desk):
    wallet = make_wallet()
    gone, stays = grant(wallet, 30, expires_at=timezone.now() + timedelta(days=1)), grant(wallet, 50)
    made = estimated(desk, wallet, 60)
    end(gone)
    assert desk.ask_one(true_up(made, 10)) == Settled(10, 50, 0)
    assert left(gone, stays) == [0, 50]
    assert moves(made) == [("usage", "wallet", 30, stays.pk), ("usage", "breakage", 20, gone.pk)]
    assert_books_balance(wallet)


def test_credit_of_a_voided_grant_goes_to_breakage(desk):
    wallet = make_wallet()
    voided = grant(wallet, 30)
    made = estimated(desk, wallet, 20)
    credits.void(grant_id=voided.pk, key="v", actor="a", reason="r")
    CreditGrant.objects.update(expires_at=timezone.now() + timedelta(minutes=1))  # by another machine's clock
    assert desk.ask_one(true_up(made, 0)) == Settled(0, 0, 0)
    assert moves(made) == [("usage", "breakage", 20, voided.pk)]
    assert_books_balance(wallet)


def test_an_overdraft_that_was_repaid_goes_back_to_the_grant_that_paid_it(desk):
    wallet = make_wallet(credit=30)
    made = estimated(desk, wallet, 70, amount=30)
    payer = grant(wallet, 100)
    assert left(payer) == [60]
    assert desk.ask_one(true_up(made, 50)) == Settled(50, 80, 0)
    assert left(payer) == [80]
    assert_books_balance(wallet)


def test_an_overdraft_that_was_repaid_goes_back_to_a_grant_of_the_holds_own_moment(desk, clock):
    """It stayed in the wallet without a grant otherwise, and so for ever."""
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    clock.set(moment)
    wallet = make_wallet(credit=30)
    made = estimated(desk, wallet, 70, amount=30)
    payer = grant(wallet, 100, expires_at=moment + timedelta(days=1))
    assert left(payer) == [60]
    assert desk.ask_one(true_up(made, 50)) == Settled(50, 80, 0)
    assert left(payer) == [80]
    assert_books_balance(wallet)


def test_an_overdraft_that_was_repaid_goes_back_to_a_grant_that_still_has_credit(desk):
    wallet = make_wallet()
    made = estimated(desk, wallet, 30, amount=0)
    tomorrow = timezone.now() + timedelta(days=1)
    paid, gone = grant(wallet, 50, priority=1), grant(wallet, 40, priority=2, expires_at=tomorrow)
    end(gone)
    assert desk.ask_one(true_up(made, 10)).posted == 40
    assert left(paid, gone) == [40, 0]
    assert moves(made) == [("usage", "wallet", 20, paid.pk)]
    assert_books_balance(wallet)


def test_a_grant_that_has_credit_again_expires_in_time(desk, clock):
    wallet = make_wallet()
    over = timezone.now() + timedelta(days=1)
    spent = grant(wallet, 30, expires_at=over)
    made = estimated(desk, wallet, 30)
    Wallet.objects.update(next_grant_change_at=timezone.now() - timedelta(seconds=1))
    roll(wallet)
    assert Wallet.objects.get(pk=wallet.pk).next_grant_change_at is None
    desk.ask_one(true_up(made, 10))
    assert Wallet.objects.get(pk=wallet.pk).next_grant_change_at == over
    clock.set(over + timedelta(seconds=1))
    assert roll(wallet) == 20
    assert left(spent) == [0]
    assert_books_balance(wallet)


def test_the_revision_is_exact_and_keeps_what_was_known(desk):
    wallet = make_wallet(credit=100)
    made = estimated(desk, wallet, 40)
    OutboxEvent.objects.all().delete()
    desk.ask_one(true_up(made, 7))
    before, after = UsageRecord.objects.order_by("revision")
    assert (after.revision, after.exact, after.charge, after.finish) == (1, True, 7, "stop")
    assert (after.input_tokens, after.output_tokens, after.ttft_ms, after.held) == (3, 7, 9, 40)
    same = ("day", "request", "tenant", "project", "model", "deployment", "card_version", "wallet", "reserved_at")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    assert after.settled_at >= before.settled_at
    assert [event.payload for event in OutboxEvent.objects.all()] == [
        {"records": [], "revisions": [[str(made.request), 1]]}
    ]


def test_the_same_charge_only_becomes_exact(desk):
    wallet = make_wallet(credit=100)
    made = estimated(desk, wallet, 40)
    assert desk.ask_one(true_up(made, 40, finish="")) == Settled(40, 60, 0)
    assert moves(made) == []
    assert UsageRecord.objects.get(revision=1).finish == "lost"


def test_only_an_estimate_is_corrected_and_only_once(desk):
    wallet = make_wallet(credit=1000)
    exact, freed, opened, unknown = (reserve(wallet, 10) for _ in range(4))
    desk.ask(exact, freed, opened)
    desk.ask(settle(exact, 5), release(freed))
    assert desk.ask(*(true_up(one, 5) for one in (exact, freed, opened, unknown))) == [Stale()] * 4
    made = estimated(desk, wallet, 40)
    assert desk.ask(true_up(made, 50), true_up(made, 60), true_up(made, 50)) == [
        Settled(50, 945, 10), Stale(), Settled(50, 945, 10),
    ]  # fmt: skip
    assert UsageRecord.objects.filter(request=made.request).count() == 2
    assert desk.ask(estimate(made, 40), settle(made, 50)) == [Stale(), Settled(50, 945, 10)]


def test_a_true_up_whose_answer_was_lost_is_recognised(desk):
    wallet = make_wallet(credit=1000)
    made = estimated(desk, wallet, 40)
    faulty = desk.writer._driver = Faulty(desk.writer._driver)
    faulty.after = times(1, OutcomeUnknownError("reply lost"))
    assert desk.ask_one(true_up(made, 50)) == Settled(50, 950, 0)
    assert len(faulty.flushed) == 2
    assert moves(made) == [("wallet", "usage", 10, CreditGrant.objects.get().pk)]


def test_true_ups_of_one_flush_see_each_other(desk):
    wallet = make_wallet(credit=100)
    cheaper, dearer, other = (estimated(desk, wallet, 30) for _ in range(3))
    fresh = reserve(wallet, 20)
    answers = desk.ask(true_up(cheaper, 10), true_up(dearer, 55), fresh, true_up(other, 30))
    assert answers == [Settled(10, 30, 0), Settled(55, 5, 0), answers[2], Settled(30, 5, 0)]
    assert type(answers[2]).__name__ == "Refused"
    assert_books_balance(wallet)


def test_a_true_up_that_cannot_be_fails_alone(desk):
    wallet, other = make_wallet(credit=100), make_wallet(credit=100)
    made, good = estimated(desk, wallet, 30), estimated(desk, wallet, 30)
    astray = TrueUp(made.request, other.pk, 1, {}, "")
    negative, unknown = true_up(made, -1), TrueUp(made.request, wallet.pk, 1, {"inputs": 1}, "")
    for wrong in (astray, negative, unknown):
        answers = desk.ask(wrong, true_up(good, 10))
        assert isinstance(answers[0], WriterError)
        assert answers[1] == Settled(10, 60, 0)
    assert moves(made) == []


def test_estimates_are_found_oldest_first_until_they_are_corrected(desk):
    wallet = make_wallet(credit=1000)
    made = [estimated(desk, wallet, 10 + number) for number in range(4)]
    exact = reserve(wallet, 1)
    desk.ask_one(exact)
    desk.ask_one(settle(exact, 1))
    long_ago = uuid7(int((timezone.now() - timedelta(hours=25)).timestamp() * 1000))
    old = reserve(wallet, 5, request=long_ago)
    desk.ask_one(old)
    desk.ask_one(estimate(old, 5))
    desk.ask_one(true_up(made[1], 1))
    since = timezone.now() - timedelta(hours=24)
    found = estimates_since(since)
    wanted = sorted([made[0].request, made[2].request, made[3].request])
    assert [one.request for one in found] == wanted
    first = next(one for one in found if one.request == made[0].request)
    assert first == Estimate(made[0].request, wallet.pk, DEPLOYMENT, CARD, 10_000, 10, 10)
    assert [one.request for one in estimates_since(since, limit=2)] == wanted[:2]
    assert [one.request for one in estimates_since(since, after=wanted[0], limit=9)] == wanted[1:]


def test_estimates_are_found_by_their_own_index(desk):
    wallet = make_wallet(credit=1000)
    made = [reserve(wallet, 1) for _ in range(100)]
    desk.ask(*made)
    desk.ask(*(settle(one, 1) for one in made))
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":  # by what it knows of the rows, whenever it would look itself
            cursor.execute("ANALYZE billing_usagerecord")
            cursor.execute("SET enable_seqscan = off")
        try:
            found = UsageRecord.objects.filter(exact=False, day__gte="2026-01-01", request__gte=uuid7())
            assert "usage_record_estimated" in found.order_by("day", "request").explain()
        finally:
            if connection.vendor == "postgresql":
                cursor.execute("RESET enable_seqscan")


def test_a_charge_after_a_correction_knows_what_that_gave_back(desk):
    """A writer remembers a wallet's grants between its flushes, and a correction changes them."""
    wallet = make_wallet(credit=100)
    made, waiting = estimated(desk, wallet, 100), reserve(wallet, 0)
    desk.ask_one(waiting)
    assert desk.ask_one(true_up(made, 40)) == Settled(40, 60, 0)
    assert desk.ask_one(settle(waiting, 50)) == Settled(50, 10, 0)
    assert left(CreditGrant.objects.get()) == [10]
    assert_books_balance(wallet)
