"""The end of a batch: lines that will not run any more, and its files, in the order of the input."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q

from base import clock, storage
from base.ids import uuid7
from gateway.batches.files import StoredFile, begin_file, finish_file
from gateway.batches.models import Batch, BatchLine
from gateway.batches.work import LostError, Work, remove_lines, work_on

READ_AT_ONCE = 250
RENEW_SECONDS = 10.0
PURPOSE = "batch_output"
_Status, _State = Batch.Status, BatchLine.State


class LineError(msgspec.Struct):
    """Why a line has no response."""

    code: str
    message: str


class LineResponse(msgspec.Struct):
    """The answer to a line."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineResult(msgspec.Struct):
    """A line of an output or error file."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineError | None = None


def result_of(line: BatchLine, response: LineResponse | None, error: LineError | None = None) -> str:
    """Return the line of the output or error file."""
    result = LineResult(f"batch_req_{line.id.hex}", line.custom_id, response, error)
    return msgspec.json.encode(result).decode()


def finish() -> bool:
    """End what is due: note batches whose window is over or whose lines have all ended, and write the files of one;
    return whether there was something to do.
    """
    if not Batch.objects.unscoped().filter(ended_at=None).exists():  # as nearly always: looked at each second
        return False
    now = clock.now()
    expired = Batch.objects.unscoped().filter(status=_Status.IN_PROGRESS, expired_at=None, expires_at__lte=now)
    changed = expired.update(expired_at=now)
    never = Batch.objects.unscoped().filter(status=_Status.VALIDATING, expires_at__lte=now)
    changed += never.update(status=_Status.EXPIRED, expired_at=now, ended_at=now)
    _give_up_waiting()
    unended = BatchLine.objects.filter(batch=OuterRef("id"), state__in=(_State.WAITING, _State.RUNNING))
    done = Batch.objects.unscoped().filter(~Exists(unended))
    changed += done.filter(status=_Status.IN_PROGRESS).update(status=_Status.FINALIZING, finalizing_at=now)
    with work_on(done.filter(status__in=(_Status.FINALIZING, _Status.CANCELLING))) as work:
        if work is not None:
            _write_files(work)
    return bool(changed) or work is not None


def _give_up_waiting() -> None:
    """Let the waiting lines of batches that are cancelled, expired or full be without answer. One that was sent, and of
    whose answer nothing is known, isn't among them: it is asked for until that is. A batch that was cancelled while its
    input was read has no requests, however many of them were found.
    """
    is_over = Q(expired_at__isnull=False) | Q(answer_bytes__gte=settings.SLUICE_MAX_OUTPUT_BYTES)
    over = Q(status=_Status.CANCELLING) | Q(is_over, status=_Status.IN_PROGRESS)
    for batch in Batch.objects.unscoped().filter(over):
        if batch.in_progress_at is None:
            remove_lines(batch)  # to which none is added once its status has changed
            continue
        waiting = BatchLine.objects.filter(batch=batch, state=_State.WAITING)
        with transaction.atomic():
            given_up = waiting.update(state=_State.FAILED)
            Batch.objects.unscoped().filter(id=batch.id).update(failed=F("failed") + given_up)


def _write_files(work: Work) -> None:
    batch = work.batch
    with ExitStack() as drafts:
        paths = [drafts.enter_context(_draft()) for _ in range(2)]
        sizes = _write_lines(work, *paths)
        made: list[StoredFile | None] = []
        for path, name, size in zip(paths, ("output", "error"), sizes, strict=True):
            if not size:
                made.append(None)
                continue
            file = begin_file(
                tenant=batch.tenant_id,
                project=batch.project_id,
                purpose=PURPOSE,
                filename=f"batch_{batch.id.hex}_{name}.jsonl",
                size=size,
                seconds=batch.output_seconds,
                is_bounded=False,
            )
            _store(work, file, path)
            made.append(file)
    _end(work, *made)


def _store(work: Work, file: StoredFile, path: Path) -> None:
    """Store a file, however long that takes, while the batch stays this process'."""
    with ThreadPoolExecutor(1, "batch-file") as uploads:
        upload = uploads.submit(storage.put, file, path)
        while wait([upload], timeout=RENEW_SECONDS).not_done:
            work.renew()
        upload.result()


def _end(work: Work, output: StoredFile | None, error: StoredFile | None) -> None:
    """Show files and end of the batch in one transaction."""
    now = clock.now()
    ends = {"output_file": output and output.id, "error_file": error and error.id, "ended_at": now}
    with transaction.atomic():
        if work.batch.status == _Status.CANCELLING:
            ended = work.mine(_Status.CANCELLING).update(status=_Status.CANCELLED, cancelled_at=now, **ends)
        elif work.batch.expired_at is not None:
            ended = work.mine(_Status.FINALIZING).update(status=_Status.EXPIRED, **ends)
        else:
            ended = work.mine(_Status.FINALIZING).update(status=_Status.COMPLETED, completed_at=now, **ends)
        if not ended:
            raise LostError  # the files are swept, since nobody ever saw them
        for file in filter(None, (output, error)):
            if not finish_file(file):
                raise LostError


def _write_lines(work: Work, output: Path, error: Path) -> tuple[int, int]:
    """Write the results and return the sizes of both files."""
    sizes = [0, 0]
    with output.open("wb") as completed, error.open("wb") as failed:
        for line in _lines(work):
            is_failed = line.state == _State.FAILED
            text = (line.answer or _unanswered(work.batch, line)).encode() + b"\n"
            sizes[is_failed] += (failed if is_failed else completed).write(text)
    return sizes[0], sizes[1]


def _lines(work: Work) -> Iterator[BatchLine]:
    last = 0
    while True:
        lines = BatchLine.objects.filter(batch=work.batch, number__gt=last).order_by("number")
        some = list(lines.only("id", "number", "custom_id", "state", "answer")[:READ_AT_ONCE])
        if not some:
            return
        yield from some
        last = some[-1].number
        work.renew()


def _unanswered(batch: Batch, line: BatchLine) -> str:
    if batch.status == _Status.CANCELLING:
        error = LineError("batch_cancelled", "The batch was cancelled before the request ran.")
    elif batch.expired_at is not None:
        error = LineError("batch_expired", "The request didn't run before the batch's time was over.")
    else:
        most = settings.SLUICE_MAX_OUTPUT_BYTES
        error = LineError("output_too_large", f"The answers of this batch have {most:,} bytes already.")
    return result_of(line, None, error)


class _draft:  # noqa: N801 - reads as a verb
    """A new file among the drafts, removed afterwards where it wasn't stored."""

    def __enter__(self) -> Path:
        self._path = storage.drafts() / uuid7().hex
        return self._path

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)
