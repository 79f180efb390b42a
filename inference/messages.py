"""The messages of a chat, in parts, as they cross the engine seam: plain immutable data.

A piece of text is a `str`. An assistant's message may hold reasoning and tool calls among its text, in the order in
which the model wrote them; a message of the role ``tool`` holds tool results.
"""

from __future__ import annotations

from typing import final

from inference.values import value


@value
class Image:
    """An image: its `url` is a data: URL, or an https address that the engine's server fetches.

    `width` and `height` are in pixels, 0 where they aren't known. `detail` is the client's wish in the API's words.
    """

    url: str
    width: int = 0
    height: int = 0
    detail: str = ""


@value
class Reasoning:
    """The model's thought before its answer."""

    text: str


@value
class ToolCall:
    """The model's call of the function `name`. `arguments` are what it wrote: JSON, if it wrote well."""

    id: str
    name: str
    arguments: str


@value
class ToolResult:
    """A function's answer to the call with the id `call_id`."""

    call_id: str
    content: tuple[str | Image, ...]


Part = str | Image | Reasoning | ToolCall | ToolResult


@final
class Message:
    """One message of a chat: `role` is system, user, assistant or tool. Nobody changes it.

    It is no dataclass, since `inference.protocol` says itself how parts of several kinds travel.
    """

    __slots__ = ("parts", "role")

    def __init__(self, role: str, parts: tuple[Part, ...]) -> None:
        self.role = role
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and (self.role, self.parts) == (other.role, other.parts)

    def __hash__(self) -> int:
        return hash((self.role, self.parts))

    def __repr__(self) -> str:
        return f"Message({self.role!r}, {self.parts!r})"

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts that a model reads of it, in their order: tool calls and results included, images left out."""
        if len(self.parts) == 1 and isinstance(self.parts[0], str):
            return (self.parts[0],)
        texts: list[str] = []
        for part in self.parts:
            match part:
                case str():
                    texts.append(part)
                case Reasoning():
                    texts.append(part.text)
                case ToolCall():
                    texts += (part.name, part.arguments)
                case ToolResult():
                    texts += (text for text in part.content if isinstance(text, str))
        return tuple(texts)

    @property
    def images(self) -> tuple[Image, ...]:
        """Its images, those of tool results included."""
        images: list[Image] = []
        for part in self.parts:
            if isinstance(part, Image):
                images.append(part)
            elif isinstance(part, ToolResult):
                images += (image for image in part.content if isinstance(image, Image))
        return tuple(images)

    @property
    def characters(self) -> int:
        """The length of its texts."""
        return sum(map(len, self.texts))

    @property
    def size(self) -> int:
        """The length of its texts and images."""
        return self.characters + sum(len(image.url) for image in self.images)

    @property
    def has_tools(self) -> bool:
        """Whether it calls a tool or says what one answered."""
        return any(isinstance(part, ToolCall | ToolResult) for part in self.parts)


def text_of(content: tuple[str | Image, ...]) -> str:
    """The texts of `content`, each on lines of its own, so that no two words become one."""
    return "\n".join(part for part in content if isinstance(part, str))
