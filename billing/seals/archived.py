"""The rows of months that are in the archive, read from its files as if they were still in the tables.

A month's folder has two files for each tenant. One is JSON lines under gzip: the leaves in their order, as a statement
has them, with what else a record had, and each day's seal behind its leaves; each 256 leaves are a part that can be
read alone. The other finds requests in it: 24 bytes for each, its id and where the part begins, in the order of ids.
"""

from __future__ import annotations

import gzip
import hashlib
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.db.models import Max, QuerySet

from base.heartbeat import touch_heartbeat
from base.ids import day_of
from billing.models import ArchivedFile, ArchivedMonth, LedgerSeal, UsageRecord
from billing.rating import CLASSES
from billing.seals import tree

FINAL = "request: it is of {month}, which is archived: its charge is final"
MANIFEST = "manifest.json"
ENTRY = 24
OTHERS = (
    *(
        "day",
        "budget",
        "windows",
        "user",
        "deployment",
        "endpoint",
        "task",
        "route",
        "card_version",
        "rerating",
        "held",
    ),
    *("finish", "ttft_ms", "duration_ms", "promise", "reserved_at"),
)
"""What a record has besides its leaf."""
_decode = msgspec.json.Decoder().decode
_IDS = {"user", "budget", "deployment", "card_version", "rerating"}


class ArchiveMissingError(Exception):
    """A file of the archive isn't where it belongs; the message names it."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is missing or can't be read: its month is in the archive; put the file back there (SLUICE_ARCHIVE)"
            " and let it belong to the user that the service runs as"
        )
        self.told = f"This is of a month that is archived, and its file {path.parent.name}/{path.name} isn't here now."


class ArchivedMeanwhileError(Exception):
    """Rows went into the archive while they were read: what was read may lack some."""

    def __init__(self) -> None:
        super().__init__("a month was archived meanwhile: ask again")


def edge() -> datetime | None:
    """Return up to when rows are in the archive and not in the tables; None where none are."""
    found: datetime | None = ArchivedMonth.objects.filter(dropping_at__isnull=False).aggregate(end=Max("ends_at"))[
        "end"
    ]
    return found


def is_archived(request: UUID) -> bool:
    """Return whether the request's month is in the archive."""
    until = edge()
    return until is not None and day_of(request) < until.astimezone(UTC).date()


def folder_of(month: date) -> Path:
    """Return the folder of a month's files."""
    return Path(settings.SLUICE_ARCHIVE) / f"{month:%Y-%m}"


def path_of(month: date, tenant: UUID, *, index: bool = False) -> Path:
    """Return the path of a tenant's file, or of what finds requests in it."""
    return folder_of(month) / f"{tenant}{'.index' if index else '.jsonl.gz'}"


def lines_of(path: Path, offset: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file from a part on; raise ArchiveMissingError."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise ArchiveMissingError(path) from error
    with file:
        file.seek(offset)
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield from map(_decode, unpacked)


def need(tenant: UUID, since: datetime, until: datetime) -> None:
    """Raise ArchiveMissingError where a file with the tenant's rows of the time isn't there."""
    for one in _files(tenant).filter(month__ends_at__gt=since, month__month__lte=until.astimezone(UTC).date()):
        path = path_of(one.month.month, tenant)
        if not os.access(path, os.R_OK):
            raise ArchiveMissingError(path)


def rows_between(tenant: UUID, since: datetime, until: datetime) -> Iterator[dict[str, Any]]:
    """Yield the tenant's rows of the archived months from the day of `since` on, up to some behind `until`."""
    last = (until - timedelta(microseconds=1)).astimezone(UTC).date()
    files = _files(tenant).filter(month__ends_at__gt=since, month__month__lte=last)
    for one in files.order_by("month__month"):
        seals = LedgerSeal.objects.filter(
            tenant=tenant, day__gte=since.astimezone(UTC).date(), number__in=[*one.blocks]
        )
        first = seals.order_by("number").values_list("number", flat=True).first()
        if first is not None:
            lines = lines_of(path_of(one.month.month, tenant), one.blocks[str(first)][0])
            yield from (line for line in lines if line["type"] != "seal")


def block_of(seal: LedgerSeal, block: int) -> list[dict[str, Any]] | None:
    """Return the rows of one block of a seal; None where they aren't in the archive."""
    month = seal.day.replace(day=1)
    file = _files(seal.tenant).filter(month__month=month).first()
    if file is None or str(seal.number) not in file.blocks:
        return None
    return list(_part(path_of(month, seal.tenant), file.blocks[str(seal.number)][block]))


def faults(months: Iterable[ArchivedMonth], *, missing: bool = False) -> Iterator[str]:
    """Yield what is wrong with the files of these months by their checksums, and with `missing` which aren't there."""
    for month in months:
        expected = [(folder_of(month.month) / MANIFEST, month.manifest)]
        for one in month.files.all():
            expected.append((path_of(month.month, one.tenant), one.digest))
            expected.append((path_of(month.month, one.tenant, index=True), one.index_digest))
        for path, digest in expected:
            touch_heartbeat()
            if path.exists():
                if digest_of(path) != digest:
                    yield f"{path} is not what was written: its SHA-256 is another"
            elif missing:
                yield str(ArchiveMissingError(path))


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(tenant: UUID) -> QuerySet[ArchivedFile]:
    return ArchivedFile.objects.filter(tenant=tenant, month__dropping_at__isnull=False).select_related("month")


def record_of(tenant: UUID, request: UUID) -> UsageRecord | None:
    """Return the last revision of a request's record from the archive; None where it isn't there."""
    if not is_archived(request):
        return None
    found: UsageRecord | None = None
    # From the month before on: it may be of that, since clocks differ.
    month = (day_of(request).replace(day=1) - timedelta(days=1)).replace(day=1)
    for one in _files(tenant).filter(month__month__gte=month).order_by("month__month"):
        offsets = _found(path_of(one.month.month, tenant, index=True), request)
        for offset in offsets[-1:]:  # revisions are in the order of their booking
            for row in _part(path_of(one.month.month, tenant), offset):
                if row["type"] == "record" and row["request"] == str(request):
                    found = _record(row)
    return found


def _part(path: Path, offset: int) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines_of(path, offset)):
        if number == tree.BLOCK or line["type"] == "seal":
            return
        yield line


def _found(path: Path, request: UUID) -> list[int]:
    """Return where the parts with rows of a request begin."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise ArchiveMissingError(path) from error
    with file, closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as entries:
        low, high = 0, len(entries) // ENTRY
        while low < high:
            middle = (low + high) // 2
            if entries[middle * ENTRY : middle * ENTRY + 16] < request.bytes:
                low = middle + 1
            else:
                high = middle
        offsets = []
        while entries[low * ENTRY : low * ENTRY + 16] == request.bytes:
            offsets.append(int.from_bytes(entries[low * ENTRY + 16 : (low + 1) * ENTRY]))
            low += 1
    return offsets


def _record(row: dict[str, Any]) -> UsageRecord:
    others: dict[str, Any] = {
        name: UUID(value) if name in _IDS and value else value for name, value in row["row"].items()
    }
    return UsageRecord(
        id=UUID(row["id"]),
        request=UUID(row["request"]),
        revision=row["revision"],
        tenant=UUID(row["tenant"]),
        project=UUID(row["project"]),
        api_key=UUID(row["api_key"]) if row["api_key"] else None,
        wallet=UUID(row["wallet"]),
        model=row.get("model", ""),
        end_user=row.get("end_user", ""),
        charge=row["charge"],
        refunded=row["refunded"],
        formula=row["formula"],
        multiplier_bp=row["multiplier_bp"],
        exact=bool(row["exact"]),
        waived=bool(row["waived"]),
        settled_at=datetime.fromisoformat(row["booked_at"]),
        **{f"{name}_tokens": row[name] for name in CLASSES},
        **others
        | {"day": date.fromisoformat(others["day"]), "reserved_at": datetime.fromisoformat(others["reserved_at"])},
    )
