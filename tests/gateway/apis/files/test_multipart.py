"""Forms that were made to keep the parser busy, and those that look like them."""

from __future__ import annotations

import pytest

from gateway.apis.files.multipart import MOST_BOUNDARIES, MOST_PADDING, MOST_PARTS, Form
from gateway.errors.refusal import Refusal

TYPE = "multipart/form-data; boundary=B"
FILE = b'--B\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'


def read(tmp_path, body, piece):
    """The form that comes in pieces of that size."""
    with Form(TYPE, tmp_path / "draft", 100 << 20) as form:
        for begin in range(0, len(body), piece):
            form.write(body[begin : begin + piece])
        form.close()
        return form.size, form.fields


def field(number):
    return b'--B\r\nContent-Disposition: form-data; name="%d"\r\n\r\n%d\r\n' % (number, number)


@pytest.mark.parametrize("piece", [1, 7, 1000, 1 << 20])
def test_as_many_parts_as_may_be_are_taken_however_they_come(tmp_path, piece):
    fields = b"".join(field(number) for number in range(MOST_PARTS - 1))
    size, found = read(tmp_path, b"\r\n" + fields + FILE + b"content\r\n--B--\r\n", piece)
    assert (size, len(found)) == (7, MOST_PARTS - 1)
    with pytest.raises(Refusal, match="more than 64 parts"):
        read(tmp_path, fields + field(99) + FILE + b"content\r\n--B--\r\n", piece)


@pytest.mark.parametrize("like", [b"\r\n--Bx", b"\r\n--B-x", b"\r\n--B\rx"])
@pytest.mark.parametrize("piece", [1, 5, 1000, 1 << 20])
def test_what_begins_like_boundaries_is_refused_where_there_is_much_of_it(tmp_path, like, piece):
    content = like * (MOST_BOUNDARIES - 1)
    body = FILE + content + b" " * (2 * MOST_PADDING) + b"\r\n--B--\r\n"
    assert read(tmp_path, body, piece) == (len(content) + 2 * MOST_PADDING, {})
    with pytest.raises(Refusal, match="boundary is in its content") as refused:
        read(tmp_path, FILE + like * (MOST_BOUNDARIES + 1) + b" " * 2 * MOST_PADDING, piece)
    assert (refused.value.status, refused.value.code) == (400, "invalid_form")


@pytest.mark.parametrize("space", [b" ", b"\t", b" \t"])
@pytest.mark.parametrize("piece", [1, 7, 1000, 1 << 20])
def test_padding_behind_a_boundary_is_bounded(tmp_path, space, piece):
    def body(padding):
        return field(1) + b"--B" + (space * padding)[:padding] + FILE[3:] + b"content\r\n--B--\r\n"

    assert read(tmp_path, body(MOST_PADDING), piece) == (7, {"1": "1"})
    with pytest.raises(Refusal, match="no complete form"):
        read(tmp_path, body(MOST_PADDING + 1), piece)
