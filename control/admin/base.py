"""Bases of the gateway's admins."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from unfold.contrib.filters.admin import RangeDateFilter
from unfold.utils import parse_date_str

from base.errors import ServiceError
from billing.admin.base import RowsAdmin


class DaysFilter(RangeDateFilter):
    """From the beginning of one UTC day to the end of another: Unfold's own ends where the last day begins."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of the days; invalid days are ignored."""
        for end, moment, lookup in (("from", time.min, "gte"), ("to", time.max, "lte")):
            day = parse_date_str(self.used_parameters.get(f"{self.parameter_name}_{end}"))
            if day is not None:
                edge = datetime.combine(day, moment, tzinfo=UTC)
                queryset = queryset.filter(**{f"{self.parameter_name}__{lookup}": edge})
        return queryset


class KeptAdmin(RowsAdmin):
    """Rows that are deactivated, never deleted; what a service refuses is shown above the form."""

    show_full_result_count = False
    compressed_fields = True

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
