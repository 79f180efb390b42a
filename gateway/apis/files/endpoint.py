"""``/v1/files``: uploading, listing, reading and deleting the files of the key's project."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import BinaryIO
from urllib.parse import quote
from uuid import UUID

from base import storage
from base.http import Send, header_of, raw_headers
from gateway.apis.files.uploads import upload
from gateway.apis.files.wire import (
    PREFIX,
    FileDeleted,
    FileForm,
    FileList,
    FileObject,
    FileQuery,
    file_list,
    file_object,
)
from gateway.batches import files
from gateway.batches.files import StoredFile
from gateway.errors.refusal import Refusal
from gateway.http.endpoint import Call, endpoint
from gateway.http.request import id_in
from gateway.wire.decode import invalid

READ_AT_ONCE = 256 * 1024
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@endpoint("POST", "/v1/files", scope="files.write", summary="Upload a file", form=FileForm, gives=FileObject)
async def files_create(call: Call[None]) -> None:
    """Stores a file for a batch: a request in each line."""
    await upload(call.scope, call.receive, call.send, call.principal)


@endpoint("GET", "/v1/files", scope="files.read", summary="List files", takes=FileQuery, gives=FileList)
async def files_list(call: Call[FileQuery]) -> FileList:
    """The files of the key's project, those that batches wrote included."""
    query, principal = call.request, call.principal
    found = await call.in_database(
        partial(
            files.files_of,
            principal.tenant,
            principal.project,
            purpose=query.purpose,
            after=_id_of(query.after, "after") if query.after is not None else None,
            limit=query.limit + 1,
            is_rising=query.order == "asc",
        )
    )
    return file_list(found, query.limit)


@endpoint("GET", "/v1/files/{id}", scope="files.read", summary="Show a file", gives=FileObject)
async def files_show(call: Call[None]) -> FileObject:
    """One file."""
    return file_object(await _found(call))


@endpoint("DELETE", "/v1/files/{id}", scope="files.write", summary="Delete a file", gives=FileDeleted)
async def files_delete(call: Call[None]) -> FileDeleted:
    """Hides a file at once; its bytes go when no open batch reads them."""
    found, principal = await _found(call), call.principal
    if not await call.in_database(partial(files.delete_file, principal.tenant, principal.project, found.id)):
        raise _unknown(call.named)
    return FileDeleted(id=file_object(found).id)


@endpoint("GET", "/v1/files/{id}/content", scope="files.read", summary="Download a file")
async def files_content(call: Call[None]) -> None:
    """The file's bytes, or those that the header `range` asks for."""
    found = await _found(call)
    begin, end = _range_of(header_of(call.scope, b"range"), found.bytes)
    try:
        opened = await asyncio.to_thread(storage.read, found)
    except OSError as error:
        text = "The file's content isn't there any more: its operator may know why."
        raise Refusal(404, "file_content_missing", text) from error
    try:
        await _send_bytes(call.send, found, opened, begin, end)
    finally:
        await asyncio.to_thread(opened.close)


async def _found(call: Call[None]) -> StoredFile:
    """Return the file that the path names."""
    identifier, found = id_in(call.named, PREFIX), None
    if identifier is not None:
        read = partial(files.file_of, call.principal.tenant, call.principal.project, identifier)
        found = await call.in_database(read)
    if found is None:
        raise _unknown(call.named)
    return found


def _unknown(name: str) -> Refusal:
    return Refusal(404, "file_not_found", f"No file '{name[:100]}' of this project is known.", param="file_id")


def _id_of(name: str, param: str) -> UUID:
    identifier = id_in(name, PREFIX)
    if identifier is None:
        raise invalid(param, f"'{param}' has to be the id of a file.")
    return identifier


def _range_of(header: str | None, size: int) -> tuple[int, int]:
    """Return the first byte asked for and the one behind the last; the whole for what isn't one range of bytes."""
    match = _RANGE.fullmatch(header or "")
    if match is None or match[0] == "bytes=-":
        return 0, size
    if not match[1]:
        begin, end = max(size - int(match[2]), 0), size
    else:
        begin, end = int(match[1]), min(int(match[2]) + 1 if match[2] else size, size)
    if begin >= end:
        text = f"The file has {size} bytes."
        raise Refusal(416, "range_not_satisfiable", text, headers={"content-range": f"bytes */{size}"})
    return begin, end


async def _send_bytes(send: Send, found: StoredFile, opened: BinaryIO, begin: int, end: int) -> None:
    headers = {
        "content-type": "application/octet-stream",
        "content-length": str(end - begin),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(found.filename, safe='')}",
        "x-content-type-options": "nosniff",
        "accept-ranges": "bytes",
    }
    is_part = (begin, end) != (0, found.bytes)
    if is_part:
        headers["content-range"] = f"bytes {begin}-{end - 1}/{found.bytes}"
    data = await asyncio.to_thread(_read, opened, begin, min(READ_AT_ONCE, end - begin))
    await send({"type": "http.response.start", "status": 206 if is_part else 200, "headers": raw_headers(headers)})
    while data and begin + len(data) < end:
        begin += len(data)
        await send({"type": "http.response.body", "body": data, "more_body": True})
        data = await asyncio.to_thread(_read, opened, begin, min(READ_AT_ONCE, end - begin))
    if begin + len(data) < end:
        raise OSError("the storage has less of the file than its row says")  # cuts the connection
    await send({"type": "http.response.body", "body": data})


def _read(opened: BinaryIO, begin: int, size: int) -> bytes:
    opened.seek(begin)
    return opened.read(size)
