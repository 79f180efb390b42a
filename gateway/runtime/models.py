"""Refused requests, the states of periodic work, and what parts of an installation noted for its checks."""

from __future__ import annotations

from typing import ClassVar, Self

from django.db import models

from tenancy.models.access import APIKey
from tenancy.models.scoping import TenantManager
from tenancy.models.tenants import Tenant


class TaskState(models.Model):
    """The last success of one periodic task, and how often it failed since. `seconds` is how long that success took.

    One that was `asked_at` is done by the periodic work at its next look, due or not.
    """

    name = models.CharField(primary_key=True, max_length=60)
    succeeded_at = models.DateTimeField(null=True)
    seconds = models.FloatField(default=0.0)
    failures = models.PositiveIntegerField(default=0, help_text="Since the last success.")
    error = models.CharField(max_length=300, blank=True, help_text="Why it failed last.")
    asked_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Observation(models.Model):
    """The last note of one part of the installation on itself, for its checks (`gateway.runtime.observed`)."""

    class Kind(models.TextChoices):
        CHECK = "check", "result of a check"
        GATEWAY = "gateway", "gateway that serves"
        SECRET = "secret", "canary of a secret"
        BACKUP = "backup", "backup"

    kind = models.CharField(max_length=10, choices=Kind)
    name = models.CharField(max_length=120)
    facts = models.JSONField()
    at = models.DateTimeField()

    class Meta:
        ordering = ["kind", "name"]
        constraints = [models.UniqueConstraint(fields=["kind", "name"], name="observed_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class RefusalCount(models.Model):
    """The refusals of one key of a tenant (or, without one, of the chat) for one reason in one minute.

    `id` is derived from the group (see `gateway.runtime.refusals`), so that gateways add to the same row.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    minute = models.DateTimeField()
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    api_key = models.ForeignKey(APIKey, on_delete=models.PROTECT, null=True, related_name="+", verbose_name="API key")
    status = models.PositiveSmallIntegerField()
    code = models.CharField(max_length=60)
    model = models.CharField(max_length=120, blank=True)
    count = models.PositiveBigIntegerField()
    last_request = models.UUIDField()
    last_at = models.DateTimeField()

    objects: ClassVar[TenantManager[Self]] = TenantManager()

    class Meta:
        verbose_name = "refusal"
        ordering = ["-minute", "-last_request"]
        indexes = [
            models.Index(fields=["-minute", "-last_request"], name="refusals_by_minute"),
            models.Index(fields=["tenant", "-minute"], name="refusals_by_tenant"),
            models.Index(fields=["last_request"], name="refusals_by_request"),
        ]

    def __str__(self) -> str:
        return f"{self.count} × {self.reason}"

    @property
    def reason(self) -> str:
        """The code in words."""
        return in_words(self.code)


class RefusedRequest(models.Model):
    """One request that was refused: who sent it, where, and the error that its client was told; never the prompt.

    Of a flood some are kept (`gateway.runtime.refusals`), and `RefusalCount` has how many there were.
    """

    id = models.UUIDField(primary_key=True, editable=False, help_text="The request's.")
    at = models.DateTimeField()
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", db_index=False)
    project = models.UUIDField(null=True)
    api_key = models.UUIDField(null=True)
    user = models.UUIDField(null=True, help_text="Who asked in the chat.")
    endpoint = models.CharField(max_length=120)
    model = models.CharField(max_length=120, blank=True, help_text="As the client wrote it.")
    status = models.PositiveSmallIntegerField()
    code = models.CharField(max_length=60)
    param = models.CharField(max_length=200, blank=True)
    message = models.CharField(max_length=500)
    input_tokens = models.IntegerField(null=True, help_text="Where the prompt was counted before.")

    objects: ClassVar[TenantManager[Self]] = TenantManager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["tenant", "id"], name="refused_by_tenant"),
            models.Index(fields=["at"], name="refused_by_moment"),
            models.Index(fields=["user"], name="refused_by_user", condition=models.Q(user__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.id} {self.code}"

    @property
    def reason(self) -> str:
        """The code in words."""
        return in_words(self.code)


def in_words(code: str) -> str:
    """Return an error's code as a reader's sentence begins: ``rate_limit_exceeded`` is “Rate limit exceeded”."""
    words = code.replace("_", " ")
    return (words[:1].upper() + words[1:]).replace("api key", "API key").replace("Api key", "API key")
