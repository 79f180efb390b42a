"""Requests as they cross the engine seam."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import NamedTuple

from inference.messages import Message
from inference.tools import Tools
from inference.types.events import Usage
from inference.types.sampling import SamplingParams
from inference.values import value

TemplateValue = bool | int | float | str


class Kind(StrEnum):
    """What a request asks of a model."""

    CHAT = "chat"
    EMBEDDING = "embedding"
    SCORE = "score"  # how well texts answer or match others, by a model that reads both at once
    CLASSIFICATION = "classification"  # how probably each of some labels is a text's


@value
class Resumed:
    """How far a chat had come on an engine that was lost: another goes on behind `tokens` as that one would have.

    `usage` is what it had used, `seed` what `Started` said; the usage that the other engine reports includes it, and
    computing the prompt and these tokens again doesn't count.
    """

    tokens: tuple[int, ...]
    usage: Usage
    seed: int


@value
class GenerationRequest:
    """One request as the engine takes it.

    `id` is the gateway's uuid7 in hex, never a client's. `tenant` is the fairness key and `weight` its share in
    thousandths (1000 = 1.0). Waiting requests of a higher `band` (its plan's) come before all of a lower one, whatever
    the shares; within its tenant one of a higher `priority` comes first. `domain` roots every prefix-cache key:
    requests share cached blocks only within a domain.
    One that has waited `queue_seconds` for the engine (0: as long as it takes) ends with the error `queue_timeout`,
    unbegun and free of charge. A chat carries `messages`, with the `tools` that the model may use and the
    `template_values` that its chat template gets by name, or a `prompt` (text or token ids) that no chat template is
    applied to; an embedding request `inputs` (texts or token ids) and whether a longer input than the model takes is
    cut (`truncate`) or refused. `adapter` names the weights that are added to the model's for a chat ("": none). A
    score request pairs each of its `inputs`, which are texts, with the query of its number, or all with the only one. A
    classification puts each of its `inputs` under one of `labels` (none: those that are the model's own). `continues`
    is the field by which the client asks that the chat's last message, the assistant's, is gone on with ("": none).
    """

    id: str
    tenant: str
    domain: str
    kind: Kind = Kind.CHAT
    weight: int = 1000
    messages: tuple[Message, ...] = ()
    tools: Tools | None = None
    template_values: tuple[tuple[str, TemplateValue], ...] = ()
    prompt: str | tuple[int, ...] | None = None
    inputs: tuple[str | tuple[int, ...], ...] = ()
    queries: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    truncate: bool = False
    sampling: SamplingParams = field(default_factory=SamplingParams)
    resumed: Resumed | None = None
    band: int = 0
    priority: int = 0
    queue_seconds: float = 0.0
    adapter: str = ""
    continues: str = ""


@value
class Prepared:
    """A request that the engine has tokenised: `prompt_tokens` of prompt (for embeddings: over all inputs).

    `exact` is False where the count is an estimate: credit is held for 5 % more, and no more than that is charged.
    `max_output` is the most tokens that the request may generate: its
    max_tokens, or what the context leaves. The token ids stay in the worker, for 30 s. `not_enforced` are the request's
    wishes that the engine leaves open, as the client calls their fields. `prompts` is 1 unless the engine computes the
    prompt for each answer, and `prompt_tokens` are those of all.
    """

    request: GenerationRequest
    prompt_tokens: int
    max_output: int
    exact: bool = True
    not_enforced: tuple[str, ...] = ()
    prompts: int = 1

    @property
    def most_prompt(self) -> int:
        """The most prompt tokens that may be charged for."""
        return self.prompt_tokens if self.exact else -(-self.prompt_tokens * 21 // 20)


class Tokens(NamedTuple):
    """The token ids of a prompt and, where they were asked for, the tokens as the vocabulary writes them."""

    ids: tuple[int, ...]
    texts: tuple[str, ...] = ()
