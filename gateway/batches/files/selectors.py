"""Which files a project or a tenant has."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from django.db.models import Count, QuerySet, Sum
from django.db.models.functions import Coalesce

from gateway.batches.files.models import StoredFile
from tenancy.models import Tenant

State = StoredFile.State


def file_of(tenant: UUID, project: UUID, identifier: UUID) -> StoredFile | None:
    """Return the project's file, or None."""
    return _files(tenant, project).filter(id=identifier).first()


def files_of(
    tenant: UUID, project: UUID, *, purpose: str | None, after: UUID | None, limit: int, is_rising: bool = False
) -> list[StoredFile]:
    """Return at most `limit` files of the project behind `after`, the newest first unless `is_rising`."""
    files = _files(tenant, project)
    if purpose is not None:
        files = files.filter(purpose=purpose)
    if after is not None:
        files = files.filter(id__gt=after) if is_rising else files.filter(id__lt=after)
    return list(files.order_by("id" if is_rising else "-id")[:limit])


def files_with(tenant: UUID, identifiers: Collection[UUID]) -> dict[UUID, StoredFile]:
    """Return those of the tenant's files that have these ids and can be read, by id."""
    files = StoredFile.objects.of(Tenant(id=tenant)).filter(id__in=identifiers, state=State.READY)
    return {file.id: file for file in files}


def taken(tenant: UUID) -> tuple[int, int]:
    """Return how many files the tenant has, those that are on their way included, and their bytes together."""
    files = StoredFile.objects.of(Tenant(id=tenant)).exclude(state=State.DELETED)
    sums = files.aggregate(count=Count("id"), size=Coalesce(Sum("bytes"), 0))
    return sums["count"], sums["size"]


def _files(tenant: UUID, project: UUID) -> QuerySet[StoredFile]:
    return StoredFile.objects.of(Tenant(id=tenant)).filter(project=project, state=State.READY)
