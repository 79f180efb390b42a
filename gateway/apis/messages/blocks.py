"""The messages of Anthropic's Messages API: turns whose contents are blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from gateway.wire.decode import MAX_PARTS, invalid, unsupported
from gateway.wire.demands import Anything, Only, Wish
from gateway.wire.parts import CallId, FunctionName, Reading, image_of, joined
from inference.messages import Image, Message, Part, Reasoning, ToolCall, ToolResult

CacheControl = Annotated[dict[str, Any] | None, Wish()]  # where to cache up to: every prefix is
Citations = Annotated[dict[str, Any] | None, Wish({"enabled": False})]  # no answer says where it has something from
BILLING = "x-anthropic-billing-header:"  # begins what Claude Code notes for its own provider, anew with each request
ERROR = "Error: "  # stands before what a tool answered that failed: no chat template has a place for it


class TextBlock(msgspec.Struct, tag_field="type", tag="text", kw_only=True, forbid_unknown_fields=True):
    """A piece of text."""

    text: str
    cache_control: CacheControl = None
    citations: Annotated[Anything, Only([])] = UNSET


class Base64Source(msgspec.Struct, tag_field="type", tag="base64", forbid_unknown_fields=True):
    """An image that is sent along."""

    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class UrlSource(msgspec.Struct, tag_field="type", tag="url", forbid_unknown_fields=True):
    """An image that the model's server fetches."""

    url: str


class FileSource(msgspec.Struct, tag_field="type", tag="file"):
    """Refused."""


class ImageBlock(msgspec.Struct, tag_field="type", tag="image", kw_only=True, forbid_unknown_fields=True):
    """An image."""

    source: Base64Source | UrlSource | FileSource
    cache_control: CacheControl = None
    transformations: Annotated[Anything, Only({})] = UNSET


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use", kw_only=True, forbid_unknown_fields=True):
    """The model's call of a tool, given back."""

    id: CallId
    name: FunctionName
    input: dict[str, Any]
    cache_control: CacheControl = None
    caller: Annotated[Anything, Only({"type": "direct"})] = UNSET
    toolset_name: Annotated[Anything, Only()] = UNSET


class PlainSource(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A document's text."""

    data: str
    media_type: Literal["text/plain"]


class ContentSource(msgspec.Struct, tag_field="type", tag="content", forbid_unknown_fields=True):
    """A document's text in blocks."""

    content: str | Annotated[list[TextBlock], Meta(max_length=MAX_PARTS)]


class FileData(msgspec.Struct, tag_field="type", tag="base64"):
    """Refused."""


class DocumentBlock(msgspec.Struct, tag_field="type", tag="document", kw_only=True, forbid_unknown_fields=True):
    """A document: its title and its context stand before its text."""

    source: PlainSource | ContentSource | FileData | UrlSource | FileSource
    title: str | None = None
    context: str | None = None
    citations: Citations = None
    cache_control: CacheControl = None


class SearchResultBlock(
    msgspec.Struct, tag_field="type", tag="search_result", kw_only=True, forbid_unknown_fields=True
):
    """A search result: its title and its source stand before its text."""

    source: str
    title: str
    content: Annotated[list[TextBlock], Meta(max_length=MAX_PARTS)]
    citations: Citations = None
    cache_control: CacheControl = None


class ToolReferenceBlock(msgspec.Struct, tag_field="type", tag="tool_reference"):
    """Refused."""


ResultPart = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock


class ToolResultBlock(msgspec.Struct, tag_field="type", tag="tool_result", kw_only=True, forbid_unknown_fields=True):
    """A tool's result."""

    tool_use_id: CallId
    content: str | Annotated[list[ResultPart], Meta(max_length=MAX_PARTS)] | None = None
    is_error: bool | None = None
    cache_control: CacheControl = None
    toolset_name: Annotated[Anything, Only()] = UNSET


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking", kw_only=True, forbid_unknown_fields=True):
    """The model's thought, given back. The `signature` isn't looked at."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(msgspec.Struct, tag_field="type", tag="redacted_thinking"):
    """Refused."""


class ServerToolUseBlock(msgspec.Struct, tag_field="type", tag="server_tool_use"):
    """Refused."""


SaidBlock = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ServerToolUseBlock
AskedBlock = ResultPart | ToolResultBlock

_REFUSED = {
    ToolReferenceBlock: "all tools are loaded from the beginning",
    RedactedThinkingBlock: "thought is not encrypted here, and another model's can't be read: leave the block out",
    ServerToolUseBlock: "no hosted tools run here: leave its calls and their results out",
}


class UserMessage(msgspec.Struct, tag_field="role", tag="user", forbid_unknown_fields=True):
    """A person's message, and the results of tools."""

    content: str | Annotated[list[AskedBlock], Meta(max_length=MAX_PARTS)]

    def messages(self, reading: Reading, at: str) -> Iterable[Message]:
        """The turn, which stands in the field `at`, as messages: tools' results come first, as their calls expect."""
        results: list[Part] = []
        said: list[str | Image] = []
        for where, block in _placed(self.content, at):
            if isinstance(block, ToolResultBlock):
                results.append(_result(block, reading, where))
            else:
                said.append(_content(block, reading, where))
        if results:
            yield Message("tool", tuple(results))
        if said or not results:
            yield Message("user", joined(said))


class AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant", forbid_unknown_fields=True):
    """The model's text, thought and calls."""

    content: str | Annotated[list[SaidBlock], Meta(max_length=MAX_PARTS)]

    def messages(self, reading: Reading, at: str) -> Iterable[Message]:
        """The turn, which stands in the field `at`, as one message."""
        parts = [_said(block, reading, where) for where, block in _placed(self.content, at)]
        yield Message("assistant", tuple(part for part in parts if part is not None) or ("",))


class SystemMessage(msgspec.Struct, tag_field="role", tag="system", forbid_unknown_fields=True):
    """Instructions from here on."""

    content: str | Annotated[list[TextBlock], Meta(max_length=MAX_PARTS)]

    def messages(self, reading: Reading, at: str) -> Iterable[Message]:
        """The turn, which stands in the field `at`, as one message."""
        yield system_message(self.content, reading, f"{at}.content")


TurnMessage = UserMessage | AssistantMessage | SystemMessage


def system_message(content: str | Sequence[TextBlock], reading: Reading, at: str) -> Message:
    """Return the instructions in the field `at`."""
    if isinstance(content, str):
        return Message("system", (content,))
    told = [(index, block) for index, block in enumerate(content) if not block.text.startswith(BILLING)]
    if len(told) < len(content):  # no instruction; behind it no prefix of a prompt would be known from the last one
        reading.wish(f"{at}[].{BILLING.removesuffix(':')}")
    return Message("system", joined(_content(block, reading, f"{at}[{index}]") for index, block in told))


def messages_of(turns: Sequence[TurnMessage], reading: Reading) -> tuple[Message, ...]:
    """Return the messages of `turns`. Turns of one role that follow each other become one message, since most chat
    templates insist on roles that alternate.
    """
    messages: list[Message] = []
    for index, turn in enumerate(turns):
        for message in turn.messages(reading, f"messages[{index}]"):
            if messages and messages[-1].role == message.role:
                messages[-1] = Message(message.role, _together(messages[-1].parts, message.parts))
            else:
                messages.append(message)
    return tuple(messages)


def _together(first: tuple[Part, ...], second: tuple[Part, ...]) -> tuple[Part, ...]:
    if isinstance(first[-1], str) and isinstance(second[0], str):
        return (*first[:-1], f"{first[-1]}\n{second[0]}", *second[1:])
    return (*first, *second)


def _placed(content: Any, at: str) -> Iterable[tuple[str, Any]]:
    """Yield the blocks of a content with the fields that they stand in."""
    if isinstance(content, str):
        yield f"{at}.content", TextBlock(text=content)
        return
    for index, block in enumerate(content):
        yield f"{at}.content[{index}]", block


def _said(block: SaidBlock, reading: Reading, at: str) -> Part | None:
    """Return what the model said, thought or called; None for a thought that was left out of its answer."""
    match block:
        case ThinkingBlock():
            return Reasoning(block.thinking) if block.thinking else None
        case ToolUseBlock():
            reading.check(block, f"{at}.")
            return ToolCall(block.id, block.name, msgspec.json.encode(block.input).decode())
        case _:
            return _content(block, reading, at)


def _result(block: ToolResultBlock, reading: Reading, at: str) -> ToolResult:
    reading.check(block, f"{at}.")
    content: tuple[str | Image, ...] = ("",)
    if isinstance(block.content, str):
        content = (block.content,)
    elif block.content:
        read = (_content(part, reading, f"{at}.content[{index}]") for index, part in enumerate(block.content))
        content = joined(read)
    if block.is_error:
        content = (ERROR + content[0], *content[1:]) if isinstance(content[0], str) else (ERROR, *content)
    return ToolResult(block.tool_use_id, content)


def _content(block: Any, reading: Reading, at: str) -> str | Image:
    """Return a text or an image; refuse all other blocks by name."""
    match block:
        case TextBlock():
            reading.check(block, f"{at}.")
            return block.text
        case ImageBlock():
            reading.check(block, f"{at}.")
            return _image(block, reading, at)
        case DocumentBlock() | SearchResultBlock():
            reading.check(block, f"{at}.")
            return _document(block, reading, at)
    raise unsupported(f"{at}.type", _REFUSED[type(block)])


def _document(block: DocumentBlock | SearchResultBlock, reading: Reading, at: str) -> str:
    """Return the text of a document; refuse one that isn't text."""
    if isinstance(block, SearchResultBlock):
        return "\n".join((block.title, block.source, *_texts(block.content, reading, f"{at}.content")))
    match block.source:
        case PlainSource(data):
            texts = [data]
        case ContentSource(content):
            texts = _texts(content, reading, f"{at}.source.content")
        case _:
            raise unsupported(f"{at}.source.type", "documents are taken as text: send theirs, with the type 'text'")
    return "\n".join((*filter(None, (block.title, block.context)), *texts))


def _texts(content: str | Sequence[TextBlock], reading: Reading, at: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [str(_content(block, reading, f"{at}[{index}]")) for index, block in enumerate(content)]


def _image(block: ImageBlock, reading: Reading, at: str) -> Image:
    match block.source:
        case Base64Source(media_type, data):
            image = image_of(f"data:{media_type};base64,{data}", None, f"{at}.source.data")
        case UrlSource(url):
            if url[:5].lower() == "data:":
                raise invalid(f"{at}.source.url", f"'{at}.source' of a data: URL has the type 'base64'.")
            image = image_of(url, None, f"{at}.source.url")
        case _:
            raise unsupported(f"{at}.source.type", "send the image in base64, or its https address")
    reading.note(image, at)
    return image
