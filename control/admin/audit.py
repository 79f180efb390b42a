"""The audit trail, read-only."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from billing.admin.base import ReadOnlyAdmin
from control.admin.base import DaysFilter, RowFilter
from tenancy.audit.trail import change_of
from tenancy.models import AuditEvent


class ActionFilter(admin.SimpleListFilter):
    """Filter by action; the choices are those that occur."""

    title = "action"
    parameter_name = "action"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return each action."""
        actions = AuditEvent.objects.order_by("action").values_list("action", flat=True).distinct()
        return [(action, action) for action in actions]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Return the events of the chosen one."""
        return queryset.filter(action=self.value()) if self.value() else queryset


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnlyAdmin):
    """Audit events, newest first: actor, action, target, change and address."""

    list_display = ["display_at", "tenant", "actor", "action", "target", "display_change", "address"]
    list_display_links = ["display_at"]
    list_filter = [("tenant", RowFilter), ActionFilter, ("user", RowFilter), ("at", DaysFilter)]
    list_select_related = ["tenant"]
    search_fields = ["=target_id", "=address", "=request", "actor__istartswith"]
    search_help_text = "A whole id of a target or a request, a whole address, or how an actor's name begins."
    ordering = ["-id"]
    fields = [
        "display_at", "tenant", "actor", "user", "api_key", "action", "target_type", "target", "target_id",
        "display_before", "display_after", "address", "request",
    ]  # fmt: skip
    readonly_fields = fields

    @admin.display(description="When (UTC)", ordering="id")
    def display_at(self, event: AuditEvent) -> str:
        """To the second."""
        return f"{event.at:%Y-%m-%d %H:%M:%S}"

    @admin.display(description="Change")
    def display_change(self, event: AuditEvent) -> str:
        """The change, in one line."""
        return change_of(event)

    @admin.display(description="Before")
    def display_before(self, event: AuditEvent) -> SafeString:
        """The fields before."""
        return _pretty(event.before)

    @admin.display(description="After")
    def display_after(self, event: AuditEvent) -> SafeString:
        """The fields after."""
        return _pretty(event.after)


def _pretty(values: dict[str, Any]) -> SafeString:
    if not values:
        return SafeString("–")
    return format_html("<pre>{}</pre>", json.dumps(values, indent=2, ensure_ascii=False))
