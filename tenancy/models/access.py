"""API keys, admin keys, invitations, sign-in links, and the catalogue epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from django.db import models
from django.db.models.functions import Now

from base.ids import uuid7
from tenancy.models.scoping import TenantManager
from tenancy.models.tenants import Membership, Project, Tenant, User

if TYPE_CHECKING:
    from billing.services.budgets import KeySpending


def only_inference() -> list[str]:
    """Return the default scopes of a key."""
    return ["inference"]


class APIKey(models.Model):
    """A project's key. Only an HMAC of it is kept; `prefix` and `last_four` are what people see."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="api_keys")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="api_keys")
    name = models.CharField(max_length=120)
    prefix = models.CharField(max_length=16)
    last_four = models.CharField(max_length=4)
    digest = models.CharField(max_length=64, unique=True, help_text="HMAC-SHA256 of the key, in hex.")
    scopes = models.JSONField(default=only_inference, help_text="Names of scopes; empty means none.")
    allowed_models = models.JSONField(
        default=list, blank=True, help_text="Public names; empty means those of the plan."
    )
    networks = models.JSONField(default=list, blank=True, help_text="IP networks it may come from; empty means all.")
    request_limit = models.PositiveIntegerField(null=True, blank=True, help_text="Requests a minute.")
    credit_limit = models.PositiveBigIntegerField(null=True, blank=True, help_text="µcr a minute.")
    token_limit = models.PositiveBigIntegerField(null=True, blank=True, help_text="Tokens a minute.")
    concurrency = models.PositiveIntegerField(null=True, blank=True, help_text="Requests at the same time.")
    budget = models.OneToOneField(
        "billing.Budget", on_delete=models.SET_NULL, null=True, blank=True, related_name="+", help_text="Spend limits."
    )
    spending: KeySpending | None = None  # where `services.restrictions` has read it
    previous_digest = models.CharField(
        max_length=64, unique=True, null=True, blank=True, help_text="Of the secret before the last rotation."
    )
    previous_last_four = models.CharField(max_length=4, blank=True)
    previous_until = models.DateTimeField(null=True, blank=True, help_text="When the secret before ends.")
    rotated_at = models.DateTimeField(null=True, blank=True)
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar[TenantManager[Self]] = TenantManager()

    class Meta:
        app_label = "gateway"
        verbose_name = "API key"
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…{self.last_four})"


class Invitation(models.Model):
    """An offer to join a tenant, taken up through a link sent to `email`; single use."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="invitations")
    email = models.EmailField()
    role = models.CharField(max_length=10, choices=Membership.Role, default=Membership.Role.MEMBER)
    digest = models.CharField(max_length=64, unique=True)
    invited_by = models.ForeignKey(
        User,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="The member who sent it; empty: an operator.",
    )
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar[TenantManager[Self]] = TenantManager()

    class Meta:
        app_label = "gateway"

    def __str__(self) -> str:
        return f"{self.email} → {self.tenant}"


class SignInLink(models.Model):
    """A link that signs its user in once, by POST, until it expires."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        app_label = "gateway"

    def __str__(self) -> str:
        return f"{self.user} until {self.expires_at}"


class CatalogueEpoch(models.Model):
    """The row 1: counts of the changes to rows that gateways cache, for all tenants together and for single ones.

    `epoch` counts the former, `sequence` the latter: see `gateway.runtime.epoch`.
    """

    id = models.SmallIntegerField(primary_key=True, default=1)
    epoch = models.BigIntegerField(default=0)
    sequence = models.BigIntegerField(default=0)

    class Meta:
        app_label = "gateway"

    def __str__(self) -> str:
        return str(self.epoch)


class TenantEpoch(models.Model):
    """The sequence number of the last change to what gateways cache of one tenant."""

    tenant = models.UUIDField(primary_key=True)
    sequence = models.BigIntegerField(db_index=True)

    class Meta:
        app_label = "gateway"

    def __str__(self) -> str:
        return f"{self.tenant} {self.sequence}"


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
