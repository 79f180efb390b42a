"""From an input file to the lines of a batch: all of them are right, or the batch fails and says which aren't."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.db import transaction

from base import clock, storage
from gateway.batches.files import StoredFile
from gateway.batches.lines import MOST_LINES, ByLine, checked, lines_of
from gateway.batches.models import Batch, BatchLine
from gateway.batches.work import Work, remove_lines, work_on
from gateway.errors.refusal import Refusal

MOST_ERRORS = 100
MOST_READS = 4 * MOST_LINES  # lines of a file, empty ones included
WRITTEN_AT_ONCE = 250
RENEWED_EACH = 1 << 20  # bytes that were read, whatever is in them

logger = logging.getLogger("sluice.jobs")
_Status = Batch.Status


_turns: dict[UUID, int] = {}  # by tenant, when this process last read one of its files, as a number that rises


def take_in() -> bool:
    """Read the input of a batch that waits for it, the oldest of the tenant whose last turn is longest ago; return
    whether there was one.
    """
    waiting = Batch.objects.unscoped().filter(status=_Status.VALIDATING)
    tenants = dict.fromkeys(waiting.order_by("id").values_list("tenant_id", flat=True))
    for tenant in sorted(tenants, key=lambda one: _turns.get(one, 0)):
        with work_on(waiting.filter(tenant=tenant)) as work:
            if work is not None:
                _turns[tenant] = max(_turns.values(), default=0) + 1
                _take_in(work)
        if work is not None:
            return True
    return False


def _take_in(work: Work) -> None:
    batch = work.batch
    remove_lines(batch)  # of a process that was stopped
    reading = _Reading(batch)
    try:
        file = StoredFile.objects.unscoped().filter(id=batch.input_file).first()
        if file is None:
            raise FileNotFoundError
        with storage.read(file) as opened:
            for rows in _chunks(reading.rows(lines_of(_Input(opened, work)))):
                with transaction.atomic():
                    work.renew(_Status.VALIDATING)
                    BatchLine.objects.bulk_create(rows)
    except Refusal as refusal:
        reading.note(0, refusal)
    except OSError as error:
        logger.warning("the input of a batch can't be read", extra={"batch": str(batch), "error": str(error)})
        reading.note(0, Refusal(400, "input_file_missing", "The input file can't be read.", param="input_file_id"))
    if not reading.count and not reading.errors:
        reading.note(0, Refusal(400, "empty_file", "The input file has no request.", param="input_file_id"))
    now = clock.now()
    if reading.errors:
        work.mine(_Status.VALIDATING).update(status=_Status.FAILED, errors=reading.errors, failed_at=now, ended_at=now)
        remove_lines(batch)
    else:
        work.mine(_Status.VALIDATING).update(
            status=_Status.IN_PROGRESS, total=reading.count, model=reading.model, in_progress_at=now
        )


class _Input:
    """An input file, whose batch stays this process' as long as it is read.

    Reading raises LostError once the batch is another process' or isn't validated any more, and a Refusal for a file of
    too many lines.
    """

    def __init__(self, opened: ByLine, work: Work) -> None:
        self._opened = opened
        self._work = work
        self._reads = 0
        self._unrenewed = 0

    def readline(self, size: int) -> bytes:
        """Return the next line, or its first `size` bytes."""
        data = self._opened.readline(size)
        self._reads += bool(data)
        self._unrenewed += len(data)
        if self._reads > MOST_READS:
            text = f"The input file has more than {MOST_READS:,} lines, empty ones included."
            raise Refusal(400, "too_many_lines", text, param="input_file_id")
        if self._unrenewed >= RENEWED_EACH:
            self._unrenewed = 0
            self._work.renew(_Status.VALIDATING)
        return data


class _Reading:
    """The findings in a file: the number of requests, their model if all have the same, and errors."""

    def __init__(self, batch: Batch) -> None:
        self.count = 0
        self.errors: list[dict[str, Any]] = []
        self._batch = batch
        self._models: set[str] = set()
        self._seen: dict[str, int] = {}

    @property
    def model(self) -> str:
        return next(iter(self._models)) if len(self._models) == 1 else ""

    def note(self, number: int, refusal: Refusal) -> None:
        """Note what is wrong with a line, or (0) with the file."""
        told = {"code": refusal.code, "line": number or None, "message": refusal.message, "param": refusal.param}
        # What a client wrote is quoted in it, and PostgreSQL keeps no NUL.
        self.errors.append({k: v.replace("\0", "�") if isinstance(v, str) else v for k, v in told.items()})

    def rows(self, lines: Iterator[Any]) -> Iterator[BatchLine]:
        """Yield a row for each line until one is wrong; from then on only errors are looked for."""
        now = clock.now()
        for line in lines:
            try:
                request, model = checked(line, self._batch.endpoint)
                self._require_new(request.custom_id, line.number)
            except Refusal as refusal:
                self.note(line.number, refusal)
                if len(self.errors) >= MOST_ERRORS:
                    return
                continue
            self.count += 1
            if self.count > MOST_LINES:
                text = f"A batch has {MOST_LINES:,} requests at most."
                self.note(line.number, Refusal(400, "too_many_requests", text))
                return
            self._models.add(model)
            if not self.errors:
                yield BatchLine(
                    batch=self._batch,
                    number=line.number,
                    custom_id=request.custom_id,
                    offset=line.offset,
                    size=len(line.data),
                    due_at=now,
                )

    def _require_new(self, custom_id: str, number: int) -> None:
        if (first := self._seen.setdefault(custom_id, number)) != number:
            text = f"'custom_id' is that of line {first}: each request needs one of its own."
            raise Refusal(400, "duplicate_custom_id", text, param="custom_id")


def _chunks(rows: Iterator[BatchLine]) -> Iterator[list[BatchLine]]:
    chunk: list[BatchLine] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == WRITTEN_AT_ONCE:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
