"""The audit trail: who changed what, from where, written in the transaction of the change and never changed after."""

from __future__ import annotations

from typing import ClassVar, Self

from django.db import models
from django.db.models.functions import Now

from base.ids import uuid7
from tenancy.models.access import APIKey
from tenancy.models.scoping import TenantManager
from tenancy.models.tenants import Tenant, User


class AuditEvent(models.Model):
    """One change or sign-in. `before` and `after` hold the fields that changed; never secrets or passwords.

    `actor` and `target` are names as of then: a later renaming doesn't change them.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    at = models.DateTimeField(db_default=Now(), db_index=True)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, null=True, related_name="+")
    user = models.ForeignKey(User, on_delete=models.PROTECT, null=True, related_name="+")
    api_key = models.ForeignKey(APIKey, on_delete=models.PROTECT, null=True, related_name="+")
    actor = models.CharField(max_length=254)
    action = models.CharField(max_length=60)
    target_type = models.CharField(max_length=40)
    target_id = models.CharField(max_length=64)
    target = models.CharField(max_length=254)
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    address = models.CharField(max_length=45, blank=True)
    request = models.UUIDField(null=True)

    objects: ClassVar[TenantManager[Self]] = TenantManager()

    class Meta:
        app_label = "gateway"
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["tenant", "-id"], name="audit_by_tenant"),
            models.Index(fields=["action", "-id"], name="audit_by_action"),
            models.Index(fields=["user", "-id"], name="audit_by_user"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.target} by {self.actor}"
