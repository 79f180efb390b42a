"""Runs of the reconciliation, and what they found."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class Reconciliation(models.Model):
    """One check of all rows of credit: running while `is_running`, else `found` counts its contradictions.

    `findings` holds the first of them, each with `check`, `subject` and `detail`.
    """

    id = models.BigAutoField(primary_key=True)
    is_running = models.BooleanField(null=True, default=True, unique=True, editable=False, help_text="True or null.")
    started_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)
    found = models.PositiveIntegerField(null=True)
    findings = models.JSONField(default=list)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.started_at:%Y-%m-%d %H:%M}"
