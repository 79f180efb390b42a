"""Batches: many requests from one file, answered without haste, and their lines."""

from __future__ import annotations

from typing import ClassVar, Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from base.ids import uuid7
from tenancy.models.scoping import TenantManager
from tenancy.models.tenants import Project, Tenant


class Batch(models.Model):
    """The requests of one input file, sent under the rights of the key that made it.

    `status` only changes where it is what the change expects. `input_file`, `output_file`
    and `error_file` are ids of files: a file may be gone before its batch. `worked_until` is until when one process
    alone reads its input or writes its files.
    """

    class Status(models.TextChoices):
        VALIDATING = "validating"
        IN_PROGRESS = "in_progress"
        FINALIZING = "finalizing"
        COMPLETED = "completed"
        FAILED = "failed"
        CANCELLING = "cancelling"
        CANCELLED = "cancelled"
        EXPIRED = "expired"

    OPEN = (Status.VALIDATING, Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING)

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="batches")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="batches")
    api_key = models.UUIDField(help_text="The key that made it.")
    endpoint = models.CharField(max_length=40)
    model = models.CharField(max_length=200, blank=True, help_text="Of all its lines; empty where they differ.")
    completion_window = models.CharField(max_length=10, default="24h")
    metadata = models.JSONField(null=True)
    output_seconds = models.PositiveIntegerField(null=True, help_text="For which its files are kept.")
    status = models.CharField(max_length=12, choices=Status, default=Status.VALIDATING)
    errors = models.JSONField(default=list)
    input_file = models.UUIDField()
    output_file = models.UUIDField(null=True)
    error_file = models.UUIDField(null=True)
    total = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    reasoning_tokens = models.BigIntegerField(default=0)
    charge = models.BigIntegerField(default=0, help_text="µcr, as its answers say.")
    answer_bytes = models.BigIntegerField(db_default=0, help_text="Of its answers together.")
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    in_progress_at = models.DateTimeField(null=True)
    finalizing_at = models.DateTimeField(null=True)
    completed_at = models.DateTimeField(null=True)
    failed_at = models.DateTimeField(null=True)
    cancelling_at = models.DateTimeField(null=True)
    cancelled_at = models.DateTimeField(null=True)
    expired_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    worked_until = models.DateTimeField(null=True)

    objects: ClassVar[TenantManager[Self]] = TenantManager()

    class Meta:
        verbose_name_plural = "batches"
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["project", "id"], name="batch_of_project"),
            models.Index(fields=["tenant", "id"], condition=Q(ended_at=None), name="batch_open"),
            models.Index(fields=["ended_at"], name="batch_ended"),
        ]

    def __str__(self) -> str:
        return f"batch_{self.id.hex}"


class BatchLine(models.Model):
    """One request of a batch: where it stands in the input file, and what became of it.

    One that is RUNNING belongs to `claim` until `claimed_until`, and to nobody after. Its `id` names the request to the
    gateway, so that it is answered and charged once, however often it is sent. `answer` is one line of the output or
    error file. Lines go when their batch has ended.
    """

    class State(models.IntegerChoices):
        WAITING = 0
        RUNNING = 1
        COMPLETED = 2
        FAILED = 3

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="lines")
    number = models.PositiveIntegerField(help_text="Of its line in the input file, from 1.")
    custom_id = models.CharField(max_length=512)
    offset = models.BigIntegerField()
    size = models.PositiveIntegerField()
    state = models.SmallIntegerField(choices=State, default=State.WAITING)
    attempts = models.PositiveSmallIntegerField(default=0)
    due_at = models.DateTimeField()
    claim = models.UUIDField(null=True)
    claimed_until = models.DateTimeField(null=True)
    answer = models.TextField(blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["batch", "number"], name="batch_line_once_per_number")]
        indexes = [
            models.Index(fields=["batch", "due_at"], condition=Q(state=0), name="batch_line_waiting"),
            models.Index(fields=["claimed_until"], condition=Q(state=1), name="batch_line_running"),
        ]

    def __str__(self) -> str:
        return f"{self.batch_id} {self.number}"
