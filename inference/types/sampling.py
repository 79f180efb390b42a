"""How tokens are chosen, and what an answer has to be, as they cross the engine seam."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from inference.values import value

MAX_GUIDANCE_CHARACTERS = 262_144  # of all that one answer is held to


class Asked(StrEnum):
    """How a client asks for something: a demand that can't be held is refused, a wish is told (`not_enforced`)."""

    DEMAND = "demand"
    WISH = "wish"
    NOT = "not"


class GuidanceKind(StrEnum):
    """What the source of a guidance is written in."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"  # any JSON object; it has no source
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"


@value
class Guidance:
    """What the text of an answer has to be: no token is permitted that can't lead there, and no end before it is.

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
        """How long its source, or its choices are."""
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
