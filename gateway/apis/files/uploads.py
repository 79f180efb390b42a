"""Uploads of ``/v1/files``: a form that is read as it comes, stored as a file, once under an idempotency key."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from uuid import UUID

import msgspec
from django.conf import settings

from base import storage
from base.database.threads import DatabaseThreads
from base.http import ClientLeftError, Receive, Scope, Send, header_of, send_json, watching
from base.ids import uuid7
from gateway.apis.files.multipart import Form, too_large
from gateway.apis.files.wire import FileForm, file_object
from gateway.batches import files
from gateway.batches.files import StoredFile
from gateway.concurrency import Cap
from gateway.durable import answers
from gateway.durable.answers import Claim
from gateway.durable.delivery import delivering
from gateway.durable.replays import Answer, DurableRequest
from gateway.errors.refusal import Refusal
from gateway.http.bounds import allow_body
from gateway.http.durable import check_key, digest_of, name_of, write_answer
from gateway.http.request import request_id_of, runtime_of
from gateway.runtime.principals import Principal
from gateway.wire.decode import decode, invalid

MOST_UPLOADS = 4
ROOM_FOR_FORM = 64 * 1024  # bytes of a form's boundaries, headers and fields
WRITTEN_AT_ONCE = 512 * 1024


def _too_many_uploads() -> Refusal:
    text = f"{MOST_UPLOADS} of your files are on their way already."
    return Refusal(429, "too_many_uploads", text, headers={"retry-after": "1", "connection": "close"})


# Files that are on their way, by tenant.
uploads: Cap[UUID] = Cap(MOST_UPLOADS, _too_many_uploads)


async def upload(scope: Scope, receive: Receive, send: Send, principal: Principal) -> None:
    """Store the file of a form and send what it is; under an idempotency key the same form gets the same file."""
    most = settings.SLUICE_MAX_FILE_BYTES
    allow_body(scope, most + ROOM_FOR_FORM, settings.SLUICE_FILE_SECONDS)
    announced = header_of(scope, b"content-length") or ""
    size = int(announced) if announced[:20].isdigit() and len(announced) < 20 else 0
    if size > most + ROOM_FOR_FORM:
        raise too_large(most)
    if (header_of(scope, b"content-encoding") or "identity").lower() != "identity":
        raise Refusal(415, "unsupported_content_encoding", "Send the body without compression.")
    threads = runtime_of(scope).threads
    claim = _claim_of(scope, principal)
    if claim is not None:
        await runtime_of(scope).replays.require_room(claim)
    # What can't be kept isn't received either; what came meanwhile counts when it is stored.
    await threads.run(partial(_require_room, claim, principal.tenant, size - ROOM_FOR_FORM), owner=principal.tenant)
    draft = storage.drafts() / uuid7().hex
    with uploads.share(principal.tenant) as take, Form(header_of(scope, b"content-type") or "", draft, most) as form:
        take(1)
        await _receive_form(receive, form)
        given = _fields_of(form)
        begin = partial(
            files.begin_file,
            tenant=principal.tenant,
            project=principal.project,
            purpose=given.purpose,
            filename=form.filename or "",
            size=form.size,
            seconds=given.expires_after_seconds,
        )
        store = partial(_store, threads, begin)
        if claim is None:
            await store(draft, send)
            return
        given_all = await asyncio.to_thread(_identity_of, form, draft)
        asked = msgspec.structs.replace(claim, digest=digest_of(scope, given_all))
        answer = await _stored_once(scope, asked, store, draft)
        async with watching(scope, receive) as client:
            await write_answer(answer, scope, principal, client, send)


def _claim_of(scope: Scope, principal: Principal) -> Claim | None:
    """Return the claim on the idempotency key that was sent, if any; its digest is still to come."""
    if (key := header_of(scope, b"idempotency-key")) is None:
        return None
    check_key(key)
    return Claim(principal.tenant, name_of(principal, key), b"")


def _require_room(claim: Claim | None, tenant: UUID, size: int) -> None:
    """Raise the 403 Refusal for a tenant that may not have another file of `size` bytes; the same form needs no room.

    The key is looked at last: who takes a file's room has taken its key before.
    """
    try:
        files.require_room(tenant, max(size, 0))
    except Refusal:
        if claim is None or not answers.is_known(claim):
            raise


async def _store(threads: DatabaseThreads, begin: Callable[[], StoredFile], draft: Path, send: Send) -> None:
    """Store the draft as a file and send what it is; a kept answer and its file are there together, or neither is."""
    stored = await threads.run(begin)
    # Where the storage is another machine this takes a while: no thread of the database's waits for that.
    await asyncio.to_thread(storage.put, stored, draft)

    def show() -> None:
        if not files.finish_file(stored):
            raise files.not_stored()

    try:
        if (delivery := delivering.get()) is not None:
            delivery.also.append(show)
        else:
            await threads.run(show)
        await send_json(send, 200, file_object(stored))
    except Refusal:
        await asyncio.to_thread(storage.remove, stored)
        raise


async def _stored_once(
    scope: Scope, asked: Claim, store: Callable[[Path, Send], Awaitable[None]], draft: Path
) -> Answer:
    """Store the draft under an idempotency key, unless the same form came under it before: return what is answered."""
    mine = draft.with_suffix(".kept")  # it may be needed after the connection, with which the draft goes
    await asyncio.to_thread(draft.rename, mine)

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await store(mine, send)
        finally:
            await asyncio.to_thread(mine.unlink, missing_ok=True)

    request = DurableRequest(asked, request_id_of(scope), endpoint, scope, b"", grace=None)
    try:
        answer = await runtime_of(scope).replays.answer(request)
    except Exception:
        await asyncio.to_thread(mine.unlink, missing_ok=True)
        raise
    if not answer.is_new:
        await asyncio.to_thread(mine.unlink, missing_ok=True)
    return answer


def _identity_of(form: Form, draft: Path) -> bytes:
    """Return what two forms have in common only if fields, file's name and content are the same."""
    with draft.open("rb") as opened:
        content = hashlib.file_digest(opened, "sha256").hexdigest()
    return msgspec.json.encode([sorted(form.fields.items()), form.filename, content])


async def _receive_form(receive: Receive, form: Form) -> None:
    """Pass the body on to `form`, whose writing to the disk no other request waits for."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        is_last = not message.get("more_body", False)
        if size >= WRITTEN_AT_ONCE or is_last:
            data, pieces, size = b"".join(pieces), [], 0
            await asyncio.to_thread(form.write, data)
        if is_last:
            await asyncio.to_thread(form.close)
            return


def _fields_of(form: Form) -> FileForm:
    given = decode(FileForm, msgspec.json.encode(form.fields), is_lax=True)
    if (given.expires_after_anchor is None) != (given.expires_after_seconds is None):
        raise invalid("expires_after", "'expires_after' needs both 'anchor' and 'seconds'.")
    return given
