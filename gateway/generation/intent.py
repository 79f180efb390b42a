"""A parsed request before routing, the same for every wire format."""

from __future__ import annotations

import msgspec

from inference.types import Kind, Message, SamplingParams


class Intent(msgspec.Struct, frozen=True):
    """One request of any endpoint. `sampling.max_tokens` is None when the client didn't bound the output.

    Of a tenant's waiting requests those with the lowest `priority` are served first.
    """

    endpoint: str  # "chat.completions", "responses", "embeddings"
    kind: Kind
    model: str
    messages: tuple[Message, ...] = ()
    inputs: tuple[str | tuple[int, ...], ...] = ()
    dimensions: int | None = None  # of the vectors, where the client insists
    truncate: bool = False
    sampling: SamplingParams = msgspec.field(default_factory=SamplingParams)
    task: str | None = None
    end_user: str | None = None
    priority: int = 0
    stream: bool = False  # the client reads pieces as they are made; else it gets all or nothing

    @property
    def characters(self) -> int:
        """Size of the prompt before tokenising."""
        texts = sum(len(message.content) for message in self.messages)
        return texts + sum(len(item) if isinstance(item, str) else 4 * len(item) for item in self.inputs)
