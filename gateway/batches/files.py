"""Files of projects: rows and their bytes, found, kept, read and deleted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import ClassVar, Self
from uuid import UUID

from django.conf import settings
from django.db import models, transaction
from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Sum
from django.db.models.functions import Coalesce, Now

from base import clock, storage
from base.ids import uuid7
from billing.services.sweeps import Sweep
from gateway.batches.models import Batch
from gateway.errors.refusal import Refusal
from tenancy.models.scoping import TenantManager
from tenancy.models.tenants import Project, Tenant
from tenancy.services.tenants import outlived


class StoredFile(models.Model):
    """A file of a project: the row here, the bytes in the storage `files` under `key`.

    It is READY once its bytes are stored. One that is DELETED isn't shown any more; its bytes and its row go when no
    batch reads it. PENDING rows whose upload was cut off go the same way.
    """

    class State(models.IntegerChoices):
        PENDING = 0
        READY = 1
        DELETED = 2

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="files")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="files")
    purpose = models.CharField(max_length=20)
    filename = models.CharField(max_length=255)
    bytes = models.BigIntegerField()
    state = models.SmallIntegerField(choices=State, default=State.PENDING)
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()

    objects: ClassVar[TenantManager[Self]] = TenantManager()

    class Meta:
        verbose_name = "file"
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["project", "id"], condition=Q(state=1), name="file_of_project"),
            models.Index(fields=["expires_at"], name="file_expires"),
            models.Index(fields=["created_at"], condition=~Q(state=1), name="file_to_remove"),
        ]

    def __str__(self) -> str:
        return f"{self.filename} ({self.bytes} bytes)"

    @property
    def key(self) -> str:
        """Its name in the storage: made by us, in a folder of its tenant's."""
        return f"{self.tenant_id.hex}/{self.id.hex}"


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


CUT_OFF = timedelta(hours=1)
"""Age at which a file whose bytes aren't stored yet was surely left by a process that died."""
_State = StoredFile.State


def require_room(tenant: UUID, size: int) -> None:
    """Raise the 403 Refusal for a tenant that may not have another file of `size` bytes."""
    count, total = taken(tenant)
    if count >= settings.SLUICE_MOST_FILES:
        text = f"You have {count} files, the most that you may have: delete some first."
    elif total + size > settings.SLUICE_MOST_FILE_BYTES:
        text = f"Your files may have {settings.SLUICE_MOST_FILE_BYTES:,} bytes together: delete some first."
    else:
        return
    raise Refusal(403, "file_quota_exceeded", text, should_retry=False)


@transaction.atomic
def begin_file(
    *, tenant: UUID, project: UUID, purpose: str, filename: str, size: int, seconds: int | None, is_bounded: bool = True
) -> StoredFile:
    """Return a new file that isn't shown until `finish_file`; it expires after `seconds`, or the days of the settings.

    Raise a 403 Refusal, if it `is_bounded`, where its tenant has as much as it may; its row is locked, so that uploads
    at the same time can't exceed that.
    """
    if is_bounded:
        Tenant.objects.select_for_update(no_key=True).get(id=tenant)
        require_room(tenant, size)
    now = clock.now()
    lasts = timedelta(days=settings.SLUICE_FILE_DAYS) if seconds is None else timedelta(seconds=seconds)
    return StoredFile.objects.create(
        tenant_id=tenant,
        project_id=project,
        purpose=purpose,
        filename=filename,
        bytes=size,
        created_at=now,
        expires_at=now + lasts,
    )


def finish_file(file: StoredFile) -> bool:
    """Show a file whose bytes are stored; False when it was given up meanwhile."""
    rows = StoredFile.objects.unscoped().filter(id=file.id, state=_State.PENDING)
    return bool(rows.update(state=_State.READY))


def not_stored() -> Refusal:
    """Return the 503 for a file that was given up before its bytes were stored."""
    return Refusal(503, "file_not_stored", "The file took too long to be stored: upload it again.")


def delete_file(tenant: UUID, project: UUID, identifier: UUID) -> bool:
    """Hide the project's file, whose bytes then go once no open batch reads them; False where there is none."""
    files = StoredFile.objects.of(Tenant(id=tenant)).filter(project=project, id=identifier, state=_State.READY)
    return bool(files.update(state=_State.DELETED))


def hide_expired(now: datetime, limit: int) -> int:
    """Hide at most `limit` files that have expired by `now`, or are older than their tenant keeps them; return how
    many.
    """
    files = StoredFile.objects.unscoped()
    over = files.filter(Q(expires_at__lte=now) | outlived("file_days", "created_at", now), state=_State.READY)
    expired = list(over.values_list("id", flat=True)[:limit])
    return files.filter(id__in=expired, state=_State.READY).update(state=_State.DELETED) if expired else 0


def removal(now: Callable[[], datetime] = clock.now) -> Sweep:
    """Return the sweep that removes bytes and rows of files that nobody needs: those that are hidden, once no open
    batch reads them, and those that were given up. One whose bytes stay keeps its row, and delays no other.
    """
    read = Batch.objects.unscoped().filter(input_file=OuterRef("id"), ended_at=None)

    def due() -> QuerySet[StoredFile]:
        over = Q(state=_State.DELETED) | Q(state=_State.PENDING, created_at__lt=now() - CUT_OFF)
        return StoredFile.objects.unscoped().filter(~Exists(read), over)

    return Sweep(due, _remove_file)


def _remove_file(identifier: UUID) -> None:
    """Remove the bytes and the row of a file that isn't shown; one that is shown by now stays."""
    files = StoredFile.objects.unscoped().filter(id=identifier)
    # Whoever stores it late finds it given up; then the bytes go, and last the row by which they are found.
    files.filter(state=_State.PENDING).update(state=_State.DELETED)
    given_up = files.filter(state=_State.DELETED)
    file = given_up.first()
    if file is not None:
        storage.remove(file)
        given_up.delete()
