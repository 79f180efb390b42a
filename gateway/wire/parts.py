"""The parts of a message's content, in Chat Completions and in Responses, and one way to read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from gateway.wire.decode import invalid, unsupported
from gateway.wire.demands import Anything, Fields, Only, Unread, Wish
from gateway.wire.images import image_of
from gateway.wire.limits import MAX_IMAGE_PIXELS, MAX_IMAGES, MAX_PARTS
from inference.messages import Image, Message

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
