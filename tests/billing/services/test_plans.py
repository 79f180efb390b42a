from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.utils import timezone

from billing.models import CreditGrant, LedgerTransfer, Plan, PlanVersion, ScheduledGrant, Subscription, Wallet
from billing.periods import month_of
from billing.reconcile import check
from billing.services import plans, sweeps
from billing.services.errors import NotSubscribedError, PlanError
from billing.writer.apply import apply_now
from billing.writer.operations import ExpireGrants, Held, Refused, Settle, TrueUp
from tests.billing.books import assert_books_balance
from tests.billing.writer.world import grant, reserve, settle

pytestmark = [pytest.mark.contract, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def _default_plans(db):
    plans.ensure_default_plans()


def wallet_of(tenant):
    return Wallet.objects.get(tenant=tenant)


def monthly(slug):
    return plans.latest_version(slug).monthly_credits


def test_default_plans_differ_and_are_made_once():
    plans.ensure_default_plans()
    versions = {version.plan.slug: version for version in PlanVersion.objects.select_related("plan")}
    assert set(versions) == {"free", "business", "max"}
    assert PlanVersion.objects.count() == 3
    for term in ("request_burst", "credit_burst", "concurrency", "weight", "monthly_credits"):
        assert len({getattr(version, term) for version in versions.values()}) == 3, term
    assert versions["business"].request_burst > versions["business"].request_limit
    assert versions["max"].credit_burst == versions["max"].credit_limit
    assert versions["free"].allowed_models
    assert not versions["business"].allowed_models


def test_ensure_leaves_a_changed_plan_alone():
    plan = Plan.objects.get(slug="free")
    plans.publish_version(plan, concurrency=99)
    plans.ensure_default_plans()
    assert plans.latest_version("free").concurrency == 99


def test_publish_version_inherits_what_is_not_given():
    plan = Plan.objects.get(slug="business")
    before = plans.latest_version("business")
    version = plans.publish_version(plan, concurrency=3)
    assert (version.number, version.concurrency, version.request_burst) == (2, 3, before.request_burst)
    with pytest.raises(PlanError, match="colour"):
        plans.publish_version(plan, colour="red")
    with pytest.raises(ValidationError):
        plans.publish_version(plan, concurrency=0)


def grant_monthly(now):
    """A round of the sweep at `now`: how many subscriptions were due."""
    return sweeps.monthly_grants(lambda: now).turn()


def test_subscribe_grants_the_first_month_at_once(tenant):
    made = plans.subscribe(tenant.pk, "free")
    assert plans.subscribe(tenant.pk, "free") == made
    grant = CreditGrant.objects.get()
    period = month_of(made.anchor, "UTC", timezone.now())
    assert (grant.amount, grant.kind, grant.expires_at) == (monthly("free"), "plan", period.end)
    assert made.granted_until == period.end
    assert wallet_of(tenant).posted == monthly("free")
    assert grant_monthly(timezone.now()) == 0


def test_subscribe_to_a_second_or_unknown_plan_is_refused(tenant):
    plans.subscribe(tenant.pk, "free")
    with pytest.raises(PlanError, match="change the plan"):
        plans.subscribe(tenant.pk, "max")
    with pytest.raises(PlanError, match="gold"):
        plans.subscribe(tenant.pk, "gold")
    with pytest.raises(ValueError, match="time_zone"):
        plans.subscribe(tenant.pk, "free", time_zone="nowhere")


def test_months_are_granted_once_and_missed_ones_are_not_made_up_for(tenant):
    made = plans.subscribe(tenant.pk, "free", at=datetime(2025, 1, 31, tzinfo=UTC))
    later = made.granted_until + timedelta(days=70)
    assert grant_monthly(later) == 1
    assert grant_monthly(later) == 0
    assert CreditGrant.objects.count() == 2
    Subscription.objects.update(granted_until=None)  # as if an overlapping sweep had not seen it
    assert grant_monthly(later) == 1
    assert CreditGrant.objects.count() == 2
    assert_books_balance(wallet_of(tenant))


def test_last_month_s_credit_expires_as_the_next_month_begins(tenant, clock):
    made = plans.subscribe(tenant.pk, "free")
    grant_monthly(made.granted_until)
    clock.set(made.granted_until)
    assert (sweeps.expiry().turn(), sweeps.expiry().turn()) == (1, 0)
    assert wallet_of(tenant).posted == monthly("free")
    assert_books_balance(wallet_of(tenant))


def test_the_next_months_credit_is_there_the_moment_it_begins(tenant, clock):
    made = plans.subscribe(tenant.pk, "free")
    wallet = wallet_of(tenant)
    apply_now([reserve(wallet, monthly("free"))])  # all of it is held
    clock.set(made.granted_until - timedelta(microseconds=1))
    assert isinstance(apply_now([reserve(wallet, 1)])[0], Refused)
    clock.set(made.granted_until)
    [held, *_] = apply_now([reserve(wallet, monthly("free"))])  # no sweep has run
    assert held == Held(monthly("free"), 0)
    begun = CreditGrant.objects.get(effective_at=made.granted_until)
    assert begun.expires_at == month_of(made.anchor, "UTC", made.granted_until).end
    assert LedgerTransfer.objects.get(grant=begun).key == begun.source
    assert_books_balance(wallet_of(tenant))
    assert grant_monthly(made.granted_until) == 1
    assert CreditGrant.objects.count() == 2, "the sweep grants it no second time"
    assert [one.begins_at for one in ScheduledGrant.objects.all()] == [begun.expires_at]
    assert_books_balance(wallet_of(tenant))
    assert check(connection, recompute=False) == []


def test_what_is_scheduled_follows_the_plan(tenant):
    made = plans.subscribe(tenant.pk, "business")

    def scheduled():
        [one] = ScheduledGrant.objects.all()
        assert (one.wallet.tenant, one.begins_at) == (tenant, made.granted_until)
        assert wallet_of(tenant).next_grant_change_at == made.granted_until
        return one.amount, one.reason

    assert scheduled() == (monthly("business"), "Business v1, a month")
    plans.change_plan(tenant.pk, "free")
    assert scheduled() == (monthly("free"), "Free v1, a month")
    plans.change_plan(tenant.pk, "business")
    assert scheduled() == (monthly("business"), "Business v1, a month")
    plans.change_plan(tenant.pk, "max")
    assert scheduled() == (monthly("max"), "Max v1, a month")
    plans.publish_version(Plan.objects.get(slug="max"), monthly_credits=0)
    plans.change_plan(tenant.pk, "max", at_once=True)
    assert not ScheduledGrant.objects.exists()
    assert grant_monthly(timezone.now()) == 0, "nothing is due where a plan gives nothing"


@pytest.mark.parametrize("had", ["free", "business"])
def test_a_plan_that_changes_before_any_sweep_saw_the_new_month_gives_what_it_gives_after_one(tenant, clock, had):
    made = plans.subscribe(tenant.pk, had)
    clock.set(made.granted_until)
    apply_now([reserve(wallet_of(tenant), 1)])  # which begins the month
    plans.change_plan(tenant.pk, "max")
    wallet = wallet_of(tenant)
    assert wallet.posted == monthly("max")
    assert apply_now([ExpireGrants(wallet.pk)])[0].posted == monthly("max")
    assert grant_monthly(made.granted_until) == 0
    assert [one.amount for one in ScheduledGrant.objects.all()] == [monthly("max")]
    assert check(connection, recompute=False) == []


def test_what_has_begun_is_scheduled_no_second_time(tenant, clock):
    made = plans.subscribe(tenant.pk, "free")
    clock.set(made.granted_until)
    wallet = wallet_of(tenant)
    apply_now([ExpireGrants(wallet.pk)])
    plans._schedule_next(made, wallet)
    assert not ScheduledGrant.objects.exists()
    assert apply_now([ExpireGrants(wallet.pk)])[0].posted == monthly("free")


def test_a_subscription_without_a_scheduled_month_gets_one(tenant):
    made = plans.subscribe(tenant.pk, "free")
    ScheduledGrant.objects.all().delete()
    assert (grant_monthly(timezone.now()), grant_monthly(timezone.now())) == (1, 0)
    assert ScheduledGrant.objects.get().begins_at == made.granted_until
    assert CreditGrant.objects.count() == 1


def test_a_month_that_begins_repays_what_was_overdrawn(tenant, clock):
    plans.publish_version(Plan.objects.get(slug="max"), monthly_credits=100, overage="overdraft", overdraft_limit=50)
    made = plans.subscribe(tenant.pk, "max")
    used = reserve(wallet_of(tenant), 130)
    apply_now([used, settle(used, 130)])
    clock.set(made.granted_until)
    assert apply_now([ExpireGrants(wallet_of(tenant).pk)])[0].posted == 70
    assert CreditGrant.objects.get(effective_at=made.granted_until).remaining == 70
    assert_books_balance(wallet_of(tenant))
    assert check(connection, recompute=False) == []


def test_a_subscription_that_is_to_end_gives_no_further_month(tenant, clock):
    made = plans.subscribe(tenant.pk, "free")
    assert plans.end(tenant.pk).is_ending
    assert not ScheduledGrant.objects.exists()
    assert grant_monthly(made.granted_until - timedelta(microseconds=1)) == 0, "it isn't due: nothing is missing"
    clock.set(made.granted_until)
    assert isinstance(apply_now([reserve(wallet_of(tenant), 1)])[0], Refused)
    assert grant_monthly(made.granted_until) == 1
    made.refresh_from_db()
    assert (made.state, made.ended_at, made.is_ending) == ("ended", made.granted_until, False)
    assert CreditGrant.objects.count() == 1
    assert plans.grant_month(made.pk, made.granted_until) is None
    assert_books_balance(wallet_of(tenant))


@pytest.mark.parametrize("slug", ["free", "business"])
def test_an_end_is_called_off_by_choosing_a_plan(tenant, slug):
    made = plans.subscribe(tenant.pk, "free")
    plans.end(tenant.pk)
    now = plans.change_plan(tenant.pk, slug)
    assert (now.version.plan.slug, now.is_ending) == (slug, False)
    assert ScheduledGrant.objects.get().amount == monthly(slug)
    assert ScheduledGrant.objects.get().begins_at == made.granted_until


def test_an_end_at_once_leaves_the_credit_and_no_overdraft(tenant):
    plans.publish_version(Plan.objects.get(slug="free"), overage="overdraft", overdraft_limit=50)
    plans.subscribe(tenant.pk, "free")
    ended = plans.end(tenant.pk, at_once=True)
    assert (ended.state, ended.ended_at is not None) == ("ended", True)
    wallet = wallet_of(tenant)
    assert (wallet.posted, wallet.overdraft_limit) == (monthly("free"), 0)
    assert not ScheduledGrant.objects.exists()
    assert grant_monthly(ended.granted_until) == 0
    with pytest.raises(NotSubscribedError):
        plans.end(tenant.pk)
    assert plans.subscribe(tenant.pk, "business").pk != ended.pk


def test_a_plan_is_not_changed_once_the_subscription_has_ended_with_its_month(tenant, clock):
    made = plans.subscribe(tenant.pk, "free")
    plans.end(tenant.pk)
    clock.set(made.granted_until)
    with pytest.raises(NotSubscribedError):
        plans.change_plan(tenant.pk, "business")


@pytest.mark.parametrize("slug", ["free", "business"])
def test_whoever_subscribes_after_the_last_month_before_any_sweep_begins_anew(tenant, clock, slug):
    """The same plan was answered with the subscription that the sweep then ended, another one was refused."""
    made = plans.subscribe(tenant.pk, "free")
    plans.end(tenant.pk)
    clock.set(made.granted_until + timedelta(seconds=1))
    again = plans.subscribe(tenant.pk, slug)
    assert (again.pk != made.pk, again.version.plan.slug, again.is_ending) == (True, slug, False)
    assert wallet_of(tenant).posted == monthly(slug)
    assert grant_monthly(made.granted_until + timedelta(seconds=2)) == 0


def test_a_month_that_is_over_ends_a_subscription_before_any_sweep(tenant, clock):
    made = plans.subscribe(tenant.pk, "free")
    plans.end(tenant.pk)
    clock.set(made.granted_until + timedelta(days=1))
    assert plans.end(tenant.pk, at_once=True) == made
    made.refresh_from_db()
    assert (made.state, made.ended_at) == ("ended", made.granted_until)


def test_upgrade_takes_effect_now_and_grants_the_rest_of_the_difference(tenant):
    first = plans.subscribe(tenant.pk, "free")
    period = month_of(first.anchor, "UTC", timezone.now())
    middle = period.start + (period.end - period.start) / 2
    second = plans.change_plan(tenant.pk, "business", at=middle)
    first.refresh_from_db()
    assert (first.state, second.state, second.anchor) == ("ended", "active", first.anchor)
    extra = CreditGrant.objects.exclude(amount=monthly("free")).get()
    assert extra.amount == (monthly("business") // 2) - (monthly("free") // 2)
    assert extra.expires_at == period.end
    assert grant_monthly(middle) == 0
    assert plans.change_plan(tenant.pk, "business", at=middle) == second
    assert CreditGrant.objects.count() == 2


def test_downgrade_waits_for_the_end_of_the_month(tenant):
    first = plans.subscribe(tenant.pk, "business")
    assert plans.change_plan(tenant.pk, "free") == first
    assert wallet_of(tenant).posted == monthly("business")
    grant_monthly(first.granted_until)
    now = Subscription.objects.get(state="active")
    assert now.version.plan.slug == "free"
    assert CreditGrant.objects.order_by("-created_at", "-id").first().amount == monthly("free")
    assert now.granted_until > first.granted_until
    assert Subscription.objects.count() == 2


def test_downgrade_at_once_changes_terms_and_claws_nothing_back(tenant):
    plans.subscribe(tenant.pk, "business")
    assert plans.change_plan(tenant.pk, "free", at_once=True).version.plan.slug == "free"
    assert wallet_of(tenant).posted == monthly("business")


def test_going_back_and_forth_between_plans_grants_the_difference_once(tenant):
    """Each way up gave the rest of the month's difference again, and no way down took it back."""
    first = plans.subscribe(tenant.pk, "free")
    middle = first.anchor + (month_of(first.anchor, "UTC", first.anchor).end - first.anchor) / 2
    plans.change_plan(tenant.pk, "business", at=middle)
    before = wallet_of(tenant).posted
    for hours in (1, 2, 3):
        plans.change_plan(tenant.pk, "free", at=middle + timedelta(hours=hours), at_once=True)
        plans.change_plan(tenant.pk, "business", at=middle + timedelta(hours=hours, minutes=1))
    assert wallet_of(tenant).posted == before
    plans.change_plan(tenant.pk, "max", at=middle + timedelta(hours=4))
    assert wallet_of(tenant).posted > before


def test_last_month_s_larger_plan_takes_nothing_from_this_month_s_upgrade(tenant):
    first = plans.subscribe(tenant.pk, "business")
    plans.change_plan(tenant.pk, "free")
    grant_monthly(first.granted_until)
    before = wallet_of(tenant).posted
    plans.change_plan(tenant.pk, "business", at=first.granted_until)
    assert wallet_of(tenant).posted == before + monthly("business") - monthly("free")


def test_a_scheduled_downgrade_is_called_off_by_choosing_the_plan_again(tenant):
    plans.subscribe(tenant.pk, "business")
    assert plans.change_plan(tenant.pk, "free").next_version is not None
    assert plans.change_plan(tenant.pk, "business").next_version is None


def test_overdraft_follows_the_plan(tenant):
    plans.publish_version(Plan.objects.get(slug="max"), overage="overdraft", overdraft_limit=500)
    plans.subscribe(tenant.pk, "free")
    assert wallet_of(tenant).overdraft_limit == 0
    plans.change_plan(tenant.pk, "max")
    assert wallet_of(tenant).overdraft_limit == 500


def test_what_is_overdrawn_stays_allowed_though_a_grant_has_more_left(tenant, clock):
    """A refund went into a grant while the wallet was overdrawn; then the plan allows none, and then the grant ends."""
    plans.publish_version(Plan.objects.get(slug="max"), monthly_credits=0, overage="overdraft", overdraft_limit=50)
    plans.subscribe(tenant.pk, "max")
    made = grant(wallet_of(tenant), 100, expires_at=timezone.now() + timedelta(days=30))
    estimated, other = reserve(wallet_of(tenant), 100), reserve(wallet_of(tenant), 40)
    guess = Settle(estimated.request, estimated.wallet, 100, {"output": 10}, exact=False)
    apply_now([estimated, guess, other, settle(other, 40)])
    apply_now([TrueUp(estimated.request, estimated.wallet, 30, {"output": 3})])
    assert (wallet_of(tenant).posted, CreditGrant.objects.get().remaining) == (30, 70)
    plans.publish_version(Plan.objects.get(slug="max"), overage="block", overdraft_limit=0)
    plans.change_plan(tenant.pk, "max")
    clock.set(made.expires_at)
    assert sweeps.expiry().turn() == 1
    assert (wallet_of(tenant).posted, wallet_of(tenant).overdraft_limit) == (-40, 40)
    assert [one for one in check(connection, recompute=False) if one.check == "wallet_below_limit"] == []
    assert_books_balance(wallet_of(tenant))


def test_changing_the_plan_of_nobody_is_refused(tenant):
    with pytest.raises(NotSubscribedError):
        plans.change_plan(tenant.pk, "max")
