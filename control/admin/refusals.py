"""Counts of refused requests, read-only: reason, tenant, how often."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from base.ids import moment_of
from billing.admin.base import ReadOnlyAdmin, SearchById
from control.admin.base import DaysFilter, RowFilter
from gateway.runtime.models import RefusalCount, in_words

_MINUTE = timedelta(minutes=1)
_WEEK = timedelta(days=7)


class _ValueFilter(admin.SimpleListFilter):
    """The values that one column had in the last week."""

    parameter_name: str

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return each value."""
        last = RefusalCount.objects.filter(minute__gte=timezone.now() - _WEEK).order_by(self.parameter_name)
        names = last.values_list(self.parameter_name, flat=True).distinct()
        return [(name, self.shown(name)) for name in names if name]

    def shown(self, name: str) -> str:
        """Return a value as it is read."""
        return name

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows with the chosen one."""
        return queryset.filter(**{self.parameter_name: self.value()}) if self.value() else queryset


class CodeFilter(_ValueFilter):
    """By reason."""

    title = "reason"
    parameter_name = "code"

    def shown(self, name: str) -> str:
        """Return the code in words."""
        return in_words(name)


class ModelFilter(_ValueFilter):
    """By model."""

    title = "model"
    parameter_name = "model"


@admin.register(RefusalCount)
class RefusalCountAdmin(SearchById, ReadOnlyAdmin):
    """Counts of refused requests, newest first."""

    list_display = ["last_at", "tenant", "display_key", "display_reason", "model", "display_count", "last_request"]
    list_filter = [("tenant", RowFilter), CodeFilter, ModelFilter, ("minute", DaysFilter)]
    list_select_related = ["tenant", "api_key"]
    search_help_text = "A request's id (also chatcmpl-… or resp_…), a tenant's or a key's id, or a tenant's slug."
    ordering = ["-minute", "-last_request"]
    fields = [
        "minute", "tenant", "api_key", "display_reason", "code", "status", "model", "display_count", "last_at",
        "last_request",
    ]  # fmt: skip
    readonly_fields = fields

    def rows_named(self, rows: QuerySet[Any], text: str, identifier: UUID | None) -> QuerySet[Any]:
        """Return the rows whose last request, tenant or key has that id, else those of that request's minute and the
        next. Without an id, `text` is a tenant's slug.
        """
        if identifier is None:
            return rows.filter(tenant__slug=text)
        found = rows.filter(Q(last_request=identifier) | Q(tenant=identifier) | Q(api_key=identifier))
        if found.exists():
            return found
        minute = moment_of(identifier).replace(second=0, microsecond=0)
        return rows.filter(minute__in=[minute, minute + _MINUTE])

    @admin.display(description="From", ordering="api_key")
    def display_key(self, row: RefusalCount) -> str:
        """The key's name, or "chat" for a request from the chat."""
        return str(row.api_key) if row.api_key is not None else "chat"

    @admin.display(description="Reason", ordering="code")
    def display_reason(self, row: RefusalCount) -> str:
        """The code in words, and the status."""
        return f"{row.reason} ({row.status})"

    @admin.display(description="Times", ordering="count")
    def display_count(self, row: RefusalCount) -> str:
        """The number in that minute."""
        return f"{row.count:,}"
