"""Answers that are kept for those who ask for them again."""

from __future__ import annotations

from typing import ClassVar, Self

from django.db import models
from django.db.models.functions import Now

from base.ids import uuid7
from tenancy.models.scoping import TenantManager
from tenancy.models.tenants import Tenant


class KeptAnswer(models.Model):
    """The claim on one key of a tenant, and its answer once that is complete. The prompt is not stored, only a digest,
    and the answer is sealed.

    `run` is the request that makes the answer, `owner` the gateway that works on it until `lease_until`; whoever takes
    a claim over when that is past begins a new run, which nothing of an earlier one can be stored under any more.
    `closings` says for each request behind a stored answer which classes it is charged for; null: nothing.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    key = models.CharField(max_length=300)
    digest = models.BinaryField()
    run = models.UUIDField(unique=True)
    restarts = models.PositiveIntegerField(default=0)
    owner = models.UUIDField(null=True, help_text="Null: the last run failed, and whoever comes next runs it anew.")
    lease_until = models.DateTimeField()
    read_at = models.DateTimeField(null=True, help_text="When a reader at another gateway was last seen.")
    is_cancelling = models.BooleanField(default=False, help_text="Its end was asked for while it ran.")
    about = models.UUIDField(null=True, db_index=True, help_text="The response of another run whose events these are.")
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(db_index=True)
    finished_at = models.DateTimeField(null=True)
    status = models.PositiveSmallIntegerField(null=True)
    headers = models.JSONField(default=dict)
    body = models.BinaryField(null=True, help_text="Compressed.")
    closings = models.JSONField(default=dict)

    objects: ClassVar[TenantManager[Self]] = TenantManager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "key"], name="kept_answer_once_per_key")]
        indexes = [models.Index(fields=["owner"], name="kept_answer_owner", condition=models.Q(finished_at=None))]

    def __str__(self) -> str:
        return f"{self.key} → {self.run}"
