"""The parts of a message's content, in Chat Completions and in Responses, and one way to read them."""

from __future__ import annotations

import base64
import ipaddress
import re
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta

from gateway.wire.decode import (
    MAX_ADDRESS,
    MAX_IMAGE_BYTES,
    MAX_IMAGE_PIXELS,
    MAX_IMAGE_SIDE,
    MAX_IMAGES,
    MAX_PARTS,
    invalid,
    unsupported,
)
from gateway.wire.demands import Anything, Fields, Only, Unread, Wish
from inference.messages import Image, Message

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


Url = str  # bounded by the body, and by what an image may have
Detail = Literal["auto", "low", "high", "original"]
FunctionName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}\Z")]
CallId = Annotated[str, Meta(min_length=1, max_length=128)]
CacheHint = Annotated[Anything, Wish()]  # where a prompt is to be cached up to: every prefix is, while there is room
Given = Annotated[Anything, Unread()]  # back by programs with what they got


class _Text(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    prompt_cache_breakpoint: CacheHint = UNSET


class TextPart(_Text, tag_field="type", tag="text"):
    """A piece of text."""

    cache_control: CacheHint = UNSET


class AnswerTextPart(_Text, tag_field="type", tag="text"):
    """A piece of what the model said. OpenAI's Agents SDK for Node.js gives it back with all else that the answer had,
    which is not read here: the turn has it.
    """

    cache_control: CacheHint = UNSET
    role: Given = UNSET
    refusal: Given = UNSET
    annotations: Given = UNSET
    tool_calls: Given = UNSET
    reasoning_content: Given = UNSET


class InputText(_Text, tag_field="type", tag="input_text"):
    """A piece of what was said to the model."""


class OutputTextPart(msgspec.Struct, tag_field="type", tag="output_text", forbid_unknown_fields=True):
    """A piece of what the model said."""

    text: str
    parsed: Given = UNSET  # what an SDK made of it
    annotations: Annotated[Anything, Only([])] = UNSET
    logprobs: Annotated[list[Any] | None, Unread()] = None  # of an answer that is given back whole


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal", forbid_unknown_fields=True):
    """A model's refusal to answer, given back as history: text like any other."""

    refusal: str


class ImageAddress(msgspec.Struct, forbid_unknown_fields=True):
    """Where an image is: a data: URL or an https address."""

    url: Url
    detail: Detail | None = None


class ImagePart(msgspec.Struct, tag_field="type", tag="image_url", forbid_unknown_fields=True):
    """An image, as Chat Completions has it."""

    image_url: ImageAddress
    prompt_cache_breakpoint: CacheHint = UNSET
    cache_control: CacheHint = UNSET


class InputImage(msgspec.Struct, tag_field="type", tag="input_image", forbid_unknown_fields=True):
    """An image, as Responses has it."""

    image_url: Url | None = None
    detail: Detail | None = None
    file_id: Annotated[Anything, Only(why="no files are stored here")] = UNSET
    prompt_cache_breakpoint: CacheHint = UNSET


class AudioPart(msgspec.Struct, tag_field="type", tag="input_audio"):
    """Refused."""


class FilePart(msgspec.Struct, tag_field="type", tag="file"):
    """Refused."""


class InputFile(msgspec.Struct, tag_field="type", tag="input_file"):
    """Refused."""


ChatPart = TextPart | RefusalPart | ImagePart | AudioPart | FilePart
AnswerPart = AnswerTextPart | RefusalPart | ImagePart | AudioPart | FilePart
ResponsePart = InputText | OutputTextPart | RefusalPart | InputImage | InputFile | AudioPart
ChatContent = str | Annotated[list[ChatPart], Meta(max_length=MAX_PARTS)]
AnswerContent = str | Annotated[list[AnswerPart], Meta(max_length=MAX_PARTS)]
ResponseContent = str | Annotated[list[ResponsePart], Meta(max_length=MAX_PARTS)]


class Reading(Fields):
    """Reads the contents of one request's messages, and gathers which images they have. What runs at a provider is
    left out of a request whose tenant `leaves_out_hosted`, and refused otherwise.
    """

    def __init__(self, *, leaves_out_hosted: bool = False) -> None:
        super().__init__()
        self.leaves_out_hosted = leaves_out_hosted
        self.images = "none"  # "data" where all are sent along, "urls" where one has to be fetched
        self.image_at = ""  # the field of the first
        self._count = 0
        self._pixels = 0  # of those whose size is known

    def content(
        self, content: str | Sequence[ChatPart | AnswerPart | ResponsePart], at: str, *, sees: bool = False
    ) -> tuple[str | Image, ...]:
        """Return the text and, if it `sees`, the images of a content that stands in the field `at`."""
        if isinstance(content, str):
            return (content,)
        return joined(self._part(part, f"{at}[{index}]", sees=sees) for index, part in enumerate(content))

    def note_earlier(self, messages: Sequence[Message]) -> None:
        """Gather which images the earlier messages of a conversation have."""
        for message in messages:
            for image in message.images:
                self.note(image, "input")

    def _part(self, part: ChatPart | AnswerPart | ResponsePart, at: str, *, sees: bool) -> str | Image:
        match part:
            case TextPart() | AnswerTextPart() | InputText() | OutputTextPart():
                self.check(part, f"{at}.")
                return part.text
            case RefusalPart():
                return part.refusal
            case ImagePart() | InputImage():
                if not sees:
                    raise unsupported(f"{at}.type", "images are taken in users' messages and tools' results only")
                self.check(part, f"{at}.")
                return self._image(part, at)
            case _:
                raise unsupported(f"{at}.type", "only text and images are taken")

    def _image(self, part: ImagePart | InputImage, at: str) -> Image:
        if isinstance(part, ImagePart):
            image = image_of(part.image_url.url, part.image_url.detail, f"{at}.image_url.url")
        elif part.image_url is None:
            raise invalid(f"{at}.image_url", f"'{at}.image_url' is required: a data: URL or an https address.")
        else:
            image = image_of(part.image_url, part.detail, f"{at}.image_url")
        self.note(image, at)
        return image

    def note(self, image: Image, at: str) -> None:
        """Count an image that stands in the field `at`; refuse (400) one too many, or too large beside the others."""
        self._count += 1
        self._pixels += image.width * image.height
        if self._count > MAX_IMAGES:
            raise invalid(at, f"A request has at most {MAX_IMAGES} images.")
        if self._pixels > MAX_IMAGE_PIXELS:
            raise invalid(at, f"The images of a request have at most {MAX_IMAGE_PIXELS:,} pixels in all.")
        self.image_at = self.image_at or at
        if self.images != "urls":
            self.images = "data" if image.url[:5].lower() == "data:" else "urls"


def joined(content: Iterable[str | Image]) -> tuple[str | Image, ...]:
    """Return `content` with the texts that follow each other joined, each on lines of its own, so that no two words
    become one; an empty text where there is nothing.
    """
    parts: list[str | Image] = []
    for part in content:
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] = f"{parts[-1]}\n{part}"
        else:
            parts.append(part)
    return tuple(parts) or ("",)
