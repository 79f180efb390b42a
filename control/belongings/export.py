"""An export: everything of a tenant or person as one ZIP archive, made piece by piece, so that its size doesn't matter.

One file of JSON lines for each kind of rows, the bytes of files and adapters, and last ``manifest.json``, which names
each member with its rows, bytes and checksum. Rows that change meanwhile may be of before or after.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import zipfile
from collections.abc import Generator, Iterator, Sequence
from typing import IO, Any, cast

import msgspec
from django.db.models import QuerySet

from base import clock, storage
from base.database.connections import without_limits
from control.belongings.kinds import OF_PERSON, OF_TENANT, Kind, in_chunks
from gateway.batches.files import StoredFile
from routing.models import Adapter
from tenancy.audit.trail import record
from tenancy.models import Tenant, User

FORMAT = 1
MANIFEST = "manifest.json"
_READ_AT_ONCE = 1 << 20
_LEVEL = 3  # of zlib
_encoder = msgspec.json.Encoder()


class Member(msgspec.Struct):
    """One file of an export, uncompressed; only rows are counted."""

    bytes: int = 0
    sha256: str = ""
    rows: int | msgspec.UnsetType = msgspec.UNSET


class Manifest(msgspec.Struct, kw_only=True):
    """The contents of an export. `missing` are files and adapters whose bytes the storage has lost."""

    format: int = FORMAT
    sluice: str
    of: dict[str, str]
    began_at: str
    ended_at: str = ""
    members: dict[str, Member] = {}
    missing: list[str] = []


def of_tenant(tenant: Tenant) -> Generator[bytes]:
    """Return the pieces of a tenant's export, which stands in the audit trail from now on."""
    record("tenant.exported", tenant, tenant=tenant.pk)
    files, adapters = (next(kind for kind in OF_TENANT if kind.name == name) for name in ("files", "adapters"))

    def kept() -> Iterator[tuple[str, StoredFile | Adapter]]:
        yield from ((f"files/{row.pk}", row) for some in in_chunks(files.rows(tenant)) for row in some)
        yield from (
            (f"adapters/{row.pk}.safetensors", row) for some in in_chunks(adapters.rows(tenant)) for row in some
        )

    return _archive({"tenant": tenant.slug, "id": str(tenant.pk)}, tenant, OF_TENANT, kept())


def of_person(user: User) -> Generator[bytes]:
    """Return the pieces of a person's export, which stands in the audit trail from now on.

    It is for a command: no index leads to a person's usage, so it has no time limit.
    """
    record("user.exported", user)

    def pieces() -> Generator[bytes]:
        with without_limits():
            yield from _archive({"person": user.email, "id": str(user.pk)}, user, OF_PERSON, iter(()))

    return pieces()


def _archive(
    of: dict[str, str], owner: Any, kinds: Sequence[Kind], stored: Iterator[tuple[str, StoredFile | Adapter]]
) -> Generator[bytes]:
    pipe = _Pipe()
    manifest = Manifest(sluice=_version(), of=of, began_at=clock.now().isoformat())
    with zipfile.ZipFile(cast("IO[bytes]", pipe), "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for kind in kinds:
            name = f"{kind.name}.jsonl"
            told = manifest.members[name] = Member()
            with archive.open(name, "w", force_zip64=True) as file:
                for some in _lines(kind, owner, told):
                    file.write(some)
                    yield from pipe.taken()
        for name, row in stored:
            try:
                opened = storage.read(row)
            except FileNotFoundError:
                manifest.missing.append(name)
                continue
            manifest.members[name] = Member()
            with opened, archive.open(name, "w", force_zip64=True) as file:
                for piece in _hashed(opened, manifest.members[name]):
                    file.write(piece)
                    yield from pipe.taken()
        manifest.ended_at = clock.now().isoformat()
        archive.writestr(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
    yield from pipe.taken()


def _lines(kind: Kind, owner: Any, told: Member) -> Iterator[bytes]:
    """Yield the rows as JSON lines, some at a time, and count them."""
    hashed, fields, count = hashlib.sha256(), kind.fields(), 0
    for values in _chunks(kind, owner, fields):
        for row in values:
            row.update({name: decode(row[name]) for name, decode in kind.decoded.items()})
        data = _encoder.encode_lines(values)
        hashed.update(data)
        told.bytes += len(data)
        count += len(values)
        yield data
    told.rows, told.sha256 = count, hashed.hexdigest()


def _chunks(kind: Kind, owner: Any, fields: list[str]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows in their order: each chunk is a query of its own, which holds nothing up, and reads no further."""
    for rows in kind.parts(owner) if kind.parts else (kind.rows(owner),):
        ordered = rows.order_by(*kind.order).values(*dict.fromkeys([*fields, *kind.order]))
        values = list(ordered[: kind.at_once])
        while values:
            yield values
            values = next(filter(None, _after(ordered, kind, values[-1])), [])


def _after(ordered: QuerySet[Any, dict[str, Any]], kind: Kind, last: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows that follow `last` with the same values in all columns of the order but one, but two, and so on:
    each time it is one range of the index.
    """
    for depth, name in reversed(list(enumerate(kind.order))):
        same = {one: last[one] for one in kind.order[:depth]}
        yield list(ordered.filter(**same, **{f"{name}__gt": last[name]})[: kind.at_once])


def _hashed(file: IO[bytes], told: Member) -> Iterator[bytes]:
    hashed = hashlib.sha256()
    while piece := file.read(_READ_AT_ONCE):
        hashed.update(piece)
        told.bytes += len(piece)
        yield piece
    told.sha256 = hashed.hexdigest()


class _Pipe:
    """The file that an archive is written to: it can't seek, and its content is taken out piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing waits here."""

    def taken(self) -> Iterator[bytes]:
        """Yield the bytes written since the last call, if there are any."""
        if data := b"".join(self._pieces):
            self._pieces.clear()
            yield data


def _version() -> str:
    try:
        return importlib.metadata.version("sluice")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
