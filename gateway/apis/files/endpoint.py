"""``/v1/files``: uploading, listing, reading and deleting the files of the key's project."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import BinaryIO
from urllib.parse import quote
from uuid import UUID

from base import storage
from base.http.asgi import Receive, Scope, Send, header_of, raw_headers, send_json
from gateway.apis.files.uploads import upload
from gateway.apis.files.wire import PREFIX, FileDeleted, FileQuery, file_list, file_object
from gateway.batches.files import selectors, services
from gateway.batches.files.models import StoredFile
from gateway.errors.refusal import Refusal
from gateway.http.access import principal_of
from gateway.http.query import id_in, query_of
from gateway.http.request import require_method, runtime_of
from gateway.runtime.principal import Principal
from gateway.wire.decode import invalid

READ_AT_ONCE = 256 * 1024
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


async def files(scope: Scope, receive: Receive, send: Send) -> None:
    """List the project's files, or upload one."""
    require_method(scope, "GET", "POST")
    principal = await principal_of(scope)
    if scope["method"] == "POST":
        await upload(scope, receive, send, principal)
        return
    query = query_of(scope, FileQuery)
    after = _id_of(query.after, "after") if query.after is not None else None
    found = await runtime_of(scope).threads.run(
        lambda: selectors.files_of(
            principal.tenant,
            principal.project,
            purpose=query.purpose,
            after=after,
            limit=query.limit + 1,
            is_rising=query.order == "asc",
        ),
        owner=principal.tenant,
    )
    await send_json(send, 200, file_list(found, query.limit))


async def file(scope: Scope, receive: Receive, send: Send) -> None:
    """Show or delete one file."""
    require_method(scope, "GET", "DELETE")
    principal = await principal_of(scope)
    found = await _found(scope, principal)
    if scope["method"] == "DELETE":
        delete = partial(services.delete_file, principal.tenant, principal.project, found.id)
        if not await runtime_of(scope).threads.run(delete, owner=principal.tenant):
            raise _unknown(scope)
        await send_json(send, 200, FileDeleted(id=file_object(found).id))
        return
    await send_json(send, 200, file_object(found))


async def file_content(scope: Scope, receive: Receive, send: Send) -> None:
    """Send a file's bytes, or the part of them that ``Range`` asks for."""
    require_method(scope, "GET")
    found = await _found(scope, await principal_of(scope))
    begin, end = _range_of(header_of(scope, b"range"), found.bytes)
    try:
        opened = await asyncio.to_thread(storage.read, found)
    except OSError as error:
        text = "The file's content isn't there any more: its operator may know why."
        raise Refusal(404, "file_content_missing", text) from error
    try:
        await _send_bytes(send, found, opened, begin, end)
    finally:
        await asyncio.to_thread(opened.close)


async def _found(scope: Scope, principal: Principal) -> StoredFile:
    """Return the file that the path names."""
    identifier = id_in(scope["url_route"]["kwargs"]["file_id"], PREFIX)
    found = None
    if identifier is not None:
        read = partial(selectors.file_of, principal.tenant, principal.project, identifier)
        found = await runtime_of(scope).threads.run(read, owner=principal.tenant)
    if found is None:
        raise _unknown(scope)
    return found


def _unknown(scope: Scope) -> Refusal:
    name = scope["url_route"]["kwargs"]["file_id"]
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
