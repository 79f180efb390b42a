"""Batches: made from an uploaded file, cancelled, and forgotten after their end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from base import clock
from gateway.batches.files import StoredFile
from gateway.batches.models import Batch, BatchLine
from gateway.errors.refusal import Refusal
from tenancy.models import Tenant
from tenancy.services.tenants import outlived


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


WINDOW = timedelta(hours=24)
_Status = Batch.Status


def new_batch(
    *,
    tenant: UUID,
    project: UUID,
    api_key: UUID,
    endpoint: str,
    input_file: UUID,
    metadata: Mapping[str, str] | None = None,
    output_seconds: int | None = None,
) -> Batch:
    """Return a batch of the project's file, for `add_batch` to store; its lines run under the key's rights."""
    now = clock.now()
    return Batch(
        tenant_id=tenant,
        project_id=project,
        api_key=api_key,
        endpoint=endpoint,
        input_file=input_file,
        metadata=None if metadata is None else dict(metadata),
        output_seconds=output_seconds,
        created_at=now,
        expires_at=now + WINDOW,
    )


@transaction.atomic
def add_batch(batch: Batch) -> None:
    """Store a new batch, whose file is still to be checked.

    Raise a Refusal: 404 without such a file, 429 where its tenant has as many open batches as it may. The tenant's row
    is locked, so that batches made at the same time can't exceed that, and the file's, so that it can't go meanwhile.
    """
    tenant = batch.tenant_id
    Tenant.objects.select_for_update(no_key=True).get(id=tenant)
    count = Batch.objects.of(Tenant(id=tenant)).filter(ended_at=None).count()
    if count >= settings.SLUICE_MOST_BATCHES:
        text = f"You have {count} open batches, the most that you may have: wait until one has ended."
        raise Refusal(429, "too_many_batches", text, headers={"retry-after": "60"}, should_retry=False)
    files = StoredFile.objects.of(Tenant(id=tenant)).filter(project=batch.project_id, state=StoredFile.State.READY)
    file = files.select_for_update(of=("self",)).filter(id=batch.input_file).first()
    if file is None:
        text = "'input_file_id' is no file of this project."
        raise Refusal(404, "file_not_found", text, param="input_file_id")
    if file.purpose != "batch":
        raise Refusal(400, "invalid_value", "The file wasn't uploaded for the purpose 'batch'.", param="input_file_id")
    batch.save(force_insert=True)


def cancel_batch(tenant: UUID, project: UUID, identifier: UUID) -> Batch | None:
    """Send no more lines of the project's batch, and return it; None where there is none.

    What is on its way is answered. Raise a 409 Refusal for one that has ended, or is about to.
    """
    mine = Batch.objects.of(Tenant(id=tenant)).filter(project=project, id=identifier)
    is_cancelled = mine.filter(status__in=(_Status.VALIDATING, _Status.IN_PROGRESS)).update(
        status=_Status.CANCELLING, cancelling_at=clock.now()
    )
    batch = mine.first()
    if batch is not None and not is_cancelled and batch.status not in {_Status.CANCELLING, _Status.CANCELLED}:
        raise Refusal(409, "batch_has_ended", f"The batch is {batch.status} already.", should_retry=False)
    return batch


def forget_batches(now: datetime, limit: int) -> int:
    """Delete at most `limit` lines of batches that have ended, and batches that ended `SLUICE_BATCH_DAYS` before `now`,
    or the fewer days of their tenant; return how many.
    """
    lines = BatchLine.objects.filter(batch__ended_at__isnull=False)
    doomed = list(lines.values_list("id", flat=True)[:limit])
    count: int = BatchLine.objects.filter(id__in=doomed).delete()[0] if doomed else 0
    over = Q(ended_at__lt=now - timedelta(days=settings.SLUICE_BATCH_DAYS)) | outlived("batch_days", "ended_at", now)
    old = Batch.objects.unscoped().filter(over)
    ids = list(old.values_list("id", flat=True)[:limit])
    return count + (Batch.objects.unscoped().filter(id__in=ids).delete()[0] if ids else 0)
