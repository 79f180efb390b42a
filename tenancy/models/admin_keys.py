"""Keys that administer a tenant, and nothing else."""

from __future__ import annotations

from typing import ClassVar, Self

from django.db import models
from django.db.models.functions import Now

from base.ids import uuid7
from tenancy.models.scoping import TenantManager
from tenancy.models.tenants import Tenant, User


class AdminAPIKey(models.Model):
    """A key of a whole tenant for /v1/organization: a table of its own, so that it asks no model, and no other key is
    let in there. Only an HMAC of it is kept.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="admin_api_keys")
    name = models.CharField(max_length=120)
    last_four = models.CharField(max_length=4)
    digest = models.CharField(max_length=64, unique=True, help_text="HMAC-SHA256 of the key, in hex.")
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar[TenantManager[Self]] = TenantManager()

    class Meta:
        app_label = "gateway"
        verbose_name = "admin API key"
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} (sk-sluice-admin-…{self.last_four})"
