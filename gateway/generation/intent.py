"""A parsed request before routing, the same for every wire format."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property

import msgspec

from inference.messages import Message
from inference.tools import Tools
from inference.types import Kind, SamplingParams, TemplateValue


class Tier(StrEnum):
    """How soon a request is served: before its tenant's other waiting ones, among them, or after everybody's."""

    PRIORITY = "priority"
    DEFAULT = "default"
    FLEX = "flex"


class Intent(msgspec.Struct, frozen=True, dict=True):
    """One request of any endpoint. `sampling.max_tokens` is None when the client didn't bound the output.

    Of a tenant's waiting requests those of the `tier` PRIORITY are served first, then those with the lowest `priority`;
    those of the tier FLEX only when nobody's others wait.
    """

    endpoint: str  # "chat.completions", "completions", "responses", "embeddings", "ranking", "classification"
    kind: Kind
    model: str
    messages: tuple[Message, ...] = ()
    tools: Tools | None = None
    template_values: tuple[tuple[str, TemplateValue], ...] = ()  # by name, for the model's chat template
    prompt: str | tuple[int, ...] | None = None  # without messages: no chat template is applied to it
    images: str = "none"  # what the messages have: "none", all as "data", or also "urls"
    image_at: str = ""  # the field of the first
    inputs: tuple[str | tuple[int, ...], ...] = ()
    queries: tuple[str, ...] = ()  # what the inputs are scored by: one, or one for each
    labels: tuple[str, ...] = ()  # what the inputs are classified as; empty: the model's own
    dimensions: int | None = None  # of the vectors, where the client insists
    truncate: bool = False
    sampling: SamplingParams = msgspec.field(default_factory=SamplingParams)
    task: str | None = None
    earlier_model: str = ""  # the model of the stored response that it goes on from
    end_user: str | None = None
    priority: int = 0
    tier: Tier = Tier.DEFAULT
    continues: str = ""  # the field by which the client asks that the last message, the assistant's, is gone on with
    not_enforced: tuple[str, ...] = ()  # wishes that change nothing, as the client calls their fields
    stream: bool = False  # the client reads pieces as they are made; else it gets all or nothing

    @cached_property  # admission asks three times, and a chat may be long
    def characters(self) -> int:
        """Size of the prompt's text before tokenising."""
        texts = sum(message.characters for message in self.messages)
        texts += self.tools.characters if self.tools is not None else 0
        inputs = self.inputs if self.prompt is None else (self.prompt,)
        queries = sum(map(len, self.queries)) * (len(inputs) if len(self.queries) == 1 else 1)
        queries += sum(map(len, self.labels))
        return texts + queries + sum(len(item) if isinstance(item, str) else 4 * len(item) for item in inputs)

    @property
    def size(self) -> int:
        """Its size in memory, images included."""
        if self.images == "none":
            return self.characters
        tools = self.tools.characters if self.tools is not None else 0
        return tools + sum(message.size for message in self.messages)
