"""Budgets as both sides show them: the table with what is spent and held, and the forms that make and change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django import forms
from django.core.exceptions import ValidationError
from django.utils.html import format_html
from django.utils.safestring import SafeString

from billing.models import SpendBudget
from billing.services.budgets import Standing
from control.screens.figures import amount, moment, share
from control.screens.forms import CreditsField
from control.screens.tables import Button, Cell, Column, Row, State, Table
from gateway.generation.credit import end_user_digest
from routing.services.catalogue import models_seen
from tenancy.models import APIKey, Membership, Project, Tenant
from tenancy.services.budgets import WINDOWS, standings, subjects_in_words

MOST_CHOICES = 200  # of each kind of subject
_Scope = SpendBudget.Scope
_WARNS = 0.8


def budgets_table(tenant: Tenant, actions: Callable[[Standing], Sequence[Button]] | None) -> Table:
    """Return the tenant's budgets with their use now, the fullest first; at most seven queries."""
    found = sorted(standings(tenant), key=_part, reverse=True)
    words = subjects_in_words(tenant, [one.budget for one in found])
    columns = [
        Column("Budget", "name"),
        Column("Used", "state"),
        Column("Spent", "number"),
        Column("Held", "number"),
        Column("Of", "number"),
        Column("Resets", "text"),
        Column("Tells at", "text"),
    ] + [Column("Actions", "buttons", is_hidden=True)] * (actions is not None)
    rows = [Row([*_values(one, words), *([actions(one)] if actions is not None else [])]) for one in found]
    return Table("Budgets", columns, rows, "No budget is set: the credit is the only limit.", id="budgets")


def _part(one: Standing) -> float:
    return (one.spent + one.held) / one.budget.amount if one.budget.amount else 1.0


def _values(one: Standing, words: Mapping[UUID, str]) -> list[Any]:
    budget, part = one.budget, _part(one)
    detail = f"{words[budget.pk]} {WINDOWS[budget.window]}, {'hard' if budget.is_hard else 'only tells'}"
    tone = "bad" if part >= 1 else "warn" if part >= _WARNS else ""
    return [
        Cell(str(budget), detail=detail + (", set by the operator" if budget.by_operator else "")),
        State(share(one.spent + one.held, budget.amount) if budget.amount else "–", tone, _bar(one)),
        amount(one.spent),
        amount(one.held),
        amount(budget.amount or 0),
        SafeString("never") if one.resets_at is None else moment(one.resets_at),
        ", ".join(f"{percent} %" for percent in budget.thresholds) or "–",
    ]


def _bar(one: Standing) -> SafeString:
    """Return how full the budget is as a bar."""
    limit = one.budget.amount or 1
    html = '<meter min="0" max="{}" high="{}" optimum="0" value="{}"></meter>'
    return format_html(html, limit, int(limit * _WARNS), min(one.spent + one.held, limit))


class BudgetForm(forms.Form):
    """What can be changed of a budget."""

    name = forms.CharField(max_length=80, required=False, help_text="Left empty, it is called by what it counts.")
    limit = CreditsField(label="Credits", help_text="The most that may be spent in a window.")
    is_hard = forms.TypedChoiceField(
        label="Beyond it",
        choices=[("1", "requests are refused"), ("", "it only tells")],
        initial="1",
        coerce=bool,
        required=False,
        empty_value=False,  # type: ignore[arg-type] # coerced as the others are
    )
    thresholds = forms.CharField(
        required=False,
        initial="80, 100",
        label="Tells at",
        help_text="Percent of the limit; owners, admins, billing and web-hooks are told once in each window.",
    )

    def clean_thresholds(self) -> list[int]:
        """Return the percents."""
        try:
            return [int(part.strip(" %")) for part in self.cleaned_data["thresholds"].split(",") if part.strip(" %")]
        except ValueError:
            raise ValidationError("Write whole numbers with commas between, as 80, 100.") from None

    def terms(self) -> dict[str, Any]:
        """Return what the service takes."""
        asked = dict(self.cleaned_data)
        return {"amount": asked.pop("limit"), **asked}


class NewBudgetForm(BudgetForm):
    """A new budget of a tenant."""

    of = forms.ChoiceField(label="For")
    end_user = forms.CharField(
        max_length=500, required=False, label="End user", help_text="As requests name them in user."
    )
    models = forms.MultipleChoiceField(
        required=False,
        widget=forms.CheckboxSelectMultiple,
        label="Models",
        help_text="For a budget of models: they have it together.",
    )
    window = forms.ChoiceField(choices=[(name, words.capitalize()) for name, words in WINDOWS.items()], initial="month")
    follows_plan = forms.TypedChoiceField(
        label="Begins",
        choices=[("", "with the calendar"), ("1", "as the plan’s months")],
        coerce=bool,
        required=False,
        empty_value=False,  # type: ignore[arg-type] # coerced as the others are
    )
    field_order = ["of", "end_user", "models", "window", "follows_plan", "limit", "is_hard", "thresholds", "name"]

    def __init__(self, data: Any = None, *, tenant: Tenant) -> None:
        super().__init__(data)
        self.tenant = tenant
        names = models_seen(tenant.pk, None).order_by("name").values_list("name", flat=True)[:MOST_CHOICES]
        self.fields["models"].choices = [(name, name) for name in names]  # type: ignore[attr-defined]
        self.fields["of"].choices = [  # type: ignore[attr-defined]
            (f"{_Scope.TENANT}:", "Everything"),
            (f"{_Scope.MODELS}:", "Models, chosen below"),
            (f"{_Scope.END_USER}:", "An end user, named below"),
            ("Projects", self._choices(_Scope.PROJECT)),
            ("Keys", self._choices(_Scope.KEY)),
            ("Members", self._choices(_Scope.MEMBER)),
        ]

    def _choices(self, scope: str) -> list[tuple[str, str]]:
        tenant = self.tenant
        if scope == _Scope.PROJECT:
            found: Any = Project.objects.of(tenant).filter(is_active=True).order_by("name").values_list("pk", "name")
        elif scope == _Scope.KEY:
            found = APIKey.objects.of(tenant).filter(revoked_at=None).order_by("name").values_list("pk", "name")
        else:
            members = Membership.objects.of(tenant).filter(is_active=True)
            found = members.order_by("user__email").values_list("user", "user__email")
        return [(f"{scope}:{pk}", name) for pk, name in found[:MOST_CHOICES]]

    def terms(self) -> dict[str, Any]:
        """Return what the service takes."""
        asked = super().terms()
        scope, _, subject = asked.pop("of").partition(":")
        end_user = asked.pop("end_user")
        if scope == _Scope.END_USER:
            subject = end_user_digest(self.tenant.pk, end_user)
        return {"scope": scope, "subject": subject, **asked}


def filled(budget: SpendBudget) -> dict[str, Any]:
    """Return what a budget's form shows first."""
    return {
        "name": budget.name,
        "limit": budget.amount,
        "is_hard": "1" if budget.is_hard else "",
        "thresholds": ", ".join(map(str, budget.thresholds)),
    }
