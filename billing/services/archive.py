"""A month that is over and sealed goes into files, and then out of the tables.

First all of it is written and read back against the seals; only then a row says that the month is in the archive. Rows
are removed a chunk at a time, each with what it adds up to in one transaction: whoever is killed goes on where that
ended. What was granted and corrected by people stays in the tables, as do records that were corrected after the month.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from base import clock
from base.heartbeat import touch_heartbeat
from base.ids import first_at
from billing import reconcile
from billing.models import (
    ArchivedFile,
    ArchivedMonth,
    LedgerSeal,
    LedgerTransfer,
    MissedPromise,
    OutboxEvent,
    Reconciliation,
    Rerating,
    UsageRecord,
    Wallet,
)
from billing.seals import archived, tree
from billing.seals.leaves import RECORD, Books, Leaf
from billing.seals.proofs import seal_told
from billing.seals.sealing import midnight
from billing.services.errors import CreditError
from billing.services.reconciliation import books_kept
from billing.services.reratings import CORRECTABLE
from billing.services.wallets import lock

REQUESTS = 500
"""Requests whose rows are removed in one transaction."""
_DAY = timedelta(days=1)
_encoder = msgspec.json.Encoder()

Told = Callable[[str], None]


class ArchiveError(CreditError):
    """The month can't go into the archive, or out of the tables, now; the message says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """A tenant's file as it was written."""

    tenant: UUID
    leaves: int
    size: int
    digest: str
    index_digest: str
    blocks: dict[int, list[int]]


def write(month: date, told: Told = lambda _: None) -> ArchivedMonth:
    """Write a month's files, verify them, and return their row; the present one where that is done.

    Raises ArchiveError for a month that isn't over and sealed, or whose rows aren't those that were sealed.
    """
    present = ArchivedMonth.objects.filter(month=month).first()
    if present is not None:
        return present
    ends_at = midnight(_after(month))
    _check_sealed(month, ends_at)
    folder = archived.folder_of(month)
    draft = folder.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)  # of one that was killed
    draft.mkdir(parents=True, mode=0o700)
    tenants = LedgerSeal.objects.filter(day__gte=month, day__lt=_after(month)).order_by("tenant")
    parts = []
    for tenant in tenants.values_list("tenant", flat=True).distinct():
        parts.append(_write_part(tenant, month, draft))
        told(f"{tenant}: {parts[-1].leaves:,} rows, {parts[-1].size:,} bytes")
    manifest = _encoder.encode(
        {
            "format": 1,
            "month": f"{month:%Y-%m}",
            "files": [
                {"tenant": one.tenant, "leaves": one.leaves, "sha256": one.digest, "index_sha256": one.index_digest}
                for one in parts
            ],
        }
    )
    _write_file(draft / archived.MANIFEST, [manifest])
    shutil.rmtree(folder, ignore_errors=True)  # of one that was killed before its row was there
    draft.rename(folder)
    _sync(folder.parent)
    with transaction.atomic():
        made = ArchivedMonth.objects.create(month=month, ends_at=ends_at, manifest=hashlib.sha256(manifest).hexdigest())
        ArchivedFile.objects.bulk_create(
            [
                ArchivedFile(
                    month=made, tenant=one.tenant, leaves=one.leaves, size=one.size, digest=one.digest,
                    index_digest=one.index_digest, blocks=one.blocks,
                )
                for one in parts
            ]
        )  # fmt: skip
    return made


def drop(month: ArchivedMonth, told: Told = lambda _: None) -> int:
    """Remove the rows of an archived month, and return how many requests' that were now. Raises ArchiveError where a
    file isn't what was written, an earlier month isn't dropped yet, or the books weren't found right since.
    """
    if month.dropped_at is not None:
        return 0
    for fault in archived.faults([month], missing=True):
        raise ArchiveError(fault)
    until = archived.edge()
    earlier = LedgerSeal.objects.filter(day__lt=month.month).order_by("day")
    if until is not None:
        earlier = earlier.filter(day__gte=until.date())
    if (first := earlier.values_list("day", flat=True).first()) is not None:
        raise ArchiveError(f"month: months are dropped in turn, and {first:%Y-%m} comes before {month}")
    dropped = 0
    with books_kept():
        _check_books(month)
        ArchivedMonth.objects.filter(pk=month.pk, dropping_at=None).update(dropping_at=clock.now())
        # of earlier months too: what was corrected after its own may go now
        tenants = ArchivedFile.objects.filter(month__month__lte=month.month).order_by("tenant")
        for tenant in tenants.values_list("tenant", flat=True).distinct():
            while removed := _drop_some(month, tenant):
                dropped += removed
                touch_heartbeat()
                told(f"{dropped:,} requests dropped")
        ArchivedMonth.objects.filter(pk=month.pk).update(dropped_at=clock.now())
    return dropped


def _after(month: date) -> date:
    return (month + 31 * _DAY).replace(day=1)


def _check_sealed(month: date, ends_at: datetime) -> None:
    if month.day != 1 or ends_at > clock.now():
        raise ArchiveError(f"month: {month:%Y-%m} isn't over")
    open_ = Wallet.objects.filter(Q(sealed_until=None) | Q(sealed_until__lt=ends_at)).order_by("sealed_until")
    if (wallet := open_.first()) is not None:
        raise ArchiveError(f"month: days of tenant {wallet.tenant_id} aren't sealed yet; the periodic work seals them")


def _check_books(month: ArchivedMonth) -> None:
    if clock.now() < (until := month.ends_at + CORRECTABLE):
        raise ArchiveError(f"month: estimates of it may be corrected until {until:%Y-%m-%d %H:%M} UTC")
    if Rerating.objects.filter(ended_at=None, since__lt=month.ends_at).exists():
        raise ArchiveError("month: a what-if or re-rating of its requests goes on: let it end, or stop it")
    latest = Reconciliation.objects.filter(finished_at__isnull=False).order_by("-id")
    newest = [run.found for run in (latest.first(), latest.filter(is_whole=True).first()) if run is not None]
    if any(newest):
        raise ArchiveError("month: the last check of the books found faults: mend them, and check again")
    reach = reconcile.last_reach()
    is_covered = (
        reach is not None
        and reach.record >= first_at(month.ends_at)
        and not LedgerTransfer.objects.filter(id__gt=reach.transfer, booked_at__lt=month.ends_at).exists()
    )
    if OutboxEvent.objects.filter(created_at__lt=month.ends_at).exists():
        raise ArchiveError("month: usage of it isn't in the sums yet: `manage.py jobs --once` adds it")
    if MissedPromise.objects.filter(decided_at=None, day__lt=month.ends_at.date()).exists():
        raise ArchiveError("month: promises missed in it aren't credited yet: `manage.py jobs --once` credits them")
    if not is_covered:
        raise ArchiveError("month: its books were not found right yet: `manage.py reconcile` must find nothing first")


def _write_part(tenant: UUID, month: date, folder: Path) -> Part:
    """Write a tenant's file and its index, and read them back against the seals."""
    path = folder / f"{tenant}.jsonl.gz"
    books = Books(tenant)
    seals = LedgerSeal.objects.filter(tenant=tenant, day__gte=month, day__lt=_after(month)).order_by("number")
    blocks: dict[int, list[int]] = defaultdict(list)
    found: set[bytes] = set()
    leaves = 0

    def parts() -> Iterator[bytes]:
        nonlocal leaves
        offset = 0
        for seal in seals.iterator(chunk_size=4):
            for some in _blocks(books, seal):
                part = gzip.compress(b"".join(_lines(some)), mtime=0)
                blocks[seal.number].append(offset)
                requests = {_request_of(leaf) for leaf in some}
                found.update(UUID(one).bytes + offset.to_bytes(8) for one in requests if one)
                leaves += len(some)
                offset += len(part)
                yield part
            part = gzip.compress(_line({"type": "seal", **seal_told(seal)}), mtime=0)
            blocks.setdefault(seal.number, [offset])
            offset += len(part)
            yield part
            touch_heartbeat()

    _write_file(path, parts())
    index = folder / f"{tenant}.index"
    _write_file(index, sorted(found) or [bytes(archived.ENTRY)])
    _verify(books, path, seals)
    return Part(tenant, leaves, path.stat().st_size, archived.digest_of(path), archived.digest_of(index), dict(blocks))


def _blocks(books: Books, seal: LedgerSeal) -> Iterator[list[Leaf]]:
    some: list[Leaf] = []
    for leaf in books.leaves(midnight(seal.day), midnight(seal.day + _DAY)):
        some.append(leaf)
        if len(some) == tree.BLOCK:
            yield some
            some = []
    if some:
        yield some


def _request_of(leaf: Leaf) -> str:
    return str(leaf.fields[3] if leaf.kind == RECORD else leaf.fields[8])


def _lines(some: list[Leaf]) -> Iterator[bytes]:
    ids = [leaf.fields[0] for leaf in some if leaf.kind == RECORD]
    others = {row.pop("id"): row for row in UsageRecord.objects.filter(pk__in=ids).values("id", *archived.OTHERS)}
    for leaf in some:
        row = {**leaf.told(), "leaf": leaf.hash.hex()}
        if leaf.kind == RECORD:
            row["row"] = others[leaf.fields[0]]
        yield _line(row)


def _line(row: dict[str, Any]) -> bytes:
    return _encoder.encode(row) + b"\n"


def _write_file(path: Path, pieces: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        path.chmod(0o600)
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _verify(books: Books, path: Path, seals: QuerySet[LedgerSeal]) -> None:
    """Compute the root of each day from the file; raise ArchiveError where it isn't the one that was sealed."""
    expected = {number: (root, size) for number, root, size in seals.values_list("number", "root", "size")}
    hashes: list[bytes] = []
    before: Leaf | None = None
    for line in archived.lines_of(path):
        if line["type"] != "seal":
            before = books.leaf_of(line, before)
            hashes.append(before.hash)
            continue
        made = tree.root(tree.blocks(hashes)).hex(), len(hashes)
        if expected.pop(line["number"]) != made:
            raise ArchiveError(f"{line['day']} of tenant {books.tenant}: its rows are not those that were sealed")
        hashes = []
    if expected or hashes:
        raise ArchiveError(f"{path} is cut short")


@transaction.atomic
def _drop_some(month: ArchivedMonth, tenant: UUID) -> int:
    """Remove the rows of some requests that have none booked after the month, and return of how many."""
    for wallet in Wallet.objects.filter(tenant=tenant).order_by("pk").values_list("pk", flat=True):
        lock(wallet)  # under which corrections are booked
    later = UsageRecord.objects.filter(day=OuterRef("day"), request=OuterRef("request"), settled_at__gte=month.ends_at)
    theirs = UsageRecord.objects.filter(tenant=tenant, settled_at__lt=month.ends_at, day__lt=month.ends_at.date())
    rows = theirs.filter(~Exists(later), revision=0)
    chosen = list(rows.order_by("settled_at").values_list("day", "request")[:REQUESTS])
    if not chosen:
        return 0
    ids = [request for _, request in chosen]
    days = [day for day, _ in chosen]
    named = ", ".join(reconcile.literal(connection, one) for one in ids)
    records = f"day >= '{min(days)}' AND day <= '{max(days)}' AND request IN ({named})"
    reconcile.add_up(connection, records, f"request IN ({named})", archived=True)
    mine = ArchivedMonth.objects.filter(pk=month.pk)
    mine.update(may_drop=True)
    transfers = LedgerTransfer.objects.filter(request__in=ids)
    transfers._raw_delete(transfers.db)  # noqa: SLF001 - documented; `delete` reads the rows first
    doomed = UsageRecord.objects.filter(day__gte=min(days), day__lte=max(days), request__in=ids)
    doomed._raw_delete(doomed.db)  # noqa: SLF001 - likewise
    mine.update(may_drop=False)
    return len(chosen)
