"""Alerts, and the web-hooks that are told of them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from base.ids import uuid7
from tenancy.models.mail import Outgoing
from tenancy.models.tenants import Tenant


class Alert(models.Model):
    """A trouble, from when it was seen first until it was seen no more. Without a tenant it is the operators'.

    `key` is what it is about: of one key at most one is open. It is told once it has lasted, and once more when it is
    over (`tenancy.services.alerts`).
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    key = models.CharField(max_length=250)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    kind = models.CharField(max_length=60)
    severity = models.CharField(max_length=10)
    title = models.CharField(max_length=200)
    text = models.CharField(max_length=1000)
    remedy = models.CharField(max_length=1000, blank=True)
    path = models.CharField(max_length=200, blank=True, help_text="Of the page where it is mended.")
    raised_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    told_at = models.DateTimeField(null=True)
    resolved_at = models.DateTimeField(null=True)

    class Meta:
        app_label = "gateway"
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["key"], condition=Q(resolved_at=None), name="alert_open_once")]
        indexes = [
            models.Index(fields=["tenant", "-id"], name="alerts_by_tenant"),
            models.Index(fields=["resolved_at"], condition=Q(resolved_at__isnull=False), name="alerts_resolved"),
        ]

    def __str__(self) -> str:
        return self.title


class WebHook(models.Model):
    """An address that is told of alerts: of one tenant's, or without a tenant of the operators'.

    Its secret signs what is sent, as the Standard Webhooks specification has it, and is shown once.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    url = models.CharField(max_length=500)
    sealed_secret = models.TextField()
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        app_label = "gateway"
        ordering = ["id"]

    def __str__(self) -> str:
        return self.url


class Delivery(Outgoing):
    """One message to one web-hook; its id is the same at each attempt, so that its receiver can tell a repetition."""

    hook = models.ForeignKey(WebHook, on_delete=models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=60)
    body = models.TextField()
    status = models.PositiveSmallIntegerField(null=True, help_text="Of the last answer.")

    class Meta:
        app_label = "gateway"
        verbose_name_plural = "deliveries"
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["next_attempt_at"], condition=Q(state="waiting"), name="delivery_waiting"),
            models.Index(fields=["hook", "-id"], name="deliveries_by_hook"),
        ]

    def __str__(self) -> str:
        return f"{self.event} → {self.hook.url}"
