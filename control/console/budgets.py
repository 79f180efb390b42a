"""A tenant's budgets: made, changed and removed from its Billing page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from base.errors import ServiceError
from billing.services.budgets import Standing
from control.console.tenancy import Place, tenant_page
from control.screens.budgets import BudgetForm, NewBudgetForm, budgets_table, filled
from control.screens.forms import refuse
from control.screens.tables import Button, Table
from tenancy.services import budgets

_METHODS = ["GET", "HEAD", "POST"]


def may_change(place: Place) -> bool:
    """Return whether the reader makes and changes budgets: owners and admins do."""
    return place.access.may("settings") and not place.access.is_viewer


def table_of(place: Place) -> Table:
    """Return the tenant's budgets; those that the operator set are the operator's to change."""

    def actions(one: Standing) -> list[Button]:
        address = reverse("console-budget", args=[one.budget.pk]) + place.query
        return [] if one.budget.by_operator else [Button("Change", address, str(one.budget))]

    return budgets_table(place.tenant, actions if may_change(place) else None)


@require_http_methods(_METHODS)
@tenant_page
def create(request: HttpRequest, place: Place) -> HttpResponse:
    """Make a budget."""
    form = NewBudgetForm(request.POST if request.method == "POST" else None, tenant=place.tenant)

    def act(terms: dict[str, Any]) -> str:
        made = budgets.make(tenant=place.tenant, by=place.access.person, **terms)
        return f"The budget “{made}” counts from now on."

    return _answered(request, place, form, act)


@require_http_methods(_METHODS)
@tenant_page
def change(request: HttpRequest, place: Place, pk: UUID) -> HttpResponse:
    """Change a budget, or with `remove` remove it."""
    budget = get_object_or_404(budgets.of_tenant(place.tenant).filter(by_operator=False), pk=pk)
    tenant, by = place.tenant, place.access.person
    if request.method == "POST" and "remove" in request.POST and may_change(place):
        budgets.remove(budget, tenant=tenant, by=by)
        messages.success(request, f"The budget “{budget}” is removed. Made again, it knows what was spent.")
        return redirect(_back(place))
    form = BudgetForm(request.POST if request.method == "POST" else None, initial=filled(budget))

    def act(terms: dict[str, Any]) -> str:
        changed = budgets.change(budget, tenant=tenant, by=by, **terms)
        return f"The budget “{changed}” is changed: it holds for the next request."

    return _answered(request, place, form, act, budget=budget)


def _back(place: Place) -> str:
    return f"{reverse('console-billing')}{place.query}#budgets"


def _answered(
    request: HttpRequest, place: Place, form: BudgetForm, act: Callable[[dict[str, Any]], str], **more: Any
) -> HttpResponse:
    if not may_change(place):
        raise Http404
    if form.is_valid():
        try:
            done = act(form.terms())
        except ServiceError as error:
            refuse(form, error, subject="of", scope="of", amount="limit")
        else:
            messages.success(request, done)
            return redirect(_back(place))
    context = place.context(page="billing", form=form, back=_back(place), **more)
    return render(request, "console/budget.html", context, status=400 if form.errors else 200)
