"""Runs of the reconciliation, what they found, and the sums up to which the books were found right."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class Reconciliation(models.Model):
    """One check of the books: running while `is_running`, else `found` counts its contradictions.

    It reads all rows where `is_whole`, else those that came since the last good check. `done` of the `rows` that it
    reads are read, as of `seen_at`. A good one has where the next goes on: behind the `transfer`, with the `record`.
    `findings` holds the first of them, each with `check`, `subject` and `detail`.
    """

    id = models.BigAutoField(primary_key=True)
    is_running = models.BooleanField(null=True, default=True, unique=True, editable=False, help_text="True or null.")
    is_whole = models.BooleanField(db_default=False, help_text="All rows were read, not those since the last one.")
    started_at = models.DateTimeField(db_default=Now())
    seen_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    rows = models.BigIntegerField(db_default=0)
    done = models.BigIntegerField(db_default=0)
    transfer = models.BigIntegerField(null=True)
    record = models.UUIDField(null=True)
    found = models.PositiveIntegerField(null=True)
    findings = models.JSONField(default=list)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.started_at:%Y-%m-%d %H:%M}"

    @property
    def percent(self) -> int:
        """How much of it is done."""
        return min(100, self.done * 100 // self.rows) if self.rows else 0


class CheckedSum(models.Model):
    """What the rows up to the last good check add up to, by which the next one needs only those that came since.

    Of a wallet, of a grant, of a `name`d window of a wallet's budgets, or what charges took beyond a wallet's holds.
    Rows that are gone into the archive are part of `amount`, and alone make `archived`.
    """

    class Kind(models.TextChoices):
        WALLET = "wallet"
        GRANT = "grant"
        WINDOW = "window"
        BEYOND = "beyond"

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=10, choices=Kind)
    subject = models.UUIDField()
    name = models.CharField(max_length=60, blank=True)
    amount = models.BigIntegerField()
    archived = models.BigIntegerField(db_default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["kind", "subject", "name"], name="checked_sum_once")]
        indexes = [
            models.Index(fields=["subject"], condition=Q(kind="grant") & ~Q(amount=0), name="checked_sum_open_grant")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject} {self.name}".strip()
