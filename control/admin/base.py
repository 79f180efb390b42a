"""Bases of the gateway's admins."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AutocompleteSelect
from django.db.models import ForeignKey, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from base.errors import ServiceError
from billing.admin.base import RowsAdmin, RowSelect
from tenancy.models import Membership


class FormFilter(admin.FieldListFilter):
    """A filter that is filled in and sent, where links can't offer every value."""

    template = "admin/form_filter.html"

    def fields(self) -> dict[str, forms.Field]:
        """Return a field for each parameter."""
        raise NotImplementedError

    def given(self, name: str) -> str:
        """Return the last value of a parameter in the address."""
        values: Any = self.used_parameters.get(name)
        return str(values[-1]) if values else ""

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:  # type: ignore[override] # Django's are links
        """Return the form with the other parameters of the address."""
        initial = {name: self.given(name) for name in self.used_parameters}
        form = type("Form", (forms.Form,), self.fields())(initial=initial, auto_id="filter_%s")
        own = self.expected_parameters()
        kept = [(name, one) for name, all_of in changelist.filter_params.items() if name not in own for one in all_of]
        yield {"form": form, "kept": kept, "without": changelist.get_query_string(remove=own)}


class DaysFilter(FormFilter):
    """From the beginning of one UTC day to the end of another."""

    def expected_parameters(self) -> list[str | None]:
        """Return the names of the first day and the last."""
        return [f"{self.field_path}_from", f"{self.field_path}_to"]

    def fields(self) -> dict[str, forms.Field]:
        """Return the days."""
        return {
            f"{self.field_path}_{end}": forms.DateField(
                required=False, label=label, widget=forms.DateInput(attrs={"type": "date"})
            )
            for end, label in (("from", "From"), ("to", "Up to"))
        }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of the days; invalid days are ignored."""
        for end, moment, lookup in (("from", time.min, "gte"), ("to", time.max, "lte")):
            try:
                day = date.fromisoformat(self.given(f"{self.field_path}_{end}"))
            except ValueError:
                continue
            edge = datetime.combine(day, moment, tzinfo=UTC)
            queryset = queryset.filter(**{f"{self.field_path}__{lookup}": edge})
        return queryset


class RowFilter(FormFilter):
    """By a row of another table, which is searched for: there may be too many for a list."""

    media = AutocompleteSelect(Membership.tenant.field, admin.site).media

    def expected_parameters(self) -> list[str | None]:
        """Return the name of the row's id."""
        return [f"{self.field_path}__{self._key.target_field.name}__exact"]

    @property
    def _key(self) -> ForeignKey[Any, Any]:
        return cast("ForeignKey[Any, Any]", self.field)

    def fields(self) -> dict[str, forms.Field]:
        """Return the search field."""
        [name] = self.expected_parameters()
        rows = self._key.related_model._default_manager.all()  # noqa: SLF001 - documented
        label, widget = str(self.title).capitalize(), RowSelect(self._key, admin.site)
        return {str(name): forms.ModelChoiceField(rows, required=False, label=label, widget=widget)}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of the chosen one; of all where nothing is chosen."""
        self.used_parameters = {name: one for name, one in self.used_parameters.items() if self.given(name)}
        found = super().queryset(request, queryset)
        assert found is not None  # a ListFilter's may be
        return found


class KeptAdmin(RowsAdmin):
    """Rows that are deactivated, never deleted; what a service refuses is shown above the form."""

    show_full_result_count = False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody may delete: ledger and usage records refer to these rows."""
        return False

    def changeform_view(self, request: HttpRequest, *args: Any, **options: Any) -> HttpResponse:
        """Answer with the form again and the reason where a service refused."""
        try:
            response: HttpResponse = super().changeform_view(request, *args, **options)
        except ServiceError as refused:
            messages.error(request, refused.message)
            return HttpResponseRedirect(request.get_full_path())
        return response
