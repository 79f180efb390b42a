"""Requests as they cross the engine seam."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from hashlib import blake2b
from typing import Any, NamedTuple

from inference.messages import Message
from inference.tools import Tools
from inference.types.events import Usage
from inference.values import value

MAX_GUIDANCE_CHARACTERS = 262_144  # of all that one answer is held to


class Asked(StrEnum):
    """How a client asks for something: a demand that can't be held is refused, a wish is told (`not_enforced`)."""

    DEMAND = "demand"
    WISH = "wish"
    NOT = "not"


class GuidanceKind(StrEnum):
    """Language of a guidance's source."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"  # any JSON object; it has no source
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"


@value
class Guidance:
    """A form of an answer's text: no token is permitted that can't lead to the form, and no end before the text has it.

    `source` is a JSON Schema in JSON, a regular expression for the whole answer (without look-around and references
    back), or a grammar in Lark with the rule `start`; `choices` are the answers of a CHOICE. Between the tokens of JSON
    stands `whitespace`: None permits a little, "" none, anything else is a regular expression of what may stand there.
    `param` is what the client calls the field, for errors, and `schema_at` (empty: the same) what it calls that of the
    schema; they make no other guidance. Of a schema that isn't `strict`, keywords that can't be held are left out and
    told; `without` are those that are left out already, "" for all of it.
    """

    kind: GuidanceKind
    source: str = ""
    choices: tuple[str, ...] = ()
    whitespace: str | None = None
    strict: bool = True
    without: tuple[str, ...] = ()
    param: str = field(default="guidance", compare=False)
    schema_at: str = field(default="", compare=False)

    @property
    def characters(self) -> int:
        """The length of the source, or of the choices together."""
        return len(self.source) + sum(map(len, self.choices))

    def not_enforced(self, keywords: Iterable[str]) -> tuple[str, ...]:
        """Return what the client calls the keywords of its schema that are left out, these among them."""
        left_out = dict.fromkeys((*self.without, *keywords))
        at = self.schema_at or self.param
        return tuple(f"{at}.{keyword}" if keyword else at for keyword in left_out)


def seed_of(seed: int, index: int) -> int:
    """Return the seed of answer `index` to a request of `seed`, in 64 bits: the first one's is the request's own.

    The others' are hashed, so that two requests of neighbouring seeds have no answer in common.
    """
    seed %= 2**64
    return int.from_bytes(blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()) if index else seed


@value
class SamplingParams:
    """How the next token is chosen. Temperature 0 is greedy; a field at its neutral value is off.

    `max_tokens` None permits as many as the context. `seed` None draws 64 random bits at submission. The noise is a
    pure function of (seed, output position, token id), so batching, preemption and caching never change the result.
    `unset` names the fields that the client didn't set: they take the recommended value of the deployment or model, if
    any.

    In this order: `logit_bias` adds to the logits of its (token id, bias) pairs; `allowed_token_ids`, unless empty, are
    the only ones permitted, as are those that `guidance` permits; below `min_tokens` output tokens the tokens that end
    the request are not permitted (unless guidance permits nothing else), and stop strings not looked for;
    `repetition_penalty` divides positive logits of tokens in prompt and output and multiplies negative ones;
    `frequency_penalty` is subtracted for each time that a token stands in the output, and
    `presence_penalty` once; then come temperature, top_k, top_p and min_p.

    `logprobs` asks for the log-probability of each output token and of that many most probable ones beside it, before
    all of the above; `prompt_logprobs` for the same of each prompt token but the first. With `echo` the text begins
    with the prompt's. `n` answers are generated; of `best_of` answers the `n` of the highest mean log-probability
    (of all their tokens, thought and calls too) count, and nothing is sent before all have ended. Behind
    `thinking_tokens` of thought the marker that ends it is forced; 0 asks for none (None: as the model likes). `effort`
    says the same in a word, for servers that take one. `thinking_asked` says how the client asks for it, and
    `thinking_param` in which field.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    unset: tuple[str, ...] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    allowed_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    n: int = 1
    best_of: int | None = None
    guidance: Guidance | None = None
    thinking_tokens: int | None = None
    effort: str = ""
    thinking_asked: Asked = Asked.DEMAND
    thinking_param: str = field(default="thinking_token_budget", compare=False)

    @property
    def demands_thought(self) -> bool:
        """Whether a model that doesn't think has to refuse the request."""
        return self.thinking_asked is Asked.DEMAND and bool(self.thinking_tokens)

    @property
    def wishes_thought(self) -> bool:
        """Whether a model that doesn't think leaves a wish of the client's open."""
        return self.thinking_asked is Asked.WISH and self.thinking_tokens != 0

    @property
    def answers(self) -> int:
        """How many answers are generated, whether or not all of them are sent."""
        return self.n if self.best_of is None else self.best_of

    @property
    def penalises(self) -> bool:
        """Whether a token's logit depends on the tokens before it."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def with_recommended(self, recommended: Mapping[str, float]) -> SamplingParams:
        """Return a copy in which the `unset` fields have their `recommended` values, and `unset` is empty."""
        chosen: dict[str, Any] = {name: recommended[name] for name in self.unset if name in recommended}
        return replace(self, **chosen, unset=())


TemplateValue = bool | int | float | str


class Kind(StrEnum):
    """Kind of work that a request asks of a model."""

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
