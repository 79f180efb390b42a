"""Which batches a project or a tenant has."""

from __future__ import annotations

from uuid import UUID

from gateway.batches.models import Batch
from tenancy.models import Tenant


def batch_of(tenant: UUID, project: UUID, identifier: UUID) -> Batch | None:
    """Return the project's batch, or None."""
    return Batch.objects.of(Tenant(id=tenant)).filter(project=project, id=identifier).first()


def batches_of(tenant: UUID, project: UUID, *, after: UUID | None, limit: int) -> list[Batch]:
    """Return at most `limit` batches of the project behind `after`, the newest first."""
    batches = Batch.objects.of(Tenant(id=tenant)).filter(project=project)
    if after is not None:
        batches = batches.filter(id__lt=after)
    return list(batches.order_by("-id")[:limit])


def batch_of_tenant(tenant: UUID, identifier: UUID) -> Batch | None:
    """Return the batch of any of the tenant's projects, or None."""
    return Batch.objects.of(Tenant(id=tenant)).filter(id=identifier).first()


def batches_of_tenant(tenant: UUID, *, before: UUID | None, limit: int) -> list[Batch]:
    """Return at most `limit` batches of all projects that are older than `before`, the newest first."""
    batches = Batch.objects.of(Tenant(id=tenant)).select_related("project")
    if before is not None:
        batches = batches.filter(id__lt=before)
    return list(batches.order_by("-id")[:limit])
