"""Images in requests: which are taken, and how large they are, as the head of their own format says."""

from __future__ import annotations

import base64
import ipaddress
import re
import socket
import struct
from urllib.parse import urlsplit

from gateway.wire.decode import invalid
from gateway.wire.limits import MAX_ADDRESS, MAX_IMAGE_BYTES, MAX_IMAGE_SIDE
from inference.messages import Image

FORMATS = "PNG, JPEG, WebP and GIF"

_HEAD = re.compile(r"data:image/[a-z0-9.+-]{1,64};base64,", re.IGNORECASE)
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_ENOUGH = 64 * 1024  # base64 that has the size of nearly any image in it; behind long metadata it comes later
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # JPEG's markers without a length
_MOST_SEGMENTS = 4096  # five megabytes of empty ones would keep the event loop for half a second
_NO_FRAME = frozenset({0xC4, 0xC8, 0xCC})  # in the range of JPEG's frames, but none


def image_of(url: str, detail: str | None, at: str) -> Image:
    """Return the image at `url`; refuse (400, naming the field `at`) what is no data: URL of an image and no https
    address on the internet. Nothing is fetched.
    """
    if url[:5].lower() == "data:":
        width, height = _size_in(url, at)
        return Image(url, width, height, detail or "")
    if len(url) > MAX_ADDRESS or not _is_address(url):
        text = f"'{at}' must be a data: URL with base64, or a public https address of at most {MAX_ADDRESS} characters."
        raise invalid(at, text)
    return Image(url, detail=detail or "")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme == "https" and bool(parts.hostname) and url.isprintable() and " " not in url
        return is_whole and _is_public(parts.hostname or "")
    except ValueError:
        return False


_OWN_NAMES = (".localhost", ".localdomain", ".local", ".internal", ".svc", ".lan", ".home.arpa")  # of no public host
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def _is_public(host: str) -> bool:
    """Whether a host may be one of the internet's: where a name leads is known to the server that fetches it."""
    name = host.rstrip(".").lower()
    if not name.isascii():
        return False  # clients make ASCII of it in ways of their own
    try:
        # As resolvers read it, who also take 2852039166 and 0xa9.254.169.254.
        address = ipaddress.ip_address(name if ":" in name else socket.inet_aton(name))
    except (OSError, ValueError):
        return "." in name and not name.endswith(_OWN_NAMES)
    if isinstance(address, ipaddress.IPv6Address):
        within = address.ipv4_mapped or address.sixtofour
        if within is None and address in _NAT64:
            within = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        address = within or address
    return address.is_global and not address.is_multicast


def _size_in(url: str, at: str) -> tuple[int, int]:
    head = _HEAD.match(url)
    if head is None:
        raise invalid(at, f"'{at}' must begin with data:image/…;base64, and hold one of {FORMATS}.")
    if (len(url) - head.end()) * 3 // 4 > MAX_IMAGE_BYTES:
        raise invalid(at, f"'{at}' is larger than {MAX_IMAGE_BYTES:,} bytes.")
    try:
        encoded = url[head.end() :].encode("ascii")
    except UnicodeEncodeError:
        encoded = b"-"
    data = encoded.rstrip(b"=")
    if len(encoded) % 4 or len(encoded) - len(data) > 2 or data.translate(None, _ALPHABET):
        raise invalid(at, f"'{at}' is not valid base64.")
    size = _size_of(base64.b64decode(encoded[:_ENOUGH])) or (
        _size_of(base64.b64decode(encoded)) if len(encoded) > _ENOUGH else None
    )
    if size is None:
        raise invalid(at, f"'{at}' is no image that can be read: {FORMATS} are.")
    if not all(0 < side <= MAX_IMAGE_SIDE for side in size):
        raise invalid(at, f"'{at}' has {size[0]}×{size[1]} pixels; a side has 1 to {MAX_IMAGE_SIDE:,}.")
    return size


def _size_of(data: bytes) -> tuple[int, int] | None:
    """Return width and height as the beginning `data` of an image says them, None where it doesn't."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
            return struct.unpack_from(">II", data, 16)
        if data[:6] in {b"GIF87a", b"GIF89a"}:
            return struct.unpack_from("<HH", data, 6)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp(data)
        if data[:2] == b"\xff\xd8":
            return _jpeg(data)
    except (struct.error, IndexError):
        pass
    return None


def _webp(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    return None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    """Walk through the segments to the frame's head, which no real image has behind `_MOST_SEGMENTS`."""
    at = 2
    for _ in range(_MOST_SEGMENTS):
        if data[at] != 0xFF:
            break
        marker = data[at + 1]
        if marker == 0xFF:  # a byte that fills
            at += 1
        elif marker in _STANDALONE:
            at += 2
        elif 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        else:
            (length,) = struct.unpack_from(">H", data, at + 2)
            at += 2 + length
    return None
