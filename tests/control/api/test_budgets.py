"""Budgets by the management API: made, changed and removed by owners, admins and admin keys; and what others see."""

from __future__ import annotations

import pytest

from billing.models import SpendBudget, Wallet
from billing.services import budgets
from billing.writer.apply import apply_now
from billing.writer.operations import Held
from gateway.apis.usage.endpoint import key_of
from gateway.runtime.principals import load_key
from tenancy.models import AuditEvent, Membership
from tenancy.services import budgets as of_tenants
from tests.billing.writer.world import grant, of_budgets, reserve, settle
from tests.control.api.test_management import assert_error, call, post, role_client

pytestmark = pytest.mark.django_db
DAY = {"scope": "tenant", "window": "day", "limit": 5_000_000}


@pytest.fixture
def manager(acme):
    """What an admin key sends."""
    return acme.admin_bearer


def test_a_budget_is_made_shown_changed_and_removed(acme, manager):
    made = call(manager, "post", "budgets/", {**DAY, "thresholds": [100, 50]})
    assert made.status_code == 201, made.content
    shown = made.json()
    assert (shown["name"], shown["limit_credits"], shown["thresholds"]) == ("Everything a day", "5", [50, 100])
    assert (shown["spent"], shown["held"], shown["remaining"], shown["is_hard"]) == (0, 0, 5_000_000, True)
    assert shown["resets_at"].endswith("T00:00:00Z")
    path = f"budgets/{shown['id']}/"
    changed = call(manager, "patch", path, {"limit": 7_000_000, "is_hard": False}).json()
    assert (changed["limit"], changed["is_hard"], changed["thresholds"]) == (7_000_000, False, [50, 100])
    assert call(manager, "get", "budgets/").json()["data"] == [changed]
    assert call(manager, "delete", path).status_code == 204
    assert call(manager, "get", path).status_code == 404
    told = AuditEvent.objects.of(acme.tenant).filter(action__startswith="budget.").order_by("id")
    assert [event.action for event in told] == ["budget.created", "budget.changed", "budget.deleted"]
    assert told[1].after == {"is_hard": False, "limit_micro": 7_000_000}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"scope": "project", "subject": "x"}, "subject"),
        ({"scope": "key", "subject": "0197ab00-0000-7000-8000-000000000000"}, "subject"),
        ({"scope": "models", "models": ["nope"]}, "models"),
        ({"scope": "models"}, "models"),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"limit": -1}, "limit"),
        ({"window": "hour"}, "window"),
        ({"thresholds": [101]}, "thresholds.0"),
    ],
)
def test_what_is_wrong_is_named(manager, wrong, field):
    assert_error(call(manager, "post", "budgets/", {**DAY, **wrong}), 400, "invalid_value", param=field)


def test_the_subjects_of_another_tenant_are_unknown(manager, other):
    wanted = {**DAY, "scope": "key", "subject": str(other.key.pk)}
    assert_error(call(manager, "post", "budgets/", wanted), 400, "invalid_value", param="subject")


def test_who_may(acme, other):
    for role, status in (("admin", 201), ("member", 403), ("billing", 403)):
        client = role_client(acme, Membership.Role(role))
        assert post(client, "budgets/", DAY).status_code == status, role
    mine = SpendBudget.objects.get()
    assert call(other.admin_bearer, "get", f"budgets/{mine.pk}/").status_code == 404
    assert call(other.admin_bearer, "get", "budgets/").json()["data"] == []


def test_what_the_operator_set_is_the_operators_to_change(acme, manager):
    made = of_tenants.make(tenant=acme.tenant, scope="tenant", window="day", amount=5, by_operator=True)
    refused = call(manager, "patch", f"budgets/{made.pk}/", {"limit": 9})
    assert "Your operator set this budget" in refused.json()["error"]["message"]
    assert call(manager, "delete", f"budgets/{made.pk}/").status_code == refused.status_code


def test_a_key_hears_of_its_limits_and_spending(acme):
    wallet, key = Wallet.objects.get(tenant=acme.tenant), acme.key
    grant(wallet, 10_000_000)
    limits = budgets.SpendLimits(month_limit=3_000_000, total_limit=9_000_000)
    budgets.set_key_limits(wallet=wallet.pk, api_key=key.pk, limits=limits)
    principal = load_key(key.pk)
    made = of_budgets(reserve(wallet, 1_500_000), *SpendBudget.objects.filter(wallet=wallet))
    assert isinstance(apply_now([made])[0], Held)
    apply_now([settle(made, 1_250_000)])
    told = key_of(principal)
    assert (told.label, told.limit, told.limit_remaining, told.limit_reset) == (
        f"{key.prefix}…{key.last_four}", 3.0, 1.75, "monthly",
    )  # fmt: skip
    assert {(one.window, one.spent, one.remaining) for one in told.budgets} == {
        ("month", "1.25", "1.75"), ("total", "1.25", "7.75"),
    }  # fmt: skip
