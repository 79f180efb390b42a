"""Budgets on the pages: with what is spent of them; made, changed and removed by whoever may."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse

from billing.models import SpendBudget, Wallet
from billing.writer.apply import apply_now
from tenancy.services import budgets
from tests.billing.writer.world import grant, of_budgets, reserve, settle
from tests.control.operate.test_now import operator

__all__ = ["operator"]
pytestmark = pytest.mark.django_db
WANTED = {"of": "tenant:", "window": "month", "limit": "12.5", "is_hard": "1", "thresholds": "50, 90", "name": ""}


def text_of(response):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", response.content.decode()))


def test_an_owner_makes_changes_and_removes_a_budget(acme):
    client = acme.client()
    assert "No budget is set" in text_of(client.get("/billing/"))
    assert client.get("/billing/budgets/new/").status_code == 200
    assert client.post("/billing/budgets/new/", WANTED).status_code == 302
    made = SpendBudget.objects.get()
    assert (made.amount, made.thresholds, made.is_hard, made.name) == (12_500_000, [50, 90], True, "Everything a month")
    wallet = Wallet.objects.get(tenant=acme.tenant)
    grant(wallet, 100_000_000)
    spending = of_budgets(reserve(wallet, 11_000_000), made)
    apply_now([spending])
    apply_now([settle(spending, 10_000_000), of_budgets(reserve(wallet, 500_000), made)])
    page = client.get("/billing/")
    assert "Everything a month everything a month, hard 84.0 %" in text_of(page)
    assert 'value="10500000"></meter>' in page.content.decode()
    path = f"/billing/budgets/{made.pk}/"
    assert 'value="12.5"' in client.get(path).content.decode()
    client.post(path, {**WANTED, "limit": "20", "is_hard": "", "name": "All"})
    made.refresh_from_db()
    assert (made.amount, made.is_hard, made.name) == (20_000_000, False, "All")
    client.post(path, {"remove": "1"})
    assert "No budget is set" in text_of(client.get("/billing/"))


def test_what_is_wrong_stands_beside_its_field(acme):
    client = acme.client()
    wrong = client.post("/billing/budgets/new/", {**WANTED, "of": "models:", "thresholds": "half"})
    assert wrong.status_code == 400
    assert set(wrong.context["form"].errors) == {"thresholds"}
    assert set(client.post("/billing/budgets/new/", {**WANTED, "of": "models:"}).context["form"].errors) == {"models"}
    client.post("/billing/budgets/new/", WANTED)
    assert "There is such a budget already" in client.post("/billing/budgets/new/", WANTED).content.decode()


def test_who_may_only_look_changes_nothing(acme, people):
    made = budgets.make(tenant=acme.tenant, scope="tenant", window="day", amount=5)
    client = people("billing")
    assert "Everything a day" in text_of(client.get("/billing/"))
    assert "New budget" not in text_of(client.get("/billing/"))
    assert client.post("/billing/budgets/new/", WANTED).status_code == 404
    assert client.post(f"/billing/budgets/{made.pk}/", {"remove": "1"}).status_code == 404
    assert SpendBudget.objects.get().removed_at is None


def test_the_operators_budget_is_theirs_to_change(acme, operator):
    wallet = reverse("operate-tenant-wallet", args=[acme.tenant.slug])
    assert operator.post(reverse("operate-tenant-budget", args=[acme.tenant.slug]), WANTED).status_code == 302
    made = SpendBudget.objects.get()
    assert made.by_operator
    assert "Everything a month" in text_of(operator.get(wallet))
    assert acme.client().get(f"/billing/budgets/{made.pk}/").status_code == 404
    change, remove = (
        reverse(f"operate-tenant-budget-{act}", args=[acme.tenant.slug, made.pk]) for act in ("change", "remove")
    )
    operator.post(change, {**WANTED, "limit": "3"})
    assert SpendBudget.objects.get().amount == 3_000_000
    operator.post(remove, {})
    assert "No budget is set" in text_of(operator.get(wallet))
