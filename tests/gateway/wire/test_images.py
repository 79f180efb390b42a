"""Which images are taken, and how large they are."""

from __future__ import annotations

import base64
import struct

import pytest

from gateway.errors.refusal import Refusal
from gateway.wire import parts
from gateway.wire.parts import image_of
from inference.messages import Image


def png(width, height):
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\x08\x02\0\0\0"


def gif(width, height):
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0"


def jpeg(width, height, before=0):
    metadata = b"\xff\xe1" + struct.pack(">H", before + 2) + b"\xff" * before
    table = b"\xff\xc4\0\x04\0\0"
    frame = b"\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width) + b"\x03"
    return b"\xff\xd8" + metadata + b"\xff" + table + frame


def webp(kind, data):
    return b"RIFF\0\0\0\0WEBP" + kind + b"\0\0\0\0" + data


LOSSY = webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 30, 0x4000 | 20))
LOSSLESS = webp(b"VP8L", b"\x2f" + struct.pack("<I", 29 | 19 << 14))
EXTENDED = webp(b"VP8X", b"\0\0\0\0" + (29).to_bytes(3, "little") + (19).to_bytes(3, "little"))


def data_url(data, kind="png"):
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


@pytest.mark.parametrize(
    "data",
    [png(30, 20), gif(30, 20), jpeg(30, 20), jpeg(30, 20, before=60_000), LOSSY, LOSSLESS, EXTENDED],
    ids=["png", "gif", "jpeg", "jpeg-metadata", "webp-lossy", "webp-lossless", "webp-extended"],
)
def test_size_is_read_from_the_head_of_each_format(data):
    url = data_url(data)
    assert image_of(url, "low", "at") == Image(url, 30, 20, "low")


def test_size_behind_long_metadata_is_found():
    data = jpeg(30, 20, before=60_000)
    data = data[:2] + data[2 : 2 + 60_004] * 2 + data[2 + 60_004 :]
    assert len(data_url(data)) > parts._ENOUGH
    assert image_of(data_url(data), None, "at") == Image(data_url(data), 30, 20)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("cat.png", "must be a data: URL"),
        ("http://example.com/cat.png", "https"),
        ("https://", "https"),
        ("https://[", "https"),
        *(
            (f"https://{host}/latest/meta-data", "public")
            for host in (
                *("169.254.169.254", "2852039166", "0xa9fea9fe", "[fe80::1]", "[::ffff:169.254.169.254]"),
                *("169.254.169.254.", "127.1.", "１６９.254.169.254", "[64:ff9b::a9fe:a9fe]", "[2002:7f00:1::]"),
                *("kubernetes.default.svc", "localhost.localdomain."),
            )
        ),
        *(
            (f"https://{host}/a.png", "public")
            for host in ("localhost", "10.0.0.1", "127.1", "gateway", "vault.internal")
        ),
        ("https://example.com/a b", "https"),
        ("https://example.com/" + "x" * 4096, "4096"),
        ("file:///etc/passwd", "https"),
        ("data:text/html;base64,AAAA", "data:image"),
        ("data:image/png,AAAA", "base64"),
        ("data:image/png;base64,AAA", "valid base64"),
        ("data:image/png;base64,AA\nA", "valid base64"),
        ("data:image/png;base64,AAé=", "valid base64"),
        ("data:image/png;base64,A===", "valid base64"),
        ("data:image/png;base64,", "no image"),
        (data_url(b"<svg/>", "svg+xml"), "no image"),
        (data_url(b"\xff\xd8" + b"\xff\xe1\0\0" * 10), "no image"),
        (data_url(png(30, 20)[:18]), "no image"),
        (data_url(png(0, 20)), "0×20"),
        (data_url(png(100_000, 20)), "8,192"),
    ],
)
def test_what_is_no_image_is_refused_with_its_field(url, says):
    with pytest.raises(Refusal) as refused:
        image_of(url, None, "messages[0].content[1].image_url.url")
    assert (refused.value.status, refused.value.code) == (400, "invalid_value")
    assert refused.value.param == "messages[0].content[1].image_url.url"
    assert says in refused.value.message


def test_an_image_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(parts, "MAX_IMAGE_BYTES", 100)
    image_of(data_url(png(1, 1) + bytes(50)), None, "at")
    with pytest.raises(Refusal, match="larger than 100 bytes"):
        image_of(data_url(png(1, 1) + bytes(80)), None, "at")


def test_a_jpeg_is_not_walked_through_without_end():
    """Megabytes of segments without content kept the event loop for half a second."""
    data = jpeg(30, 20)
    assert image_of(data_url(data[:2] + b"\xff\x01" * 1000 + data[2:]), None, "at").width == 30
    with pytest.raises(Refusal, match="no image"):
        image_of(data_url(data[:2] + b"\xff\x01" * 5000 + data[2:]), None, "at")


def test_an_address_is_passed_on_unread():
    assert image_of("https://example.com/cat.png?size=3", "high", "at") == Image(
        "https://example.com/cat.png?size=3", detail="high"
    )
