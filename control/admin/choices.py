"""Form fields for names of rows elsewhere (rate cards, plans, tasks, models): only existing ones can be chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django import forms
from django.conf import settings

from billing.models import Plan, RateCard
from billing.services.plans import latest_versions
from routing.models import PublicModel


class NameField(forms.ChoiceField):
    """One of the names that exist when the form is shown; `any_label` offers the empty one, meaning any."""

    def __init__(self, names: Callable[[], Iterable[str]], *, any_label: str = "", **options: Any) -> None:
        empty = [("", any_label or "---------")]
        options.setdefault("required", not any_label)
        super().__init__(choices=lambda: empty + [(name, name) for name in names()], **options)


class NamesField(forms.MultipleChoiceField):
    """Any of the names that exist when the form is shown."""

    widget = forms.CheckboxSelectMultiple

    def __init__(self, names: Callable[[], Iterable[str]], **options: Any) -> None:
        super().__init__(choices=lambda: [(name, name) for name in names()], **options)


def rate_cards() -> list[str]:
    """Return the rate cards that have a published version."""
    priced = RateCard.objects.filter(versions__published_at__isnull=False)
    return list(priced.order_by("name").values_list("name", flat=True).distinct())


def plans() -> list[str]:
    """Return the slugs of all plans."""
    return list(Plan.objects.order_by("slug").values_list("slug", flat=True))


def tasks() -> list[str]:
    """Return the tasks that requests may be for."""
    return list(settings.SLUICE_TASKS)


def models() -> list[str]:
    """Return the names of the models that plans may include."""
    return list(PublicModel.objects.filter(is_active=True, tenant=None).order_by("name").values_list("name", flat=True))


def models_of_plans() -> list[str]:
    """Return those, and the models that plans include now though they were withdrawn: a plan that lost its last one in
    a form would include all.
    """
    included = (name for version in latest_versions() for name in version.allowed_models)
    return sorted({*models(), *included})
