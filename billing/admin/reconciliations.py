"""Checks of the books, read-only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.html import format_html_join

from billing.admin.base import ReadOnlyAdmin
from billing.models import Reconciliation


@admin.register(Reconciliation)
class ReconciliationAdmin(ReadOnlyAdmin):
    """When the books were checked, and what was found."""

    list_display = ["started_at", "finished_at", "is_whole", "found"]
    fields = ["started_at", "finished_at", "is_whole", "rows", "done", "found", "display_findings"]
    readonly_fields = fields

    @admin.display(description="Findings")
    def display_findings(self, run: Any) -> str:
        """A line for each contradiction; of many the first."""
        rows = ((one["check"], one["subject"], one["detail"]) for one in run.findings)
        return format_html_join("", "<p><strong>{}</strong> {}: {}</p>", rows) or "–"
