"""Promises of plans that were missed, and how often they were kept."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from billing.models.ledger import Wallet
from billing.models.plans import PlanVersion


class MissedPromise(models.Model):
    """A request that missed its plan's promise: to be credited until `decided_at`, then what it was.

    `due` is the share of its price that the plan gives back, `credited` what of that the month had room for. Amounts
    are µcr. `day` is the request's.
    """

    request = models.UUIDField(primary_key=True, editable=False)
    wallet = models.ForeignKey(Wallet, on_delete=models.PROTECT, related_name="+", db_index=False)
    tenant = models.UUIDField()
    version = models.ForeignKey(PlanVersion, on_delete=models.PROTECT, related_name="+", db_index=False)
    model = models.CharField(max_length=120)
    day = models.DateField()
    due = models.BigIntegerField(null=True, blank=True)
    credited = models.BigIntegerField(null=True, blank=True)
    decided_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(decided_at=None, credited=None, due=None)
                | Q(decided_at__isnull=False, credited__gte=0, due__gte=F("credited")),
                name="missed_promise_decided_whole",
            )
        ]
        indexes = [
            models.Index(fields=["wallet", "request"], condition=Q(decided_at=None), name="missed_promise_due"),
            models.Index(fields=["tenant", "day"], name="missed_promise_tenant_day"),
        ]

    def __str__(self) -> str:
        return f"missed promise of {self.request}"


class PromiseDay(models.Model):
    """The requests of one UTC day, tenant, model and plan's version for which its promise counted, those of them that
    missed it, and the µcr that these were given back.
    """

    id = models.BigAutoField(primary_key=True)
    day = models.DateField()
    tenant = models.UUIDField()
    version = models.ForeignKey(PlanVersion, on_delete=models.PROTECT, related_name="+", db_index=False)
    model = models.CharField(max_length=120)
    counted = models.BigIntegerField(default=0)
    missed = models.BigIntegerField(default=0)
    credited = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "day", "version", "model"], name="promise_day_once"),
        ]
        indexes = [models.Index(fields=["day"], name="promise_day_day")]

    def __str__(self) -> str:
        return f"{self.day} {self.model}"
