"""Credit that comes by time: grants that begin later, recurring ones, and what rolls over at their ends."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from billing import reconcile
from billing.models import CreditGrant, LedgerTransfer, Plan, RecurringGrant, ScheduledGrant, Wallet
from billing.selectors.balances import balance_of
from billing.services import credits, plans, recurring, sweeps
from billing.services.errors import KeyReusedError
from billing.writer.apply import apply_now
from billing.writer.grants import MAX_POSTED
from billing.writer.operations import ExpireGrants, Held, Refused
from tests.billing.books import assert_books_balance
from tests.billing.conftest import MovedClock, make_tenant
from tests.billing.test_credits_document import told
from tests.billing.writer.world import make_wallet, release, reserve, settle

pytestmark = [pytest.mark.money, pytest.mark.django_db]

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
PROMOTIONAL, GOODWILL, PAID = CreditGrant.Kind.PROMOTIONAL, CreditGrant.Kind.GOODWILL, CreditGrant.Kind.PAID


@pytest.fixture(autouse=True)
def _at_start(clock):
    clock.set(START)


def later(wallet, amount=40, *, kind=GOODWILL, key="k", begins_at=START + HOUR, **terms):
    return credits.grant_later(
        wallet_id=wallet.pk, amount=amount, kind=kind, key=key, begins_at=begins_at, actor="ada", reason="r", **terms
    )


def every(wallet, amount=40, window="day", *, kind=PROMOTIONAL, key="k", **terms):
    return recurring.make(
        wallet_id=wallet.pk, amount=amount, kind=kind, window=window, key=key, reason="r", actor="ada", **terms
    )


def standing(wallet):
    """The kinds of the wallet's grants with credit left, in burn order, each with what is left."""
    found = CreditGrant.objects.filter(wallet=wallet, remaining__gt=0).order_by("expires_at", "effective_at", "id")
    return [(one.kind, one.remaining) for one in found]


def check(wallet):
    assert_books_balance(wallet)
    assert reconcile.check(connection, recompute=False) == []


# -- grants that begin later -------------------------------------------------------------------------------------------


def test_a_grant_begins_when_it_was_said_to_and_no_request_comes_between(wallet, clock):
    money = {"paid_amount": 990, "currency": "EUR", "paid_reference": "T1"}
    given = later(wallet, 40, kind=PAID, expires_at=START + 2 * HOUR, priority=7, **money)
    assert balance_of(wallet.tenant_id).posted == 0
    clock.set(START + HOUR - timedelta(microseconds=1))
    assert isinstance(apply_now([reserve(wallet, 1)])[0], Refused)
    clock.set(START + HOUR)
    assert apply_now([reserve(wallet, 40)])[0] == Held(40, 0)
    made = CreditGrant.objects.get()
    assert (made.pk, made.kind, made.priority, made.effective_at) == (given, "paid", 7, START + HOUR)
    assert (made.paid_amount, made.currency, made.paid_reference) == (990, "EUR", "T1")
    transfer = LedgerTransfer.objects.get(grant=made)
    assert (transfer.debit.kind, transfer.actor, transfer.reason) == ("issuance_paid", "ada", "r")
    check(wallet)


def test_goodwill_comes_from_an_account_of_its_own_and_is_used_as_a_promotion_is(wallet, clock):
    later(wallet, 40)
    clock.set(START + HOUR)
    credits.grant(wallet_id=wallet.pk, amount=10, kind=PAID, key="p")
    made = reserve(wallet, 30)
    apply_now([made, settle(made, 30)])
    assert sorted(standing(wallet)) == [("goodwill", 10), ("paid", 10)]
    assert LedgerTransfer.objects.get(grant__kind="goodwill", code=1).debit.kind == "issuance_goodwill"
    check(wallet)


def test_a_grant_to_come_is_scheduled_once_and_cancelled_before_it_begins(wallet, clock):
    given = later(wallet)
    assert later(wallet) == given
    with pytest.raises(KeyReusedError):
        later(wallet, 41)
    credits.cancel(given)
    assert (ScheduledGrant.objects.count(), Wallet.objects.get(pk=wallet.pk).next_grant_change_at) == (0, None)
    given = later(wallet, key="other")
    clock.set(START + HOUR)
    with pytest.raises(ValueError, match="it has begun"):
        credits.cancel(given)
    credits_given = CreditGrant.objects.filter(pk=given)
    assert [later(wallet, key="other"), *credits_given.values_list("amount", flat=True)] == [given, 40]
    check(wallet)


def test_what_a_key_gave_now_it_gives_no_more_later_and_the_reverse(wallet):
    now = {"wallet_id": wallet.pk, "amount": 40, "kind": GOODWILL}
    credits.grant(**now, key="now")
    with pytest.raises(KeyReusedError):
        later(wallet, key="now")
    later(wallet, key="later")
    with pytest.raises(KeyReusedError):
        credits.grant(**now, key="later")
    with pytest.raises(KeyReusedError):
        later(wallet, key="later", begins_at=START + DAY)


def test_a_grant_to_come_is_cut_to_what_a_wallet_holds(wallet, clock):
    credits.grant(wallet_id=wallet.pk, amount=MAX_POSTED - 5, kind=PAID, key="all")
    later(wallet, 40)
    later(wallet, 40, key="another", begins_at=START + 2 * HOUR)
    clock.set(START + 3 * HOUR)
    apply_now([ExpireGrants(wallet.pk)])
    assert [one.amount for one in CreditGrant.objects.filter(kind=GOODWILL)] == [5]
    assert (Wallet.objects.get(pk=wallet.pk).posted, ScheduledGrant.objects.count()) == (MAX_POSTED, 0)
    check(wallet)


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        ({"until": START + 40_000 * DAY}, "until"), ({"begins_at": START + 40_000 * DAY}, "begins_at"),
        ({"amount": MAX_POSTED + 1}, "amount"),
    ],
)  # fmt: skip
def test_what_is_too_far_or_too_much_is_refused(wallet, terms, field):
    with pytest.raises(ValueError, match=f"^{field}: "):
        every(wallet, **terms)


def test_a_recurring_grant_is_made_once_by_its_key_and_of_no_other_terms(wallet):
    made = every(wallet, count=3, rollover=7)
    assert every(wallet, count=3, rollover=7).pk == made.pk
    for other in ({"count": 4, "rollover": 7}, {"count": 3}, {"count": 3, "rollover": 7, "priority": 1}):
        with pytest.raises(KeyReusedError):
            every(wallet, **other)


def test_what_rolls_over_does_not_expire_next(wallet, give):
    give(30, expires_at=START + DAY, rollover=30, rollover_until=START + 2 * DAY)
    give(20, expires_at=START + 3 * DAY)
    found = balance_of(wallet.tenant_id)
    assert (found.expiring, found.expires_at) == (20, START + 3 * DAY)


def test_what_a_plan_gives_is_not_cancelled_as_a_grant(wallet):
    every(wallet)
    with pytest.raises(ValueError, match="recurring"):
        credits.cancel(ScheduledGrant.objects.get().pk)


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        ({"begins_at": START}, "begins_at"),
        ({"expires_at": START + HOUR}, "expires_at"),
        ({"amount": 0}, "amount"),
        ({"amount": 2 * 10**18}, "amount"),
        ({"currency": "EUR"}, "paid_amount"),
    ],
)
def test_what_is_wrong_with_a_grant_to_come_names_its_field(wallet, terms, field):
    with pytest.raises(ValueError, match=f"^{field}:"):
        later(wallet, **terms)


# -- recurring ---------------------------------------------------------------------------------------------------------


def test_each_windows_credit_is_there_the_moment_it_begins(wallet, clock):
    """Scheduled a window ahead, so that the writer needs no sweep; it ends as the next one comes."""
    one = every(wallet, 40)
    assert standing(wallet) == [("promotional", 40)]
    for day in (1, 2):
        clock.set(START + day * DAY)
        held = reserve(wallet, 40)
        assert apply_now([held, release(held)])[0] == Held(40, 0)
        assert sweeps.recurring_grants().turn() == 1
        assert sweeps.recurring_grants().turn() == 0
    assert CreditGrant.objects.count() == 3
    one.refresh_from_db()
    assert one.next_at == START + 3 * DAY
    check(wallet)


def test_windows_follow_the_clock_of_their_time_zone(wallet, clock):
    """The day on which Berlin's clocks go forward has 23 hours."""
    clock.set(datetime(2030, 3, 29, 12, tzinfo=UTC))
    every(wallet, begins_at=datetime(2030, 3, 29, 23, tzinfo=UTC), time_zone="Europe/Berlin")
    for _ in range(3):
        clock.set(RecurringGrant.objects.get().next_at)
        sweeps.recurring_grants().turn()
    begun = list(CreditGrant.objects.order_by("effective_at").values_list("effective_at", flat=True))
    assert [(after - before) / HOUR for before, after in itertools.pairwise(begun)] == [24, 23]


def test_it_ends_after_its_count_or_before_its_end(wallet, clock):
    every(wallet, 1, key="count", count=2)
    every(wallet, 10, key="until", until=START + DAY + HOUR)
    for day in range(1, 5):
        clock.set(START + day * DAY)
        sweeps.recurring_grants().turn()
        sweeps.expiry().turn()
    assert sorted(CreditGrant.objects.values_list("amount", flat=True)) == [1, 1, 10, 10]
    assert {one.state for one in RecurringGrant.objects.all()} == {"ended"}
    assert not ScheduledGrant.objects.exists()


def test_windows_gone_by_unnoticed_are_made_up_for_where_their_credit_lasts(wallet, clock):
    every(wallet, 1, windows=3)
    clock.set(START + 10 * DAY)
    sweeps.recurring_grants().turn()
    lasts = CreditGrant.objects.filter(remaining__gt=0).order_by("effective_at")
    assert list(lasts.values_list("effective_at", flat=True)) == [START + day * DAY for day in (8, 9, 10)]
    check(wallet)


def test_a_paused_one_gives_nothing_and_goes_on_with_the_next_window(wallet, clock):
    one = every(wallet)
    recurring.set_state(one.pk, RecurringGrant.State.PAUSED)
    assert not ScheduledGrant.objects.exists()
    clock.set(START + 2 * DAY + HOUR)
    assert sweeps.recurring_grants().turn() == 0
    recurring.set_state(one.pk, RecurringGrant.State.ACTIVE)
    assert [row.begins_at for row in ScheduledGrant.objects.all()] == [START + 3 * DAY]
    recurring.set_state(one.pk, RecurringGrant.State.PAUSED)
    recurring.set_state(one.pk, RecurringGrant.State.ACTIVE)  # within the window: what was to come comes
    assert [row.begins_at for row in ScheduledGrant.objects.all()] == [START + 3 * DAY]
    recurring.set_state(one.pk, RecurringGrant.State.ENDED)
    assert not ScheduledGrant.objects.exists()
    with pytest.raises(ValueError, match="ended"):
        recurring.set_state(one.pk, RecurringGrant.State.ACTIVE)
    apply_now([ExpireGrants(wallet.pk)])
    assert CreditGrant.objects.count() == 1
    check(wallet)


def test_the_same_key_makes_one_and_terms_that_cannot_be_name_their_field(wallet):
    assert every(wallet) == every(wallet)
    with pytest.raises(KeyReusedError):
        every(wallet, 41)
    wrong = {
        "amount": {"amount": 0}, "kind": {"kind": PAID}, "windows": {"windows": 13}, "rollover": {"rollover": 0},
        "count": {"count": 3, "until": START + DAY}, "until": {"until": START}, "begins_at": {"begins_at": START - DAY},
        "time_zone": {"time_zone": "nowhere"},
    }  # fmt: skip
    for field, terms in wrong.items():
        with pytest.raises(ValueError, match=f"^{field}:"):
            every(wallet, key=field, **terms)


# -- rollover ----------------------------------------------------------------------------------------------------------


def test_what_is_left_lasts_for_one_window_more_up_to_the_cap(wallet, clock):
    every(wallet, 40, rollover=15)
    made = reserve(wallet, 10)
    apply_now([made, settle(made, 10)])
    clock.set(START + DAY)
    assert balance_of(wallet.tenant_id).available == 15  # before the writer has looked: 15 of 30, the new day's to come
    apply_now([ExpireGrants(wallet.pk)])
    assert sorted(standing(wallet)) == [("promotional", 40), ("rollover", 15)]
    assert balance_of(wallet.tenant_id).available == 55
    sweeps.recurring_grants().turn()
    made = reserve(wallet, 32)
    apply_now([made, settle(made, 32)])
    assert standing(wallet) == [("promotional", 23)], "what rolled over is used first"
    clock.set(START + 3 * DAY)
    apply_now([ExpireGrants(wallet.pk)])
    assert standing(wallet) == [("rollover", 15)], "of the second day; one of the first would be over"
    lost = LedgerTransfer.objects.filter(code=LedgerTransfer.Code.EXPIRY).values_list("amount", flat=True)
    assert sorted(lost) == [15, 23, 25]
    check(wallet)


def test_what_requests_need_of_it_stays_and_what_they_leave_rolls_over_too(wallet, clock):
    every(wallet, 40, rollover=15)
    held = reserve(wallet, 30)
    apply_now([held])
    clock.set(START + DAY)
    apply_now([ExpireGrants(wallet.pk)])
    assert sorted(standing(wallet)) == [("promotional", 30), ("promotional", 40), ("rollover", 10)]
    assert balance_of(wallet.tenant_id).available == 50
    apply_now([settle(held, 12)])  # 18 are left of it: 5 up to the cap, 13 beyond
    assert sorted(standing(wallet)) == [("promotional", 40), ("rollover", 5), ("rollover", 10)]
    assert LedgerTransfer.objects.get(code=LedgerTransfer.Code.EXPIRY).amount == 13
    check(wallet)


def test_nothing_rolls_over_of_a_grant_that_was_voided_or_whose_rollover_would_be_over(wallet, clock):
    every(wallet, 40, rollover=40)
    grant = CreditGrant.objects.get()
    held = reserve(wallet, 30)
    apply_now([held])
    credits.void(grant_id=grant.pk, key="v", actor="ada", reason="r")
    apply_now([release(held)])
    clock.set(START + 4 * DAY)
    apply_now([ExpireGrants(wallet.pk)])
    assert not CreditGrant.objects.filter(kind="rollover").exists()
    assert standing(wallet) == []
    check(wallet)


def test_a_plans_credit_rolls_over_for_one_month(clock):
    plans.ensure_default_plans()
    tenant = make_tenant()
    plans.publish_version(Plan.objects.get(slug="free"), rollover=30, monthly_credits=100)
    made = plans.subscribe(tenant.pk, "free")
    wallet = Wallet.objects.get(tenant=tenant)
    for month, expected in enumerate([100, 130, 130]):
        clock.set(made.granted_until - timedelta(microseconds=1) if month == 0 else made.granted_until)
        apply_now([ExpireGrants(wallet.pk)])
        sweeps.monthly_grants().turn()
        made.refresh_from_db()
        assert balance_of(tenant.pk).available == expected
    plans.end(tenant.pk)
    clock.set(made.granted_until)
    apply_now([ExpireGrants(wallet.pk)])
    assert standing(wallet) == [("rollover", 30)], "what was given before the end stays as long as it would have"
    check(wallet)


@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    cap=st.integers(1, 60),
    used=st.integers(0, 40),
    shares=st.lists(st.tuples(st.integers(1, 20), st.floats(0, 1)), max_size=5),
    order=st.randoms(use_true_random=False),
)
def test_the_cap_of_what_a_window_left_rolls_over_however_its_requests_end(db, monkeypatch, cap, used, **ends):
    """The sum is min(cap, left): whichever requests run over the end, and in whatever order they are settled."""
    with monkeypatch.context() as patched:
        clock = MovedClock(patched)
        clock.set(START)
        wallet = make_wallet()
        every(wallet, 40, rollover=cap)
        first = reserve(wallet, used)
        apply_now([first, settle(first, used)])
        left, held = 40 - used, []
        for amount, share in ends["shares"]:
            made = reserve(wallet, amount)
            [answer] = apply_now([made])
            if isinstance(answer, Held):
                held.append((made, int(amount * share)))
        clock.set(START + DAY)
        apply_now([ExpireGrants(wallet.pk)])
        ends["order"].shuffle(held)
        for made, charge in held:
            left -= charge
            apply_now([settle(made, charge)])
        rolled = CreditGrant.objects.filter(wallet=wallet, kind="rollover")
        assert sum(one.amount for one in rolled) == min(cap, left)
        assert_books_balance(wallet)


def test_the_documents_example_of_a_rollover(clock):
    wallet = make_wallet()
    every(wallet, 40, rollover=15)

    def now(*row):
        """Check that the document has the row, with what is left of Monday's, of what rolled over, of Tuesday's."""
        told(*row)
        left = dict.fromkeys(("Monday", "rolled over", "Tuesday"), 0)
        for one in CreditGrant.objects.filter(wallet=wallet):
            name = (
                "rolled over" if one.kind == "rollover" else "Monday" if one.effective_at < START + DAY else "Tuesday"
            )
            left[name] = one.remaining if name == "rolled over" else left[name] + one.remaining
        assert [f"{amount}" for amount in left.values()] == [cell.split(" ")[0].strip(",") for cell in row[1:]]

    spent, runs = reserve(wallet, 10), reserve(wallet, 12)
    apply_now([spent, settle(spent, 10), runs])
    now("Monday, 23:59", "30 left, 12 of them held", "0", "0")
    clock.set(START + DAY)
    apply_now([ExpireGrants(wallet.pk)])
    sweeps.recurring_grants().turn()
    now("Tuesday, 00:00: 18 are free, 15 roll over, 3 are lost", "12, held", "15", "40")
    apply_now([settle(runs, 9)])
    now("00:01, the request ends and cost 9: 3 are left, the cap is reached", "0", "15", "40")
    spent = reserve(wallet, 20)
    apply_now([spent, settle(spent, 20)])
    now("23:00, 20 were spent in the day", "0", "0", "35")
    recurring.set_state(RecurringGrant.objects.get().pk, RecurringGrant.State.ENDED)
    clock.set(START + 2 * DAY)
    apply_now([ExpireGrants(wallet.pk)])
    now("Wednesday, 00:00: 15 of the 35 roll over, 20 are lost", "0", "15", "0")
    check(wallet)
