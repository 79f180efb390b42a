"""Fields of the operator's forms: amounts in credits, names of rows that exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError

from base.errors import ServiceError
from billing.models import Plan, RateCard
from billing.services.plans import latest_versions
from routing.models import PublicModel

MOST_OFFERED = 200


class NameField(forms.ChoiceField):
    """A choice among the names that exist when the form is shown; `any_label` offers the empty one."""

    def __init__(self, names: Callable[[], Iterable[str]], *, any_label: str = "", **options: Any) -> None:
        empty = [("", any_label or "Choose…")]
        options.setdefault("required", not any_label)
        super().__init__(choices=lambda: empty + [(name, name) for name in names()], **options)


class NamesField(forms.MultipleChoiceField):
    """Any of the names that exist when the form is shown, a box for each."""

    widget = forms.CheckboxSelectMultiple

    def __init__(self, names: Callable[[], Iterable[str]], **options: Any) -> None:
        super().__init__(choices=lambda: [(name, name) for name in names()], **options)


class OperatorForm(forms.Form):
    """A form without colons after its labels, that shows what a service refused beside its field."""

    renamed: dict[str, str] = {}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"label_suffix": "", **options})

    def refuse(self, error: Exception) -> None:
        """Show the reason at the field that it names, else above the form."""
        if isinstance(error, ValidationError) and hasattr(error, "error_dict"):
            for name, errors in error.message_dict.items():
                self._refuse(name, "; ".join(errors))
            return
        if isinstance(error, ServiceError):
            self._refuse(error.field, error.message)
            return
        text = "; ".join(error.messages) if isinstance(error, ValidationError) else str(error)
        field, _, rest = text.partition(": ")
        known = self.renamed.get(field, field) in self.fields
        self._refuse(field if known else "", rest if known else text)

    def _refuse(self, name: str, text: str) -> None:
        name = self.renamed.get(name, name)
        self.add_error(name if name in self.fields else None, text)


def rate_cards() -> list[str]:
    """Return the price lists that have a published version."""
    priced = RateCard.objects.filter(versions__published_at__isnull=False)
    return list(priced.order_by("name").values_list("name", flat=True).distinct()[:MOST_OFFERED])


def plan_slugs() -> list[str]:
    """Return the short names of all plans."""
    return list(Plan.objects.order_by("slug").values_list("slug", flat=True)[:MOST_OFFERED])


def tasks() -> list[str]:
    """Return the tasks that requests may be for."""
    return list(settings.SLUICE_TASKS)


def models() -> list[str]:
    """Return the names of the models that plans may include."""
    active = PublicModel.objects.filter(is_active=True, tenant=None)
    return list(active.order_by("name").values_list("name", flat=True)[:MOST_OFFERED])


def models_of_plans() -> list[str]:
    """Return those, and the models that plans include now though they were withdrawn: a plan that lost its last one in
    a form would include all.
    """
    included = (name for version in latest_versions() for name in version.allowed_models)
    return sorted({*models(), *included})
