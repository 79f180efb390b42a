"""Tenants: created with all that they need in one transaction; deactivated, never deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q, TextChoices
from django.utils import timezone
from django.utils.text import slugify

from base.errors import ServiceError
from billing.models import Hold, Plan, Subscription, Wallet
from billing.services import plans, wallets
from tenancy.models import APIKey, Invitation, Membership, Project, Tenant
from tenancy.services import members

# What owners and admins decide.
SETTINGS: Mapping[str, type[TextChoices]] = {
    "response_storage": Tenant.Storage,
    "hosted_tools": Tenant.HostedTools,
}
# How long the tenant's rows are kept, by the setting that bounds it.
RETENTION = {name: f"SLUICE_{name.upper()}" for name in ("response_days", "file_days", "batch_days", "refusal_days")}


@dataclass(frozen=True, slots=True)
class NewTenant:
    """A new tenant; `invitation_address` is the owner's link: only its digest is stored."""

    tenant: Tenant
    project: Project
    wallet: Wallet
    subscription: Subscription
    invitation: Invitation
    invitation_address: str


@transaction.atomic
def create_tenant(*, name: str, slug: str, owner_email: str, plan: str) -> NewTenant:
    """Create a tenant with a project "Default", wallet, subscription to `plan` with its first month's credit, and an
    invitation for its owner. Raises ServiceError naming the field that is wrong.
    """
    name, slug = _checked_name(name), slug.strip().lower()
    if slugify(slug) != slug or not 0 < len(slug) <= 60:
        raise ServiceError("slug", "Use small letters, digits and hyphens, at most 60 of them.")
    if Tenant.objects.filter(slug=slug).exists():
        raise ServiceError("slug", "Another tenant has this slug.")
    if not Plan.objects.filter(slug=plan, is_offered=True).exists():
        raise ServiceError("plan", "No such plan.")
    tenant = Tenant.objects.create(name=name, slug=slug)
    project = Project(tenant=tenant, name="Default")
    project.save(force_insert=True)
    wallet = wallets.open_wallet(tenant_id=tenant.id)
    subscription = plans.subscribe(tenant_id=tenant.id, plan_slug=plan)
    invitation, address = members.invite_member(tenant=tenant, email=owner_email, role=Membership.Role.OWNER)
    return NewTenant(tenant, project, wallet, subscription, invitation, address)


def _checked_name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > 120:
        raise ServiceError("name", "A tenant needs a name of at most 120 characters.")
    return name


@transaction.atomic
def rename_tenant(*, tenant: Tenant, name: str) -> Tenant:
    """Return the tenant by another name; its slug stays."""
    mine = Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
    mine.name = _checked_name(name)
    mine.save(update_fields=["name"])
    return mine


@transaction.atomic
def set_settings(*, tenant: Tenant, **wanted: str | int | None) -> Tenant:
    """Return the tenant with these of `SETTINGS` and `RETENTION`, which hold from within a second on. Rows that it may
    keep no longer, as stored responses where they are forbidden, are deleted by the next purge.
    """
    for name, value in wanted.items():
        if name in RETENTION:
            check_days(name, value)
        elif value not in SETTINGS[name].values:
            raise ServiceError(name, f"Choose one of {', '.join(SETTINGS[name].values)}.")
    mine = Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
    for name, value in wanted.items():
        setattr(mine, name, value)
    mine.save(update_fields=[*wanted])
    return mine


def most_days(name: str) -> int:
    """Return the installation's days for the field `name` of `RETENTION`."""
    days: int = getattr(settings, RETENTION[name])
    return days


def check_days(name: str, days: object) -> None:
    """Raise ServiceError for days that a tenant can't have in the field `name` of `RETENTION`."""
    most = most_days(name)
    if days is not None and not (isinstance(days, int) and 1 <= days <= most):
        raise ServiceError(name, f"Between 1 and the {most} days of this installation; empty for these.")


def outlived(name: str, since: str, now: datetime) -> Q:
    """Return the condition of rows older by `now` than their tenant keeps them: counted from the moment `since`, by the
    field `name` of `RETENTION`. Tenants without days of their own aren't meant.
    """
    over = Q(pk__in=())
    for days in Tenant.objects.exclude(**{name: None}).order_by().values_list(name, flat=True).distinct():
        over |= Q(**{f"tenant__{name}": days, f"{since}__lt": now - timedelta(days=days)})
    return over


@transaction.atomic
def create_project(*, tenant: Tenant, name: str) -> Project:
    """Return a new project of `tenant`."""
    name = name.strip()
    if not name:
        raise ServiceError("name", "A project needs a name.")
    project = Project(tenant=tenant, name=name)
    try:
        with transaction.atomic():
            project.save(force_insert=True)
    except IntegrityError:
        raise ServiceError("name", "Another project has this name.") from None
    return project


@transaction.atomic
def rename_project(*, tenant: Tenant, project: Project, name: str) -> Project:
    """Return the project by another name."""
    mine = Project.objects.of(tenant).select_for_update().get(id=project.id)
    mine.name = name.strip()
    if not mine.name or len(mine.name) > 120:
        raise ServiceError("name", "A project needs a name of at most 120 characters.")
    try:
        with transaction.atomic():
            mine.save(update_fields=["name"])
    except IntegrityError:
        raise ServiceError("name", "Another project has this name.") from None
    return mine


@transaction.atomic
def archive_project(*, tenant: Tenant, project: Project) -> Project:
    """Return the project, inactive: its keys are refused within a second. A tenant keeps an active project."""
    rows = {row.id: row for row in Project.objects.of(tenant).select_for_update().order_by("id")}
    mine = rows[project.id]
    if mine.is_active and not any(row.is_active for row in rows.values() if row is not mine):
        raise ServiceError("project", "A tenant keeps a project: make another one first.")
    mine.is_active = False
    mine.save(update_fields=["is_active"])
    return mine


@dataclass(frozen=True, slots=True)
class Ending:
    """The numbers of keys, members, invitations and requests that a tenant's deactivation concerns."""

    keys: int
    members: int
    invitations: int
    running: int

    def __str__(self) -> str:
        return f"{self.keys} keys, {self.members} members and {self.invitations} open invitations are refused now"


def what_ends(*, tenant: Tenant) -> Ending:
    """Return what the deactivation of `tenant` would stop; running requests are allowed to end."""
    now = timezone.now()
    works = Q(expires_at=None) | Q(expires_at__gt=now)
    return Ending(
        keys=APIKey.objects.of(tenant).filter(works, revoked_at=None).count(),
        members=Membership.objects.of(tenant).filter(is_active=True).count(),
        invitations=Invitation.objects.of(tenant).filter(accepted_at=None, expires_at__gt=now).count(),
        running=Hold.objects.filter(wallet__tenant=tenant).count(),
    )


@transaction.atomic
def deactivate_tenant(*, tenant: Tenant) -> None:
    """Stop everything of `tenant` within a second: keys, sessions, sign-up by invitation. Its wallet and records
    stay.
    """
    tenant.is_active = False
    tenant.save(update_fields=["is_active"])


@transaction.atomic
def activate_tenant(*, tenant: Tenant) -> None:
    """Activate `tenant` again: its keys and members work as before. Raises ServiceError for one that was erased."""
    if tenant.erased_at is not None:
        raise ServiceError("tenant", "It was erased: nobody and nothing is left that could go on.")
    tenant.is_active = True
    tenant.save(update_fields=["is_active"])
