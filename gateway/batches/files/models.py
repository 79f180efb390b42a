"""Files that tenants upload, and those that batches write for them."""

from __future__ import annotations

from typing import ClassVar, Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from base.ids import uuid7
from tenancy.models.scoping import TenantManager
from tenancy.models.tenants import Project, Tenant


class StoredFile(models.Model):
    """A file of a project: the row here, the bytes in the storage `files` under `key`.

    It is READY once its bytes are stored. One that is DELETED isn't shown any more; its bytes and its row go when no
    batch reads it. PENDING rows whose upload was cut off go the same way.
    """

    class State(models.IntegerChoices):
        PENDING = 0
        READY = 1
        DELETED = 2

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="files")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="files")
    purpose = models.CharField(max_length=20)
    filename = models.CharField(max_length=255)
    bytes = models.BigIntegerField()
    state = models.SmallIntegerField(choices=State, default=State.PENDING)
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()

    objects: ClassVar[TenantManager[Self]] = TenantManager()

    class Meta:
        verbose_name = "file"
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["project", "id"], condition=Q(state=1), name="file_of_project"),
            models.Index(fields=["expires_at"], name="file_expires"),
            models.Index(fields=["created_at"], condition=~Q(state=1), name="file_to_remove"),
        ]

    def __str__(self) -> str:
        return f"{self.filename} ({self.bytes} bytes)"

    @property
    def key(self) -> str:
        """Its name in the storage: made by us, in a folder of its tenant's."""
        return f"{self.tenant_id.hex}/{self.id.hex}"
