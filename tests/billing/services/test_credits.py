from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from base.ids import uuid7
from billing.models import CreditGrant, Hold, LedgerAccount, LedgerTransfer, Wallet
from billing.services import credits, wallets
from billing.services.errors import InsufficientCreditError, KeyReusedError, WalletNotFoundError
from billing.writer.grants import MAX_POSTED
from tests.billing.books import assert_books_balance, overdraft_of, total
from tests.billing.conftest import roll

pytestmark = [pytest.mark.money, pytest.mark.django_db]

Kind = CreditGrant.Kind


def in_days(days):
    return timezone.now() + timedelta(days=days)


def charge(wallet, amount, grant=None, hold=None):
    """Charge the wallet by hand, as the writer would."""
    account = LedgerAccount.objects.get(wallet=wallet)
    LedgerTransfer.objects.create(
        debit=account, credit=wallets.operator_account("usage"), amount=amount, code=2, grant=grant
    )
    fresh = Wallet.objects.get(pk=wallet.pk)
    held = hold.amount if hold else 0
    Wallet.objects.filter(pk=wallet.pk).update(posted=fresh.posted - amount, held=fresh.held - held)
    if hold:
        hold.delete()
    if grant:
        CreditGrant.objects.filter(pk=grant.pk).update(
            remaining=CreditGrant.objects.get(pk=grant.pk).remaining - amount
        )


def test_open_wallet_is_idempotent_and_has_its_account(tenant):
    first = wallets.open_wallet(tenant_id=tenant.pk)
    assert wallets.open_wallet(tenant_id=tenant.pk) == first
    assert LedgerAccount.objects.filter(wallet=first).count() == 1
    assert set(LedgerAccount.objects.filter(wallet=None).values_list("kind", flat=True)) == {
        "issuance_paid", "issuance_promo", "issuance_plan", "issuance_goodwill", "usage", "breakage", "adjustment",
            "rollover",
    }  # fmt: skip


def test_grant_posts_both_sides(wallet, give):
    made = give(1_000, kind=Kind.PAID, paid_amount=5, currency="EUR", actor="ada", reason="invoice 7")
    transfer = LedgerTransfer.objects.get(grant=made)
    assert (transfer.debit.kind, transfer.credit.wallet_id) == ("issuance_paid", wallet.pk)
    assert (transfer.actor, transfer.reason, transfer.amount) == ("ada", "invoice 7", 1_000)
    wallet.refresh_from_db()
    assert (wallet.posted, wallet.version, made.remaining) == (1_000, 2, 1_000)
    assert_books_balance(wallet)


def test_grant_with_the_same_key_is_made_once(wallet, give):
    first = give(10, key="top-up:1")
    assert give(10, key="top-up:1") == first
    wallet.refresh_from_db()
    assert wallet.posted == 10
    with pytest.raises(KeyReusedError):
        give(11, key="top-up:1")
    with pytest.raises(KeyReusedError):
        give(10, key="top-up:1", kind=Kind.PAID)
    for terms in ({"priority": 1}, {"paid_amount": 500, "currency": "EUR"}):
        with pytest.raises(KeyReusedError):
            give(10, key="top-up:1", **terms)
    credits.void(grant_id=first.pk, key="v", actor="a", reason="r")
    assert give(10, key="top-up:1") == first


def test_grant_to_no_wallet_is_refused(tenant):
    with pytest.raises(WalletNotFoundError):
        credits.grant(wallet_id=tenant.pk, amount=1, kind=Kind.PAID, key="k")


def test_grant_that_has_expired_already_is_refused(wallet, give):
    with pytest.raises(ValueError, match="expires_at"):
        give(1, expires_at=in_days(-1))
    assert_books_balance(wallet)


def test_next_change_is_the_earliest_expiry_of_what_has_credit(wallet, give):
    give(5)
    late = give(5, expires_at=in_days(9))
    early = give(5, expires_at=in_days(3))
    wallet.refresh_from_db()
    assert wallet.next_grant_change_at == early.expires_at
    credits.void(grant_id=early.pk, key="v", actor="a", reason="r")
    wallet.refresh_from_db()
    assert wallet.next_grant_change_at == late.expires_at


def test_grant_repays_the_overdraft_first(wallet, give):
    charge(wallet, 30)
    first = give(20)
    assert (first.remaining, overdraft_of(wallets.account_of(wallet))) == (0, 10)
    second = give(25)
    assert (second.remaining, overdraft_of(wallets.account_of(wallet))) == (15, 0)
    wallet.refresh_from_db()
    assert wallet.posted == 15
    assert_books_balance(wallet)


def test_roll_posts_what_expired_to_breakage(wallet, give, clock):
    made = give(100, expires_at=in_days(1))
    give(7)
    assert roll(wallet) == 0
    clock.set(in_days(2))
    assert roll(wallet) == 100
    clock.set(in_days(2))
    assert roll(wallet) == 0
    made.refresh_from_db()
    wallet.refresh_from_db()
    assert (made.remaining, wallet.posted, wallet.next_grant_change_at) == (0, 7, None)
    assert made.expired_at is not None
    assert total(LedgerTransfer.objects.filter(credit__kind="breakage")) == 100
    assert_books_balance(wallet)


def test_roll_at_the_instant_of_expiry_counts_as_expired(wallet, give, clock):
    made = give(100, expires_at=in_days(1))
    clock.set(made.expires_at - timedelta(microseconds=1))
    assert roll(wallet) == 0
    clock.set(made.expires_at)
    assert roll(wallet) == 100


def test_roll_keeps_what_open_holds_may_need_and_hides_the_rest(wallet, give, hold, clock):
    made = give(100, expires_at=in_days(1))
    open_hold = hold(40)
    clock.set(in_days(2))
    assert roll(wallet) == 60
    wallet.refresh_from_db()
    assert (wallet.posted, wallet.held) == (40, 40)
    assert wallet.next_grant_change_at == made.expires_at  # in the past: each reserve rolls once more
    charge(wallet, 25, made, open_hold)
    clock.set(in_days(2))
    assert roll(wallet) == 15
    wallet.refresh_from_db()
    assert (wallet.posted, wallet.held, wallet.next_grant_change_at) == (0, 0, None)
    assert_books_balance(wallet)


def test_roll_keeps_nothing_for_holds_made_after_the_expiry(wallet, give, hold, clock):
    give(100, expires_at=in_days(1))
    give(50)
    hold(40, reserved_at=in_days(1.5))
    clock.set(in_days(2))
    assert roll(wallet) == 100


def test_roll_keeps_a_hold_s_amount_once_over_several_grants(wallet, give, hold, clock):
    give(100, expires_at=in_days(1))
    give(100, expires_at=in_days(2))
    hold(30)
    clock.set(in_days(3))
    assert roll(wallet) == 170
    wallet.refresh_from_db()
    assert wallet.posted == wallet.held == 30


def test_roll_gives_each_grant_the_holds_that_only_it_can_serve(wallet, give, hold, clock):
    later = give(10, expires_at=in_days(2), priority=1)  # burnt first, though it expires last
    earlier = give(10, expires_at=in_days(1))
    hold(10)
    hold(10, reserved_at=in_days(1.5))
    clock.set(in_days(3))
    assert roll(wallet) == 0
    later.refresh_from_db()
    earlier.refresh_from_db()
    assert (later.remaining, earlier.remaining) == (10, 10)


def test_void_returns_the_rest_to_where_it_was_issued(wallet, give):
    made = give(100, kind=Kind.PLAN)
    charge(wallet, 30, made)
    assert credits.void(grant_id=made.pk, key="void:1", actor="ada", reason="wrong tenant") == 70
    assert credits.void(grant_id=made.pk, key="void:1", actor="ada", reason="wrong tenant") == 70
    assert credits.void(grant_id=made.pk, key="void:2", actor="ada", reason="again") == 0
    made.refresh_from_db()
    assert (made.remaining, made.voided_at is not None) == (0, True)
    assert total(LedgerTransfer.objects.filter(credit__kind="issuance_plan")) == 70
    assert_books_balance(wallet)


def test_void_leaves_what_open_holds_may_need(wallet, give, hold):
    made = give(100)
    open_hold = hold(40)
    assert credits.void(grant_id=made.pk, key="void:1", actor="ada", reason="r") == 60
    assert roll(wallet) == 0
    Hold.objects.filter(pk=open_hold.pk).delete()
    Wallet.objects.filter(pk=wallet.pk).update(held=0)
    assert roll(wallet) == 40
    assert_books_balance(wallet)


def test_void_leaves_to_open_holds_what_ended_before_it_first(wallet, give, hold, clock):
    """The hold is paid from what ended: of the voided grant nothing is kept for it as well."""
    ending, made = give(50, expires_at=in_days(1)), give(100, kind=Kind.PAID)
    hold(40)
    clock.set(in_days(2))
    assert credits.void(grant_id=made.pk, key="void:1", actor="ada", reason="r") == 100
    wallet.refresh_from_db()
    ending.refresh_from_db()
    made.refresh_from_db()
    assert (wallet.posted, wallet.held, ending.remaining, made.remaining) == (40, 40, 40, 0)
    assert total(LedgerTransfer.objects.filter(credit__kind="breakage")) == 10
    assert_books_balance(wallet)


def test_void_with_a_key_of_something_else_is_refused(wallet, give):
    made = give(5, key="k")
    with pytest.raises(KeyReusedError):
        credits.void(grant_id=made.pk, key="k", actor="a", reason="r")


def test_refund_takes_out_the_rest_and_keeps_what_was_paid_back(wallet, give):
    made = give(100, kind=Kind.PAID, paid_amount=999, currency="EUR")
    charge(wallet, 30, made)
    asked = {"grant_id": made.pk, "actor": "ada", "reason": "unhappy", "reference": "stripe re_1"}
    for _ in range(2):
        assert credits.refund(key="refund:1", **asked) == 70
    made.refresh_from_db()
    assert (made.remaining, made.refunded_amount, made.refund_reference) == (0, 999 * 70 // 100, "stripe re_1")
    taken = LedgerTransfer.objects.get(code=LedgerTransfer.Code.REFUND)
    assert (taken.amount, taken.credit.kind, taken.actor, taken.reason) == (70, "issuance_paid", "ada", "unhappy")
    with pytest.raises(ValueError, match="grant: nothing is left"):
        credits.refund(key="refund:2", **asked)
    with pytest.raises(KeyReusedError):
        credits.refund(key="refund:1", **{**asked, "reference": "another"})
    assert_books_balance(wallet)


def test_refund_pays_nothing_for_what_open_holds_may_need(wallet, give, hold):
    made = give(100, kind=Kind.PAID, paid_amount=1_000, currency="EUR")
    open_hold = hold(40)
    assert credits.refund(grant_id=made.pk, key="k", actor="a", reason="r", reference="x") == 60
    made.refresh_from_db()
    assert (made.refunded_amount, made.remaining) == (600, 40)
    Hold.objects.filter(pk=open_hold.pk).delete()
    Wallet.objects.filter(pk=wallet.pk).update(held=0)
    assert roll(wallet) == 40
    assert_books_balance(wallet)


def test_a_refund_in_part_lets_the_rest_go_on_whatever_is_held(wallet, give, hold):
    """The grant ended with the held part of it, and the holder lost what had been paid for."""
    made = give(100, kind=Kind.PAID, paid_amount=1_000, currency="EUR")
    hold(80)
    asked = {"grant_id": made.pk, "actor": "a", "reason": "r", "reference": "x"}
    assert credits.refund(key="k", most=50, **asked) == 20
    made.refresh_from_db()
    assert (made.remaining, made.expires_at, made.voided_at, made.refunded_amount) == (80, None, None, 200)
    with pytest.raises(ValueError, match="grant: nothing is left of it that isn't held"):
        credits.refund(key="l", most=30, **asked)
    Hold.objects.all().delete()
    Wallet.objects.filter(pk=wallet.pk).update(held=0)
    assert roll(wallet) == 0
    assert credits.refund(key="l", most=30, **asked) == 30
    assert_books_balance(wallet)


def test_a_refund_of_two_is_answered_again_as_it_was(wallet, give):
    made = give(100, kind=Kind.PAID, paid_amount=1_000, currency="EUR")
    first = {"grant_id": made.pk, "key": "k", "actor": "a", "reason": "r", "reference": "x", "money": 100, "most": 20}
    assert credits.refund(**first) == credits.refund(**first) == 20
    with pytest.raises(KeyReusedError):
        credits.refund(**first | {"money": 101})
    rest = first | {"key": "l", "reference": "y", "money": 700, "most": None}
    for _ in range(2):
        assert credits.refund(**rest) == 80
        assert credits.refund(**first) == 20
    with pytest.raises(KeyReusedError):
        credits.refund(**rest | {"reference": "z"})
    made.refresh_from_db()
    assert made.refunded_amount == 800


@pytest.mark.parametrize(
    ("terms", "asked", "field"),
    [
        ({"kind": Kind.PROMOTIONAL}, {}, "grant"),
        ({"kind": Kind.PAID}, {}, "grant"),
        ({"paid_amount": 5, "currency": "EUR"}, {"money": 6}, "money"),
        ({"paid_amount": 5, "currency": "EUR"}, {"money": -1}, "money"),
        ({"paid_amount": 5, "currency": "EUR"}, {"reference": " "}, "reference"),
    ],
)
def test_a_refund_that_cannot_be_is_refused(wallet, give, terms, asked, field):
    made = give(10, **terms)
    with pytest.raises(ValueError, match=f"{field}: "):
        credits.refund(**{"grant_id": made.pk, "key": "k", "actor": "a", "reason": "r", "reference": "x", **asked})
    assert Wallet.objects.get(pk=wallet.pk).posted == 10


def test_no_refund_of_a_request_has_a_key_like_that_of_anothers_part():
    """The refund `a` in two transfers, `a` and `a:1`, was taken for the refund `a:1` too, and that never made."""
    with pytest.raises(ValueError, match=r"^key: "):
        credits.refund_request(request=uuid7(), key="a:1", actor="a", reason="r")
    with pytest.raises(ValueError, match=r"^request: "):
        credits.refund_request(request=uuid7(), key="a:b1", actor="a", reason="r")


def test_adjust_upwards_makes_a_grant(wallet):
    for _ in range(2):
        credits.adjust(wallet_id=wallet.pk, amount=50, key="adj:1", actor="ada", reason="goodwill")
    wallet.refresh_from_db()
    assert wallet.posted == 50
    assert LedgerTransfer.objects.get(key="adj:1").debit.kind == "adjustment"
    assert_books_balance(wallet)
    with pytest.raises(KeyReusedError):
        credits.adjust(wallet_id=wallet.pk, amount=51, key="adj:1", actor="ada", reason="goodwill")


def test_adjust_downwards_burns_in_order_once(wallet, give):
    paid = give(100, kind=Kind.PAID)
    promo = give(30)
    first = give(10, priority=0)
    soon = give(20, expires_at=in_days(1))
    for _ in range(2):
        credits.adjust(wallet_id=wallet.pk, amount=-65, key="adj:1", actor="ada", reason="correction")
    rest = [CreditGrant.objects.get(pk=one.pk).remaining for one in (first, soon, promo, paid)]
    assert rest == [0, 0, 0, 95]
    assert_books_balance(wallet)
    with pytest.raises(KeyReusedError):
        credits.adjust(wallet_id=wallet.pk, amount=-10, key="adj:1", actor="ada", reason="correction")


def test_adjust_never_takes_what_is_held(wallet, give, hold):
    give(100)
    hold(40)
    with pytest.raises(InsufficientCreditError) as refused:
        credits.adjust(wallet_id=wallet.pk, amount=-61, key="k", actor="a", reason="r")
    assert (refused.value.wanted, refused.value.available) == (61, 60)
    credits.adjust(wallet_id=wallet.pk, amount=-60, key="k", actor="a", reason="r")
    assert_books_balance(wallet)


def test_adjustments_whose_keys_look_like_each_other_s_parts_are_two(wallet, give):
    """The second was taken for a repetition of the first, and never made."""
    credits.adjust(wallet_id=wallet.pk, amount=5, key="refund:1", actor="a", reason="r")
    credits.adjust(wallet_id=wallet.pk, amount=5, key="refund", actor="a", reason="r")
    wallet.refresh_from_db()
    assert wallet.posted == 10
    credits.adjust(wallet_id=wallet.pk, amount=-10, key="back", actor="a", reason="r")  # of two grants, 5 each
    with pytest.raises(KeyReusedError):
        credits.adjust(wallet_id=wallet.pk, amount=-5, key="back:1", actor="a", reason="r")
    assert_books_balance(wallet)


@pytest.mark.parametrize("amount", [0, -5])
def test_grant_of_nothing_is_refused(give, amount):
    with pytest.raises(ValueError, match="amount: must be above zero"):
        give(amount)


@pytest.mark.parametrize(
    ("paid_amount", "currency", "field"),
    [(-100, "EUR", "paid_amount"), (100, "", "paid_amount"), (None, "EUR", "paid_amount"), (1, "eu", "currency")],
)
def test_money_that_cannot_be_is_refused(give, paid_amount, currency, field):
    with pytest.raises(ValueError, match=f"{field}: "):
        give(1, paid_amount=paid_amount, currency=currency)


@pytest.mark.parametrize(("amount", "reason"), [(5, " "), (0, "r")])
def test_adjust_without_reason_or_amount_is_refused(wallet, amount, reason):
    with pytest.raises(ValueError, match=r"reason|amount"):
        credits.adjust(wallet_id=wallet.pk, amount=amount, key="k", actor="a", reason=reason)


def test_a_wallet_holds_no_more_than_its_sums_can_count(wallet, give):
    """Two grants of half of 2⁶³ made the balance a floating-point number on SQLite."""
    give(MAX_POSTED - 1)
    for amount in (2, 2**62, 2**63 - 1):
        with pytest.raises(ValueError, match="amount: a wallet holds at most"):
            give(amount)
        with pytest.raises(ValueError, match="amount: a wallet holds at most"):
            credits.adjust(wallet_id=wallet.pk, amount=amount, key=f"a{amount}", actor="ada", reason="typo")
    give(1)
    assert_books_balance(wallet)
    wallet.refresh_from_db()
    assert (wallet.posted, type(wallet.posted)) == (MAX_POSTED, int)


def test_what_has_ended_leaves_room_for_the_next_grant(wallet, give, clock):
    give(MAX_POSTED, expires_at=in_days(1))
    clock.set(in_days(2))
    assert give(MAX_POSTED).remaining == MAX_POSTED
    assert_books_balance(wallet)
