"""Users, tenants, projects and memberships. Tenants and users are deactivated or erased: their rows stay, nameless."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from allauth.account.models import EmailAddress
from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.core.validators import MinValueValidator
from django.db import models, transaction
from django.db.models.functions import Lower, Now

from base.ids import uuid7
from tenancy.models.scoping import TenantManager


class UserManager(BaseUserManager["User"]):
    """Makes users by email address."""

    @transaction.atomic
    def create_user(self, email: str, password: str | None = None, **fields: Any) -> User:
        """Return a new user whose address counts as proved; without a password they sign in by link or reset."""
        if not email:
            raise ValueError("email: an address is required")
        user = self.model(email=self.normalize_email(email).lower(), **fields)
        user.set_password(password)
        user.save(using=self._db)
        self.confirm_address(user)
        return user

    @transaction.atomic
    def confirm_address(self, user: User) -> None:
        """Make `user.email` the user's only address, and proved; other users' claims on it are deleted."""
        EmailAddress.objects.filter(email=user.email).exclude(user=user).delete()
        EmailAddress.objects.filter(user=user).exclude(email=user.email).delete()
        EmailAddress.objects.update_or_create(user=user, email=user.email, defaults={"verified": True, "primary": True})

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> User:
        """Return a new operator."""
        return self.create_user(email, password, is_staff=True, is_superuser=True, **fields)


class User(AbstractBaseUser, PermissionsMixin):
    """A person, known by email address."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    email = models.EmailField(unique=True)
    name = models.CharField(max_length=120, blank=True)
    is_active = models.BooleanField(default=True)
    is_staff = models.BooleanField(default=False, help_text="May use the operator's admin.")
    date_joined = models.DateTimeField(db_default=Now())
    address_ask = models.CharField(
        max_length=43,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="What a link to a new address says.",
    )

    objects: ClassVar[UserManager] = UserManager()

    USERNAME_FIELD = "email"
    EMAIL_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        app_label = "gateway"
        constraints = [models.UniqueConstraint(Lower("email"), name="user_email_case_insensitive")]

    def __str__(self) -> str:
        return self.email


def _days(kept: str) -> models.PositiveSmallIntegerField[int | None, int | None]:
    return models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=f"Days for which {kept} kept; empty: as many as this installation keeps them.",
    )


class Tenant(models.Model):
    """A customer: owns projects, keys, one wallet and one subscription.

    Each of the `*_days` is at most the setting of its name (SLUICE_RESPONSE_DAYS …), which holds where it is None.
    """

    class Storage(models.TextChoices):
        FORBIDDEN = "forbidden", "Never"
        ON_REQUEST = "on_request", "Where a request asks for it"
        BY_DEFAULT = "by_default", "Unless a request forbids it"

    class HostedTools(models.TextChoices):
        REFUSE = "refuse", "Are refused"
        LEAVE_OUT = "leave_out", "Are left out of the request"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(max_length=120)
    slug = models.SlugField(max_length=60, unique=True)
    is_active = models.BooleanField(default=True)
    response_storage = models.CharField(
        "stores responses",
        max_length=10,
        choices=Storage,
        default=Storage.ON_REQUEST,
        db_default=Storage.ON_REQUEST.value,
        help_text="Whether responses, with what was asked, are kept so that clients can read and continue them. "
        "“Never” deletes those that are kept.",
    )
    hosted_tools = models.CharField(
        max_length=10,
        choices=HostedTools,
        default=HostedTools.REFUSE,
        db_default=HostedTools.REFUSE.value,
        help_text="What becomes of tools in a request that would run at a provider, such as a search of the web. What "
        "is left out is told in the header x-sluice-not-enforced.",
    )
    response_days = _days("stored responses are")
    file_days = _days("files are")
    batch_days = _days("batches that have ended are")
    refusal_days = _days("refused requests are")
    created_at = models.DateTimeField(db_default=Now())
    erased_at = models.DateTimeField(null=True, blank=True, editable=False, help_text="When all but its books went.")

    class Meta:
        app_label = "gateway"
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Project(models.Model):
    """A part of a tenant that keys and usage belong to."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="projects")
    name = models.CharField(max_length=120)
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(db_default=Now())

    objects: ClassVar[TenantManager[Self]] = TenantManager()

    class Meta:
        app_label = "gateway"
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="project_once_per_tenant_and_name")]

    def __str__(self) -> str:
        return f"{self.tenant} · {self.name}"


class Membership(models.Model):
    """A user's role in a tenant."""

    class Role(models.TextChoices):
        OWNER = "owner"
        ADMIN = "admin"
        MEMBER = "member"
        BILLING = "billing"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role, default=Role.MEMBER)
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(db_default=Now())

    objects: ClassVar[TenantManager[Self]] = TenantManager()

    class Meta:
        app_label = "gateway"
        constraints = [models.UniqueConstraint(fields=["tenant", "user"], name="membership_once_per_tenant_and_user")]

    def __str__(self) -> str:
        return f"{self.user} in {self.tenant}"
