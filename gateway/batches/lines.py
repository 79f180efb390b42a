"""The lines of an input file: read one by one, however long they are, and checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, BinaryIO, Literal, Protocol

import msgspec
from django.conf import settings
from msgspec import Meta

from gateway.errors.refusal import Refusal
from gateway.wire.decode import check_depth, decode, require_no_nul

MOST_LINES = 50_000
_SKIPPED_AT_ONCE = 1 << 20


class ChangedError(Exception):
    """The input file was changed after it was checked."""


class Line(msgspec.Struct, frozen=True):
    """Line `number` (from 1) of a file, at `offset`, without its end; None for one that is too long to be read."""

    number: int
    offset: int
    data: bytes | None


class RequestLine(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One request of a batch."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct, kw_only=True):
    """The fields of a request's body that are checked here; its endpoint checks the rest."""

    model: Annotated[str, Meta(min_length=1, max_length=200)]
    stream: Literal[False] | None = None
    background: Literal[False] | None = None


class ByLine(Protocol):
    """A file that is read line by line."""

    def readline(self, size: int, /) -> bytes:
        """Return the next line, or its first `size` bytes."""
        ...


def lines_of(opened: ByLine) -> Iterator[Line]:
    """Yield the lines that aren't empty, of which at most `SLUICE_MAX_BODY_BYTES` are in memory."""
    most = settings.SLUICE_MAX_BODY_BYTES
    number = offset = 0
    while data := opened.readline(most + 2):
        number += 1
        begin, offset = offset, offset + len(data)
        text = data.rstrip(b"\r\n")
        if len(text) <= most:
            if text.strip():
                yield Line(number, begin, text)
            continue
        while not data.endswith(b"\n") and (data := opened.readline(_SKIPPED_AT_ONCE)):
            offset += len(data)
        yield Line(number, begin, None)


def read_line(opened: BinaryIO, offset: int, size: int) -> RequestLine:
    """Return the request at `offset`, which was checked before; raise ChangedError where it isn't there any more."""
    opened.seek(offset)
    data = opened.read(size)
    try:
        return msgspec.json.decode(data, type=RequestLine)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ChangedError("the input file isn't what it was when it was checked") from error


def checked(line: Line, endpoint: str) -> tuple[RequestLine, str]:
    """Return a line's request and its model; raise a Refusal for what is no request to `endpoint`."""
    if line.data is None:
        most = settings.SLUICE_MAX_BODY_BYTES
        raise Refusal(400, "line_too_long", f"The line is longer than {most:,} bytes.")
    try:
        line.data.decode()
    except UnicodeDecodeError as error:
        raise Refusal(400, "invalid_json", f"The line is not UTF-8 from its byte {error.start} on.") from None
    request = decode(RequestLine, line.data)
    if request.url != endpoint:
        message = f"'url' has to be the batch's endpoint, {endpoint}."
        raise Refusal(400, "mismatched_endpoint", message, param="url")
    check_depth(bytes(request.body))
    body = decode(_Body, request.body, at="body")
    for name, text in (("custom_id", request.custom_id), ("body.model", body.model)):
        require_no_nul(name, text)
    return request, body.model
