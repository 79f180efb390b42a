"""Outgoing mail, read-only: what waits, what was sent, what failed and why. Never its text."""

from __future__ import annotations

from django.contrib import admin

from billing.admin.base import ReadOnlyAdmin
from tenancy.models import OutgoingMail


@admin.register(OutgoingMail)
class OutgoingMailAdmin(ReadOnlyAdmin):
    """Mails, newest first."""

    list_display = ["created_at", "to", "subject", "state", "attempts", "next_attempt_at", "error"]
    list_filter = ["state"]
    search_fields = ["to"]
    ordering = ["-id"]
    fields = ["to", "subject", "state", "attempts", "error", "created_at", "next_attempt_at", "ended_at"]
    readonly_fields = fields
