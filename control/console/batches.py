"""A tenant's batches as a page: how far each is, what it cost so far; its files and its end for who may see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_http_methods, require_safe

from base import storage
from control.console.tenancy import Place, tenant_page
from gateway.batches.files import StoredFile, files_with
from gateway.batches.models import Batch
from gateway.batches.services import batch_of_tenant, batches_of_tenant, cancel_batch
from gateway.errors.refusal import Refusal
from tenancy.models import APIKey

SHOWN = 50
READ_AT_ONCE = 256 * 1024
_Status = Batch.Status
_CANCELLABLE = {_Status.VALIDATING, _Status.IN_PROGRESS}
_BAD = {_Status.FAILED, _Status.EXPIRED}


@dataclass(frozen=True)
class BatchLine:
    """A batch as its row shows it; `files` are those that can be read, by id."""

    batch: Batch
    key_name: str
    files: Mapping[UUID, StoredFile]

    @property
    def answered(self) -> int:
        """The number of requests that have ended, of all."""
        return self.batch.completed + self.batch.failed

    @property
    def status(self) -> str:
        """Its status in words."""
        return self.batch.status.replace("_", " ")

    @property
    def tone(self) -> str:
        """The tone of the status."""
        if self.batch.status in _BAD:
            return "bad"
        return "active" if self.batch.status in {*Batch.OPEN, _Status.COMPLETED} else ""

    @property
    def may_be_cancelled(self) -> bool:
        """Whether there is anything left to cancel."""
        return self.batch.status in _CANCELLABLE

    @cached_property
    def downloads(self) -> list[tuple[str, StoredFile]]:
        """Its result files that are there, with their names."""
        named = (("Output", self.batch.output_file), ("Errors", self.batch.error_file))
        return [(name, self.files[file]) for name, file in named if file is not None and file in self.files]

    @property
    def has_lost_files(self) -> bool:
        """Whether it had results that have expired or were deleted."""
        written = [file for file in (self.batch.output_file, self.batch.error_file) if file is not None]
        return len(self.downloads) < len(written)


@require_safe
@tenant_page
def batches(request: HttpRequest, place: Place) -> HttpResponse:
    """Show a page of the tenant's batches, newest first; `before` is where the page before ended."""
    before = request.GET.get("before", "")
    found = batches_of_tenant(place.tenant.id, before=_uuid(before) if before else None, limit=SHOWN + 1)
    shown = found[:SHOWN]
    keys = APIKey.objects.of(place.tenant).filter(id__in={one.api_key for one in shown})
    names = dict(keys.values_list("id", "name"))
    results = {file for one in shown for file in (one.output_file, one.error_file) if file is not None}
    files = files_with(place.tenant.id, results)
    older = "?" + urlencode({**place.name, "before": str(shown[-1].id)}) if found[SHOWN:] else ""
    context = place.context(
        page="batches",
        lines=[BatchLine(one, names.get(one.api_key, ""), files) for one in shown],
        may_batches=place.access.may("batches"),
        is_first=not before,
        older=older,
        base_url=request.build_absolute_uri("/v1"),
    )
    return render(request, "console/batches.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_page
def cancel(request: HttpRequest, place: Place, pk: UUID) -> HttpResponse:
    """Ask whether to cancel the batch; then send no more of its requests."""
    batch = _own(place, pk)
    if request.method == "POST":
        try:
            cancel_batch(place.tenant.id, batch.project_id, batch.id)
        except Refusal as refusal:  # it ended while the question stood there
            messages.error(request, refusal.message)
        else:
            messages.success(request, "No more requests of the batch are sent. What is on its way is answered.")
        return redirect(reverse("console-batches") + place.query)
    line = BatchLine(batch, "", {})
    if not line.may_be_cancelled:
        raise Http404
    return render(request, "console/batch_cancel.html", place.context(page="batches", line=line))


@require_safe
@tenant_page
def download(request: HttpRequest, place: Place, pk: UUID, file_id: UUID) -> StreamingHttpResponse:
    """Send the output or error file of the batch."""
    batch = _own(place, pk)
    if file_id not in {batch.output_file, batch.error_file}:
        raise Http404
    file = files_with(place.tenant.id, {file_id}).get(file_id)
    if file is None or not storage.storage().exists(file.key):
        raise Http404
    response = StreamingHttpResponse(_pieces(file), content_type="application/jsonl")
    response.headers["Content-Disposition"] = content_disposition_header(True, file.filename)
    response.headers["Content-Length"] = str(file.bytes)
    return response


async def _pieces(file: StoredFile) -> AsyncIterator[bytes]:
    """Read a file piece by piece; of an iterator that isn't asynchronous Django would first read everything."""
    opened = await asyncio.to_thread(storage.read, file)
    try:
        while piece := await asyncio.to_thread(opened.read, READ_AT_ONCE):
            yield piece
    finally:
        await asyncio.to_thread(opened.close)


def _own(place: Place, pk: UUID) -> Batch:
    """Return the tenant's batch whose files the reader may see; 404 otherwise."""
    batch = batch_of_tenant(place.tenant.id, pk) if place.access.may("batches") else None
    if batch is None:
        raise Http404
    return batch


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Http404 from None
