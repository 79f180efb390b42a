"""A body in the format multipart/form-data, read as it comes: short fields into memory, one file into a draft."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.errors.refusal import Refusal

MOST_FIELD_BYTES = 4096
MOST_PARTS = 64
MOST_BOUNDARIES = 4 * MOST_PARTS  # those that only begin like one included
MOST_PADDING = 256  # spaces behind a boundary
MOST_NAME = 255
FILE = "file"


class Form:
    """The fields of a form as text, and its one file in a draft, of `size` bytes; a context that removes the draft.

    `write` takes the body's pieces in their order, `close` its end. Both raise a Refusal: 400 for what is no such form,
    413 for a file of more than `most` bytes.
    """

    def __init__(self, content_type: str, draft: Path, most: int) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not boundary:
            message = "Send the file as multipart/form-data, with a boundary."
            raise Refusal(415, "unsupported_content_type", message)
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.size = 0
        self._draft = draft
        self._most = most
        self._opened: IO[bytes] | None = None
        self._parts = 0
        self._boundaries = _Boundaries(b"\r\n--" + boundary)
        self._is_file = self._has_ended = False
        self._field = ""
        self._name = self._header = b""
        self._headers: dict[bytes, bytes] = {}
        self._value = bytearray()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._take_header_name,
                    "on_header_value": self._take_header_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._begin_content,
                    "on_part_data": self._take_content,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _malformed() from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            self._opened.close()
        self._draft.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Take the next piece of the body."""
        self._boundaries.look(data)
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _malformed() from error

    def close(self) -> None:
        """Note that the body is whole; the draft is on the disk then."""
        if not self._has_ended:
            raise _malformed()
        if self._opened is None:
            raise Refusal(400, "missing_required_parameter", "'file' is required.", param=FILE)
        self._opened.flush()
        os.fsync(self._opened.fileno())
        self._opened.close()

    # -- what the parser finds ----------------------------------------------------------------------------------------

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise Refusal(400, "invalid_form", f"The form has more than {MOST_PARTS} parts.")
        self._headers = {}
        self._value = bytearray()
        self._is_file = False

    def _take_header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _take_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _end_header(self) -> None:
        self._headers[self._name.lower()] = self._header
        self._name = self._header = b""

    def _begin_content(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b"").decode("latin-1"))
        name = _text(options.get(b"name", b""), "content-disposition")
        encoding = self._headers.get(b"content-transfer-encoding", b"binary").lower()
        if encoding not in {b"binary", b"8bit", b"7bit"} or b"content-encoding" in self._headers:
            raise Refusal(415, "unsupported_content_encoding", f"Send '{name[:100]}' without encoding or compression.")
        if name != FILE:
            if name in self.fields:
                raise _twice(name)
            self._field = name
            return
        if self._opened is not None:
            raise _twice(name)
        if b"filename" not in options:
            raise Refusal(400, "invalid_value", "'file' has to be a file, with a file's name.", param=FILE)
        self.filename = _text(options[b"filename"], "filename")[-MOST_NAME:] or "file"
        self._is_file = True
        self._opened = self._draft.open("xb")

    def _take_content(self, data: bytes, start: int, end: int) -> None:
        piece = data[start:end]
        if not self._is_file:
            self._value += piece
            if len(self._value) > MOST_FIELD_BYTES:
                message = f"'{self._field[:100]}' is longer than {MOST_FIELD_BYTES} bytes."
                raise Refusal(400, "invalid_value", message, param=self._field[:100])
            return
        self.size += len(piece)
        if self.size > self._most:
            raise too_large(self._most)
        assert self._opened is not None, "it was opened with the part"
        self._opened.write(piece)

    def _end_part(self) -> None:
        if not self._is_file:
            self.fields[self._field] = _text(bytes(self._value), self._field)

    def _end(self) -> None:
        self._has_ended = True


class _Boundaries:
    """Looks for what the parser takes byte by byte, in which time nothing else of the process goes on: very many
    boundaries, or lines that only begin like one, and long padding behind them.
    """

    def __init__(self, boundary: bytes) -> None:
        self._boundary = boundary
        self._seen = 0
        self._seam = b""  # the end of what came, where a boundary may begin whose padding isn't whole

    def look(self, data: bytes) -> None:
        """Look at the next piece of a body; raise a 400 Refusal for more than a form needs."""
        data = self._seam + data
        length = len(self._boundary)
        begins = max(len(data) - length - MOST_PADDING, 0)  # those before are looked at now
        at = data.find(self._boundary, 0, begins + length - 1)
        while at >= 0:
            self._seen += 1
            if self._seen > MOST_BOUNDARIES:
                text = "The form's boundary is in its content again and again: take another one."
                raise Refusal(400, "invalid_form", text)
            end = at + length
            if not data[end : end + MOST_PADDING + 1].strip(b" \t"):
                raise _malformed()
            at = data.find(self._boundary, end, begins + length - 1)
        self._seam = data[begins:]


def too_large(most: int) -> Refusal:
    """Return the 413 for a file of more than `most` bytes."""
    return Refusal(413, "file_too_large", f"The file is larger than {most:,} bytes.", headers={"connection": "close"})


def _text(value: bytes, param: str) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise Refusal(400, "invalid_value", f"'{param[:100]}' is not UTF-8.", param=param[:100]) from None
    if "\x00" in text:
        raise Refusal(400, "invalid_value", f"'{param[:100]}' has a NUL character.", param=param[:100])
    return text


def _twice(name: str) -> Refusal:
    return Refusal(400, "invalid_value", f"'{name[:100]}' is there twice.", param=name[:100])


def _malformed() -> Refusal:
    return Refusal(400, "invalid_form", "The body is no complete form in the format multipart/form-data.")
