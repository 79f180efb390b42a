"""Stored responses: what was asked and answered, for as long as the tenant lets it be kept."""

from __future__ import annotations

from typing import ClassVar, Self

from django.db import models
from django.db.models.functions import Now

from tenancy.models.scoping import TenantManager
from tenancy.models.tenants import Project, Tenant


class StoredResponse(models.Model):
    """One response of the Responses API. No page shows `input` and `body`: they are the tenant's own.

    `id` is the request's. `previous` is the response that it continues, if that is stored; it may be deleted by now.
    `input` is the JSON array of its own input items, `body` the response object as JSON, and `size` the bytes of both.
    """

    class Status(models.TextChoices):
        QUEUED = "queued"
        IN_PROGRESS = "in_progress"
        COMPLETED = "completed"
        INCOMPLETE = "incomplete"
        FAILED = "failed"
        CANCELLED = "cancelled"

    id = models.UUIDField(primary_key=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+")
    previous = models.UUIDField(null=True)
    status = models.CharField(max_length=11, choices=Status)
    is_background = models.BooleanField(default=False)
    input = models.BinaryField()
    body = models.BinaryField()
    size = models.PositiveBigIntegerField()
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()

    objects: ClassVar[TenantManager[Self]] = TenantManager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["expires_at"], name="responses_by_expiry"),
            models.Index(fields=["tenant"], name="responses_by_tenant"),
        ]

    def __str__(self) -> str:
        return f"resp_{self.id.hex}"
