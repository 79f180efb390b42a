"""Files: the object that clients see, lists of them, and what a query may ask of a list."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.batches.files import StoredFile

PREFIX = "file-"
SHORTEST_SECONDS, LONGEST_SECONDS = 3600, 2_592_000

Identifier = Annotated[str, Meta(max_length=100)]
ExpirySeconds = Annotated[int, Meta(ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)]


class FileObject(msgspec.Struct, kw_only=True):
    """One file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileList(msgspec.Struct, kw_only=True):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(msgspec.Struct, kw_only=True):
    """A file that was deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class FileQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``GET /v1/files``."""

    after: Identifier | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"
    purpose: Annotated[str, Meta(max_length=40)] | None = None


class FileForm(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/files``: the fields beside `file`."""

    purpose: Literal["batch", "adapter"]
    expires_after_anchor: Literal["created_at"] | None = msgspec.field(default=None, name="expires_after[anchor]")
    expires_after_seconds: ExpirySeconds | None = msgspec.field(default=None, name="expires_after[seconds]")


def file_object(file: StoredFile) -> FileObject:
    """Return the file as clients see it."""
    return FileObject(
        id=name_of_file(file.id.hex),
        bytes=file.bytes,
        created_at=int(file.created_at.timestamp()),
        expires_at=int(file.expires_at.timestamp()),
        filename=file.filename,
        purpose=file.purpose,
    )


def file_list(files: list[StoredFile], limit: int) -> FileList:
    """Return the page of at most `limit` of `files`, which has one more where more follow."""
    data = [file_object(file) for file in files[:limit]]
    return FileList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=len(files) > limit,
    )


def name_of_file(identifier: str) -> str:
    """Return the name of the file whose id is `identifier`, in hex."""
    return f"{PREFIX}{identifier}"
