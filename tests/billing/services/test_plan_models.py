"""More models for a plan, for new tenants and for those that have it."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.core.management import CommandError, call_command

from billing.models import CreditGrant, Plan, Subscription
from billing.services import plan_models, plans
from billing.services.errors import PlanError
from billing.services.plan_models import include_models, move_subscribers
from operation.checks import catalogue
from routing.models import PublicModel
from tests.billing.conftest import make_tenant

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _plans(db):
    """Plans of an installation from before there were specialists, which are installed now."""
    plans.ensure_default_plans()
    plans.publish_version(Plan.objects.get(slug="free"), allowed_models=["general"])
    for name in ("general", "sluice-desk", "sluice-desk-labels"):
        PublicModel.objects.create(name=name, kinds=["chat"], context_length=100, rate_card="x")


def active(tenant):
    return Subscription.objects.select_related("version").get(tenant=tenant, state=Subscription.State.ACTIVE)


def test_a_new_version_adds_models_and_changes_nothing_else():
    before = plans.latest_version("free")
    made = include_models("free", ["sluice-desk", "general", "sluice-desk"])
    assert (made.number, made.allowed_models) == (before.number + 1, ["general", "sluice-desk"])
    others = [name for name in plans.TERMS if name != "allowed_models"]
    assert [getattr(made, name) for name in others] == [getattr(before, name) for name in others]
    assert include_models("free", ["sluice-desk"]) == made
    assert include_models("business", ["sluice-desk"]).number == 1  # which includes all
    with pytest.raises(PlanError):
        include_models("none", ["sluice-desk"])


def test_subscribers_keep_their_terms_until_they_are_moved(tenant):
    plans.subscribe(tenant.id, "free")
    before, grants = active(tenant), CreditGrant.objects.count()
    made = include_models("free", ["sluice-desk"])
    assert active(tenant).version == before.version
    assert move_subscribers("free") == (1, 0)
    after = active(tenant)
    assert (after.version, after.anchor, after.granted_until) == (made, before.anchor, before.granted_until)
    assert CreditGrant.objects.count() == grants
    assert move_subscribers("free") == (0, 0)


@pytest.mark.parametrize("how", ["other terms", "scheduled"])
def test_whose_terms_would_change_otherwise_keeps_them(tenant, how):
    plans.subscribe(tenant.id, "free")
    before = active(tenant)
    include_models("free", ["sluice-desk"])
    if how == "scheduled":
        Subscription.objects.filter(pk=before.pk).update(next_version=plans.latest_version("max"))
    else:
        plans.publish_version(Plan.objects.get(slug="free"), concurrency=1)
    assert move_subscribers("free") == (0, 1)
    assert active(tenant).version == before.version


@pytest.mark.parametrize("meanwhile", ["another plan", "scheduled", "published"])
def test_who_changes_plans_while_others_are_moved_keeps_what_it_chose(tenant, monkeypatch, meanwhile):
    """All were read at the beginning: who had gone to another plan since then was sent back at the end of its month."""
    both = [tenant, make_tenant()]
    for one in both:
        plans.subscribe(one.id, "free")
    include_models("free", ["sluice-desk"])

    def moving(tenant_id, slug):
        monkeypatch.setattr(plan_models, "change_plan", plans.change_plan)
        second = next(one for one in both if one.id != tenant_id)
        if meanwhile == "another plan":
            plans.change_plan(second.id, "business")
        elif meanwhile == "scheduled":
            Subscription.objects.filter(tenant=second).update(next_version=plans.latest_version("max"))
        moved = plans.change_plan(tenant_id, slug)
        if meanwhile == "published":
            plans.publish_version(Plan.objects.get(slug="free"), concurrency=1)
        first.append(moved.tenant_id)
        return moved

    first: list[UUID] = []
    before = {one.id: active(one).version_id for one in both}
    monkeypatch.setattr(plan_models, "change_plan", moving)
    assert move_subscribers("free") == (1, 0 if meanwhile == "another plan" else 1)
    second = active(next(one for one in both if one.id not in first))
    if meanwhile == "another plan":
        assert (second.version, second.next_version) == (plans.latest_version("business"), None)
    else:
        assert second.version_id == before[second.tenant_id]
        assert second.next_version == (plans.latest_version("max") if meanwhile == "scheduled" else None)


def test_doctor_tells_of_plans_without_the_specialists_and_the_command_that_it_names_adds_them(tenant, capsys):
    plans.subscribe(tenant.id, "free")
    [told] = catalogue._without_specialists()
    assert (told.subject, told.is_fine) == ("plan free", True)
    command = told.text.partition("manage.py ")[2].rstrip("`").split()
    call_command(*command)
    assert "tenants moved to it: 1" in capsys.readouterr().out
    assert active(tenant).version.allowed_models == ["general", "sluice-desk", "sluice-desk-labels"]
    assert list(catalogue._without_specialists()) == []
    with pytest.raises(CommandError, match="no model 'none'"):
        call_command("plans", "include", "free", "none")
