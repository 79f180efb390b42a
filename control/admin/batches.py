"""Batches, read-only: whose they are, how far, and what they cost. Never what stands in their files."""

from __future__ import annotations

from django.contrib import admin

from billing.admin.base import ReadOnlyAdmin, credits_column
from gateway.batches.models import Batch


@admin.register(Batch)
class BatchAdmin(ReadOnlyAdmin):
    """Batches, newest first."""

    list_display = [
        "id",
        "tenant",
        "status",
        "endpoint",
        "total",
        "completed",
        "failed",
        "display_charge",
        "created_at",
    ]
    list_filter = ["status", "endpoint"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__name"]
    ordering = ["-id"]
    fields = [
        "tenant", "project", "api_key", "status", "endpoint", "model", "total", "completed", "failed", "input_tokens",
        "cached_tokens", "output_tokens", "reasoning_tokens", "display_charge", "answer_bytes", "created_at",
        "in_progress_at", "expires_at", "ended_at",
    ]  # fmt: skip
    readonly_fields = fields
    display_charge = credits_column("charge", "Credits")
