"""A long body of an answer, made while it is sent: at most one at a time for each owner in this process."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from io import StringIO
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

from django.http import StreamingHttpResponse
from django.utils.http import content_disposition_header

from base.database.threads import DatabaseThreads
from control.belongings import export
from tenancy.models import Tenant

CONTENT_TYPE = "application/zip"
_turns: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()


def tenants_archive(tenant: Tenant) -> StreamingHttpResponse:
    """Return the answer with everything of `tenant`, which stands in the audit trail from now on."""
    response = StreamingHttpResponse(sent(tenant.pk, export.of_tenant(tenant)), content_type=CONTENT_TYPE)
    name = f"{tenant.slug}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip"
    response.headers["Content-Disposition"] = content_disposition_header(True, name)
    response.headers["Cache-Control"] = "no-store"
    return response


def csv_of(owner: UUID, name: str, chunks: Iterable[Iterable[Sequence[Any]]]) -> StreamingHttpResponse:
    """Return the answer with chunks of rows as CSV, called `name` and the day, each chunk made as it is sent. Texts of
    people are `figures.cell`s in it.
    """
    response = StreamingHttpResponse(sent(owner, _lines(chunks)), content_type="text/csv; charset=utf-8")
    filename = f"{name}-{datetime.now(UTC):%Y-%m-%d}.csv"
    response.headers["Content-Disposition"] = content_disposition_header(True, filename)
    response.headers["Cache-Control"] = "no-store"
    return response


def _lines(chunks: Iterable[Iterable[Sequence[Any]]]) -> Generator[bytes]:
    for rows in chunks:
        out = StringIO()
        csv.writer(out).writerows(rows)
        if text := out.getvalue():
            yield text.encode()


async def sent(owner: UUID, pieces: Generator[bytes]) -> AsyncIterator[bytes]:
    """Make the pieces on a thread of its own, no further ahead than the client reads; the owner's next body waits."""
    turn = _turns.setdefault(owner, asyncio.Lock())
    async with turn:
        threads = DatabaseThreads(1)
        try:
            while piece := await threads.run(partial(next, pieces, b"")):
                yield piece
        finally:
            await asyncio.to_thread(threads.close)
            pieces.close()
