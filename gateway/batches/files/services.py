"""Tenants' files: stored, deleted, expired. Bytes are stored before a file is shown and removed after it was hidden.

So whatever dies in between leaves a row that nobody sees, by which the sweep finds the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from base import clock, storage
from billing.services.sweeps import Sweep
from gateway.batches.files.models import StoredFile
from gateway.batches.files.selectors import taken
from gateway.batches.models import Batch
from gateway.errors.refusal import Refusal
from tenancy.models import Tenant

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
    """Hide at most `limit` files that have expired by `now`; return how many."""
    files = StoredFile.objects.unscoped()
    expired = list(files.filter(state=_State.READY, expires_at__lte=now).values_list("id", flat=True)[:limit])
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
