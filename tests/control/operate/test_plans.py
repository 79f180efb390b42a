"""The operator's plans: cards, two side by side, new terms, and all tenants of one moved."""

from __future__ import annotations

import pytest
from django.urls import reverse
from django_scopes import scopes_disabled

from base.units import MICRO
from billing.models import Plan, PlanMove, PlanVersion
from billing.services import plan_moves, plans
from billing.services.plans import latest_version, publish_version, subscribe
from tenancy.models import AuditEvent, Tenant
from tests.control.operate.test_models import fake, operator, signed_in, text_of

__all__ = ["operator"]
pytestmark = pytest.mark.django_db
TERMS = {
    "monthly_credits": "500", "request_limit": "30", "request_period_s": "60", "concurrency": "4", "credit_limit": "10",
    "credit_period_s": "60", "multiplier": "0.8", "overage": "overdraft", "overdraft_limit": "5", "adapters": "1",
    "weight": "1000", "priority": "0", "default_task": "chat", "slice_tokens": "128", "resume_s": "60",
    "token_limit": "90000", "token_period_s": "60", "flex": "0.5", "priority_times": "1.75",
}  # fmt: skip


def tenants(plan, count):
    made = [Tenant.objects.create(name=f"{plan} {number}", slug=f"{plan}-{number}") for number in range(count)]
    for one in made:
        subscribe(one.pk, plan)
    return made


def test_cards_tell_terms_and_who_has_them(operator):
    tenants("free", 2)
    publish_version(latest_version("free").plan, concurrency=9)
    page = text_of(operator.get(reverse("operate-plans")))
    card = page[page.index("plan-free") :]
    assert '<a href="/operate/tenants/?plan=free">2</a> <span class="muted">2 on older terms' in card
    assert "30 a minute, 10 at once" in card
    assert page.index("plan-free") < page.index("plan-business") < page.index("plan-max")  # by their credit
    both = operator.get(reverse("operate-plans"), {"a": "free", "b": "max"})
    rows = {row.values[0]: (row.values[1:], row.is_over) for row in both.context["comparison"].rows}
    assert rows["Credits a month"] == (["100", "100,000"], False)
    assert rows["Priority"] == (["0", "0"], True)


def test_a_plan_is_made_with_its_first_terms_the_rest_folded(operator):
    fake("small")
    answer = operator.post(reverse("operate-plan-new"), {"name": "Pro", "slug": "pro", "is_offered": "on"})
    assert answer.url == reverse("operate-plan-publish", args=["pro"])
    page = operator.get(answer.url)
    assert '<details class="twin"><summary>All other terms' in text_of(page)
    assert page.context["form"]["weight"].value() == 1000
    wrong = operator.post(answer.url, {**TERMS, "request_limit": "0", "allowed_models": ["nothing"]})
    assert set(wrong.context["form"].errors) == {"request_limit", "allowed_models"}
    assert operator.post(answer.url, {**TERMS, "allowed_models": ["small"]}).status_code == 302
    made = latest_version("pro")
    assert (made.number, made.multiplier_bp, made.overdraft_limit) == (1, 8_000, 5 * MICRO)
    assert (made.request_burst, made.credit_burst, made.allowed_models) == (30, 10 * MICRO, ["small"])
    assert (made.token_limit, made.token_burst, made.flex_bp, made.priority_bp) == (90_000, None, 5_000, 17_500)
    assert "90,000 a minute, 90,000 at once" in text_of(operator.get(reverse("operate-plan", args=["pro"])))
    assert operator.post(reverse("operate-plan-new"), {"name": "x", "slug": "pro"}).status_code == 400
    with scopes_disabled():
        assert AuditEvent.objects.filter(action="plan_version.created").latest("at").actor == "root@example.com"


def test_new_terms_begin_with_the_last_ones_and_change_nobody(operator):
    [tenant] = tenants("free", 1)
    page = reverse("operate-plan-publish", args=["free"])
    form = operator.get(page).context["form"]
    sent = {name: form[name].value() for name in form.fields if form[name].value() not in (None, "")}
    assert sent["monthly_credits"] == "100"
    assert operator.post(page, {**sent, "concurrency": "7"}).status_code == 302
    latest = latest_version("free")
    assert (latest.number, latest.concurrency, latest.credit_burst) == (2, 7, 20 * MICRO)
    assert tenant.subscriptions.get().version.number == 1
    told = text_of(operator.get(reverse("operate-plan", args=["free"])))
    assert "Requests that run at once: 4 → 7" in told
    assert "1 of them on older terms" in told


def test_a_name_changes_without_new_terms(operator):
    page = reverse("operate-plan-edit", args=["free"])
    assert operator.post(page, {"name": "Gratis"}).status_code == 302
    plan = Plan.objects.get(slug="free")
    assert (plan.name, plan.is_offered) == ("Gratis", False)


def test_all_tenants_move_in_chunks_that_the_page_counts(operator, monkeypatch):
    monkeypatch.setattr(plan_moves, "CHUNK", 2)
    made = tenants("free", 5)
    page = reverse("operate-plan-move", args=["free"])
    assert set(operator.post(page, {"to": "business", "name": "Fre"}).context["form"].errors) == {"name"}
    assert set(operator.post(page, {"to": "free", "name": "Free"}).context["form"].errors) == {"to"}
    assert operator.post(page, {"to": "business", "name": "Free"}).status_code == 302
    assert "are being moved already" in text_of(operator.post(page, {"to": "max", "name": "Free"}))
    shown = reverse("operate-plan", args=["free"])
    assert plan_moves.turn()
    told = text_of(operator.get(shown))
    assert "2 of 5" in told
    assert 'hx-trigger="every 3s"' in told
    assert [plan_moves.turn() for _ in range(3)] == [True, True, False]
    told = text_of(operator.get(shown))
    assert "5 moved" in told
    assert "every 3s" not in told
    plans = {one.subscriptions.get(state="active").version.plan.slug for one in made}
    assert plans == {"business"}
    with scopes_disabled():
        event = AuditEvent.objects.get(action="plan_move.created")
    assert (event.actor, event.after["total"]) == ("root@example.com", 5)


def test_who_gets_less_changes_with_the_month_unless_it_is_at_once(operator, monkeypatch):
    monkeypatch.setattr(plan_moves, "CHUNK", 1)
    made = tenants("max", 2)
    move = plan_moves.ask(Plan.objects.get(slug="max"), Plan.objects.get(slug="free"))
    assert [plan_moves.turn() for _ in range(4)] == [True, True, True, False]  # those that wait aren't looked at again
    assert {one.subscriptions.get().next_version.plan.slug for one in made} == {"free"}
    move.refresh_from_db()
    assert (move.moved, move.refused) == (2, 0)
    plan_moves.ask(Plan.objects.get(slug="max"), Plan.objects.get(slug="free"), at_once=True)
    while plan_moves.turn():
        pass
    assert {one.subscriptions.get(state="active").version.plan.slug for one in made} == {"free"}


@pytest.mark.parametrize("decided", ["it ends", "a change is scheduled"])
def test_what_was_decided_for_a_months_end_stays(operator, decided):
    [one] = tenants("max", 1)
    if decided == "it ends":
        plans.end(one.pk)
    else:
        plans.change_plan(one.pk, "free")
    before = one.subscriptions.values("version", "next_version", "is_ending", "state").get()
    move = plan_moves.ask(Plan.objects.get(slug="max"), Plan.objects.get(slug="business"), at_once=True)
    while plan_moves.turn():
        pass
    move.refresh_from_db()
    assert (move.moved, move.refused) == (0, 1)
    assert "ends with its month" in move.error
    assert one.subscriptions.values("version", "next_version", "is_ending", "state").get() == before


def test_only_those_who_just_get_more_models_move_where_that_was_asked(operator):
    [tenant] = tenants("free", 1)
    plan = Plan.objects.get(slug="free")
    publish_version(plan, concurrency=50)
    [newer] = [Tenant.objects.create(name="Newer", slug="newer")]
    subscribe(newer.pk, "free")
    publish_version(plan, allowed_models=[*latest_version("free").allowed_models, "more"])
    move = plan_moves.ask(plan, plan, only_adds=True)
    while plan_moves.turn():
        pass
    move.refresh_from_db()
    assert (move.total, move.moved, move.refused) == (2, 1, 1)
    assert "other terms differ" in move.error
    assert newer.subscriptions.get(state="active").version == latest_version("free")
    assert tenant.subscriptions.get(state="active").version.number == 1


def test_roles_that_may_not_change_plans_see_them(operator):
    viewer = signed_in("v@example.com", "viewer")
    assert "Publish new terms" not in text_of(viewer.get(reverse("operate-plan", args=["free"])))
    for name in ("publish", "edit", "move"):
        assert viewer.get(reverse(f"operate-plan-{name}", args=["free"])).status_code == 403
    assert PlanMove.objects.count() == PlanVersion.objects.filter(number=2).count() == 0
