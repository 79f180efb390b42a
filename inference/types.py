"""What crosses the engine seam: requests, events and usage, as plain immutable data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from inference.messages import Message
from inference.tools import Tools
from inference.values import value


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # end-of-sequence token, stop string or stop id
    LENGTH = "length"  # max_tokens or the model's context
    ALLOWANCE = "allowance"  # the output tokens that the hold bought are used up and no more will come
    CANCELLED = "cancelled"  # cancel(), the end of its gateway's session, or a drain's deadline
    ERROR = "error"  # this row failed, or its worker was lost; `Finished.error` says which


class Kind(StrEnum):
    """What a request asks of a model."""

    CHAT = "chat"
    EMBEDDING = "embedding"
    SCORE = "score"  # how well texts answer or match others, by a model that reads both at once


@value
class Usage:
    """Numbers of tokens by disjoint class; 0 means none, never unknown.

    ``input`` was computed, ``cache_read`` came from the prefix cache (their sum is the prompt); ``output`` and
    ``reasoning`` were generated (their sum is the completion, the token that completed a stop string included).
    """

    input: int = 0
    cache_read: int = 0
    output: int = 0
    reasoning: int = 0

    @property
    def prompt(self) -> int:
        """Prompt tokens, cached or computed."""
        return self.input + self.cache_read

    @property
    def completion(self) -> int:
        """Generated tokens."""
        return self.output + self.reasoning

    def classes(self) -> dict[str, int]:
        """Return the counts by class name, without those that are 0."""
        counts = {
            "input": self.input,
            "cache_read": self.cache_read,
            "output": self.output,
            "reasoning": self.reasoning,
        }
        return {name: count for name, count in counts.items() if count}


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
    `param` is what the client calls the field, for errors; it makes no other guidance.
    """

    kind: GuidanceKind
    source: str = ""
    choices: tuple[str, ...] = ()
    whitespace: str | None = None
    param: str = field(default="guidance", compare=False)

    @property
    def characters(self) -> int:
        """How long its source, or its choices are."""
        return len(self.source) + sum(map(len, self.choices))


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
    count, and nothing is sent before all have ended. Behind `thinking_tokens` of thought the marker that ends it is
    forced; 0 asks for none (None: as the model likes). A model that doesn't think refuses such a bound, unless it
    needn't (`must_think` False).
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
    must_think: bool = True

    @property
    def demands_thought(self) -> bool:
        """Whether a model that doesn't think has to refuse the request."""
        return self.must_think and bool(self.thinking_tokens)

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


class TokenLogprob(NamedTuple):
    """A token, its natural log-probability under the model's own distribution, and its text alone.

    The text may be U+FFFD, where a character has several tokens.
    """

    token: int
    logprob: float
    text: str = ""


class PositionLogprobs(NamedTuple):
    """The token that stands at one position, its rank there (1: the most probable), and the `top` most probable ones.

    The distribution is that of the model's raw logits: before bias, masks, penalties, temperature and filters.
    """

    chosen: TokenLogprob
    rank: int
    top: tuple[TokenLogprob, ...] = ()


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
    unbegun and free of charge. A chat carries `messages`, with the `tools` that the model may use, or a `prompt` (text
    or token ids) that no chat template is applied to; an embedding request `inputs` (texts or token ids) and whether a
    longer input than the model takes is cut (`truncate`) or refused. `adapter` names the weights that are added to the
    model's for a chat ("": none). A score request pairs each of its `inputs`, which are texts, with the query of its
    number, or all with the only one.
    """

    id: str
    tenant: str
    domain: str
    kind: Kind = Kind.CHAT
    weight: int = 1000
    messages: tuple[Message, ...] = ()
    tools: Tools | None = None
    prompt: str | tuple[int, ...] | None = None
    inputs: tuple[str | tuple[int, ...], ...] = ()
    queries: tuple[str, ...] = ()
    truncate: bool = False
    sampling: SamplingParams = field(default_factory=SamplingParams)
    resumed: Resumed | None = None
    band: int = 0
    priority: int = 0
    queue_seconds: float = 0.0
    adapter: str = ""


@value
class Prepared:
    """A request that the engine has tokenised: `prompt_tokens` of prompt (for embeddings: over all inputs).

    `exact` is False where the count is an estimate: credit is held for 5 % more, and no more than that is charged.
    `max_output` is the most tokens that the request may generate: its
    max_tokens, or what the context leaves. The token ids stay in the worker, for 30 s.
    """

    request: GenerationRequest
    prompt_tokens: int
    max_output: int
    exact: bool = True

    @property
    def most_prompt(self) -> int:
        """The most prompt tokens that may be charged for."""
        return self.prompt_tokens if self.exact else -(-self.prompt_tokens * 21 // 20)


class Tokens(NamedTuple):
    """The token ids of a prompt and, where they were asked for, the tokens as the vocabulary writes them."""

    ids: tuple[int, ...]
    texts: tuple[str, ...] = ()


@value
class Started:
    """The request was admitted: `cached_tokens` of its prompt come from the prefix cache (fixed from here on).

    `seed` is the one that its noise is drawn with, None where the engine doesn't say.
    """

    cached_tokens: int
    seed: int | None = None


class CallPiece(NamedTuple):
    """A piece of a function call: the first of each call has its `id` and `name`, all have more of its `arguments`."""

    id: str = ""
    name: str = ""
    arguments: str = ""


class Told(NamedTuple):
    """A piece of an answer that is one of these: text, reasoning, or pieces of calls."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()


@value
class Delta:
    """New text, and the usage so far.

    The text may be empty: an incomplete character, or text that may become a stop string, is held back. `tokens` are
    the new tokens, none where the engine doesn't say: then a request can't go on elsewhere (`Resumed`).

    Of several answers (`n`) this is the one with number `index`; `ended` is set in each one's last. If they were asked
    for, `logprobs` has one entry for each new token of the text, and `prompt_logprobs` one for each of the prompt's
    next tokens, from the second on.

    `reasoning` is what the model thought before the text, and `calls` are pieces of the function calls behind it, where
    the engine tells them apart from it.
    """

    text: str
    usage: Usage
    tokens: tuple[int, ...] = ()
    index: int = 0
    ended: FinishReason | None = None
    logprobs: tuple[PositionLogprobs, ...] = ()
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it is text of the only answer and nothing else."""
        return not (self.logprobs or self.prompt_logprobs or self.index or self.ended or self.reasoning or self.calls)

    @property
    def is_thought(self) -> bool:
        """Whether it is reasoning of the only answer and nothing else."""
        return bool(self.reasoning) and not (
            self.text or self.logprobs or self.prompt_logprobs or self.index or self.ended or self.calls
        )


@value
class Vector:
    """The embedding of input number `index`, or its score alone: little-endian float32."""

    index: int
    data: bytes


@value
class EngineFault:
    """An error that ended a request: a stable `code`, a sentence for the client, and whether trying again may help.

    `param` names the request's field that no engine can go on with; None where the request is not to blame.
    """

    code: str
    message: str
    retryable: bool = False
    param: str | None = None


@value
class Finished:
    """The one last event of a request, with its final usage.

    `stop` is the stop string or id that ended it. `exact` is False when the worker was lost and `usage` is only the
    last one it reported. With `is_estimate` that usage, too, is only counted from what arrived, since a foreign engine
    hadn't said it. `queued_ms`, `prefill_ms` and `decode_ms` are the worker's own times. Of the waits from one token
    to the next, half were at most `gap_ms`, and all but one in a hundred `gap_p99_ms`.
    """

    reason: FinishReason
    usage: Usage
    error: EngineFault | None = None
    stop: str | int | None = None
    exact: bool = True
    is_estimate: bool = False
    queued_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    gap_ms: float = 0.0
    gap_p99_ms: float = 0.0


Event = Started | Delta | Vector | Finished


@value
class Running:
    """Evidence: the request is waiting or running."""

    usage: Usage


@value
class NothingRan:
    """Evidence: no forward pass was begun for the request, and none ever will be (a later Submit is refused)."""


@value
class Lost:
    """Evidence: the request was begun, and its worker ended before it finished."""


Evidence = Finished | Running | NothingRan | Lost


class Feature(StrEnum):
    """What a model can do in chats beside answering in text."""

    TOOLS = "tools"
    REASONING = "reasoning"  # its thought stands apart from its answer, and can be bounded
    STRUCTURED_OUTPUTS = "structured_outputs"


@value
class EngineInfo:
    """What a deployment's engine can do, as its worker announced it.

    `max_context` bounds prompt and output together, `max_input` one prompt or one embedding input, both in tokens.
    `revision` identifies the settings that it was loaded with. `details` are texts for operators (dtype, size of the
    K/V cache, how the model was proved) and may name paths.
    With `nests_vectors` the first dimensions of an embedding, made one long again, are a shorter embedding.
    An engine that can't extend (`can_extend`) generates at most the allowance that a request begins with. With
    `shares_prefixes` requests of different domains share cached prefixes, as their operator has accepted. `features`
    are those that are known, and `max_output` bounds one answer, where the context doesn't alone (0).
    """

    deployment: str
    model: str
    kinds: frozenset[Kind]
    max_context: int
    max_input: int
    block_size: int = 16
    kv_blocks: int = 0
    vector_width: int = 0
    revision: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    can_extend: bool = True
    shares_prefixes: bool = False
    features: frozenset[Feature] = frozenset()
    max_output: int = 0
    nests_vectors: bool = False


LOADING = "loading"  # `Health.reason` while the model is being loaded


@value
class Work:
    """What an engine did since it was loaded.

    `rows` is the sum over all steps, `seconds` what they took, `prefill_seconds` the part of that for prompts.
    `prompt_tokens` were computed, `cached_tokens` of prompts taken from the prefix cache, `output_tokens` generated.
    `preemptions` counts by cause; `tenants` are the device-seconds of those that had most.
    """

    steps: int = 0
    rows: int = 0
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: Mapping[str, int] = field(default_factory=dict)
    tenants: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: Work) -> Work:
        """What two schedulers of one engine, or two replicas, did together."""
        return Work(
            self.steps + other.steps,
            self.rows + other.rows,
            self.seconds + other.seconds,
            self.prefill_seconds + other.prefill_seconds,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            Counter(self.preemptions) + Counter(other.preemptions),
            {name: self.tenants.get(name, 0) + other.tenants.get(name, 0) for name in {*self.tenants, *other.tenants}},
        )


@value
class Health:
    """A deployment's state now. It takes requests when `ready`; otherwise `reason` is why not.

    `reason` is fit for clients; `detail` is for operators and may name paths. `running` and `waiting` count requests,
    `kv_used` is the part of the KV blocks in use and `kv_cached` the part that only keeps prefixes (0 to 1), `steps`
    counts since loading, and `work` tells what those did where the engine is ours. `revision` identifies the
    settings that the state belongs to.
    """

    ready: bool
    reason: str = ""
    running: int = 0
    waiting: int = 0
    kv_used: float = 0.0
    steps: int = 0
    draining: bool = False
    detail: str = ""
    revision: str = ""
    kv_cached: float = 0.0
    work: Work | None = None
