"""Random requests that ask for all that sampling offers, and what an engine says to them, answer by answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from inference.core.grammar import Grammar
from inference.core.output import Output
from inference.guidance.grammars import Grammars
from inference.guidance.thinking import ThinkingGrammar, Thought
from inference.local.engine import LocalEngine
from inference.text.byte_tokenizer import VOCABULARY, ByteTokenizer
from inference.text.prepare import Prompt
from inference.types import (
    Finished,
    FinishReason,
    GenerationRequest,
    Guidance,
    GuidanceKind,
    PositionLogprobs,
    SamplingParams,
    seed_of,
)


def random_sampling(rng: random.Random, vocabulary: int) -> SamplingParams:
    """Return parameters of which each is at its neutral value more often than not."""

    def maybe(value: Any, neutral: Any, chance: float = 0.25) -> Any:
        return value if rng.random() < chance else neutral

    answers = maybe(rng.choice([2, 3]), 1, 0.15)
    few = tuple(rng.sample(range(32, 127), rng.choice([2, 3, 8])))  # so that the text repeats itself
    return SamplingParams(
        temperature=rng.choice([0.0, 0.0, 0.4, 1.0, 2.5]),
        top_k=maybe(rng.choice([1, 7, 50]), 0),
        top_p=maybe(rng.choice([0.3, 0.95]), 1.0),
        min_p=maybe(rng.choice([0.01, 0.2]), 0.0),
        seed=rng.getrandbits(64),
        repetition_penalty=maybe(rng.choice([0.8, 1.3]), 1.0),
        presence_penalty=maybe(rng.uniform(-1, 2), 0.0),
        frequency_penalty=maybe(rng.uniform(-0.5, 1), 0.0),
        logit_bias=maybe(tuple((token, rng.uniform(-4, 4)) for token in rng.sample(range(vocabulary), 4)), ()),
        allowed_token_ids=maybe(few, ()),
        stop=maybe((chr(few[0]) + chr(few[1]), chr(few[-1]) * 2), ()),
        stop_token_ids=maybe(tuple(set(rng.sample(range(vocabulary), 8)) - set(few)), ()),
        min_tokens=maybe(rng.randint(1, 6), 0),
        # Of several answers tokens are told by their log-probabilities only.
        logprobs=rng.choice([0, 3]) if answers > 1 else maybe(rng.choice([0, 1, 4]), None, 0.5),
        prompt_logprobs=maybe(rng.choice([0, 2]), None, 0.1),
        n=answers,
        best_of=answers + 1 if answers > 1 and rng.random() < 0.3 else None,
    )


def random_ids(rng: random.Random, vocabulary: int, longest: int, shared: list[int]) -> tuple[int, ...]:
    """Return up to `longest` tokens: often with the start of `shared` before them, often repeating themselves."""
    own = [rng.randrange(3, vocabulary) for _ in range(rng.randint(1, max(1, longest // 2)))]
    own *= rng.choice([1, 1, 4])
    start = shared[: rng.choice([0, 16, 40])]
    return tuple([*start, *own][:longest])


@dataclass
class Answer:
    """One answer: its tokens, log-probabilities and text, and how it ended."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    text: str = ""
    ended: FinishReason | None = None
    stop: str | int | None = None

    def is_start_of(self, other: Answer) -> bool:
        """Whether `other` is this answer or goes on behind it.

        Where this one was cut its text may end within a character, or with the start of a stop string of `other`.
        """
        text = self.text.rstrip("\ufffd")
        is_cut_in_stop = other.ended is FinishReason.STOP and text.startswith(other.text)
        return (
            self.tokens == other.tokens[: len(self.tokens)]
            and self.logprobs == other.logprobs[: len(self.logprobs)]
            and (other.text.startswith(text) or is_cut_in_stop)
        )


@dataclass
class Told:
    """What an engine said to one request."""

    answers: dict[int, Answer] = field(default_factory=dict)
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    finished: Finished | None = None

    def add(self, output: Output) -> None:
        """Take one more output."""
        assert self.finished is None, "something was said after the last word"
        self.finished = output.finished
        self.prompt_logprobs += output.prompt_logprobs
        tokens = output.tokens or tuple(entry.chosen.token for entry in output.logprobs)
        if tokens or output.text or output.ended or (output.finished and not self.answers):
            answer = self.answers.setdefault(output.index, Answer())
            answer.tokens += tokens
            answer.logprobs += output.logprobs
            answer.text += output.text
            answer.ended, answer.stop = output.ended, output.stop
        if output.finished is not None and self.answers.keys() == {0} and self.answers[0].ended is None:
            self.answers[0].ended, self.answers[0].stop = output.finished.reason, output.finished.stop

    @property
    def outcome(self) -> tuple[Any, ...]:
        """All of it but its times, and of the usage what doesn't depend on the cache."""
        end = self.finished
        assert end is not None
        return self.answers, self.prompt_logprobs, end.usage.prompt, end.usage.output


def alone(engine: LocalEngine, prompt: Prompt) -> Told:
    """Return what `engine`, which has nothing else to do, says to a request with one answer or with several.

    Each of several answers is asked for alone, with its own seed.
    """
    request, sampling = prompt.request, prompt.request.sampling
    if sampling.answers == 1 or sampling.best_of is not None:
        return _run(engine, prompt)
    assert sampling.seed is not None
    told = Told()
    output = 0
    for index in range(sampling.n):
        own = replace(
            sampling,
            n=1,
            seed=seed_of(sampling.seed, index),
            prompt_logprobs=None if index else sampling.prompt_logprobs,
        )
        single = replace(prompt, request=replace(request, id=f"{request.id}-{index}", sampling=own))
        one = _run(engine, single)
        assert one.finished is not None
        output += one.finished.usage.output
        told.answers[index] = one.answers[0]
        told.prompt_logprobs += one.prompt_logprobs
        told.finished = one.finished
    assert told.finished is not None
    told.finished = replace(told.finished, usage=replace(told.finished.usage, output=output))
    return told


def _run(engine: LocalEngine, prompt: Prompt) -> Told:
    told = Told()
    engine.submit(prompt)
    while engine.unfinished:
        for output in engine.step():
            told.add(output)
    return told


def some_grammars(vocabulary: int) -> list[Grammar]:
    """Return grammars of ASCII text for a model; its tokenizer's last token ends what they permit, nothing else. One
    has a short thought before its text, between markers of several tokens.

    None where llguidance isn't installed, as on the machines with a GPU.
    """
    if find_spec("llguidance") is None:
        return []
    ends = frozenset({min(vocabulary, VOCABULARY) - 1})
    tokenizer = ByteTokenizer()
    grammars = Grammars(tokenizer.serialized, vocabulary=vocabulary, ends=ends)
    found: list[Grammar] = [
        grammars.compiled(Guidance(kind, source))
        for kind, source in (
            (GuidanceKind.REGEX, "[a-f]{1,6}( [0-9]{2})*"),
            (GuidanceKind.LARK, 'start: item ("," item)*\nitem: "<" /[ -;?-~]{0,4}/ ">"'),
            (GuidanceKind.JSON_SCHEMA, '{"type": "array", "items": {"type": ["integer", "string"]}}'),
        )
    ]
    begin, end = tokenizer.marker("<a>"), tokenizer.marker("</a>")
    thought = Thought(begin, end, is_open=False, budget=3, ends=ends, vocabulary=vocabulary)
    return [*found, ThinkingGrammar(thought, found[0])]


def random_prompt(
    rng: random.Random,
    name: str,
    vocabulary: int,
    context: int,
    shared: list[int],
    *,
    grammars: Sequence[Grammar] = (),
) -> Prompt:
    """Return a request of one of three tenants whose prompt and output fit in `context` tokens.

    Its cache domain is its tenant's or one that all share. Some are guided by one of `grammars`, and then allowed all
    tokens.
    """
    most = rng.randint(1, 20)
    ids = random_ids(rng, vocabulary, rng.choice([8, 40, 120]), shared)[: context - most]
    sampling = random_sampling(rng, vocabulary)
    grammar = rng.choice(grammars) if grammars and rng.random() < 0.3 else None
    if grammar is not None:
        sampling = replace(sampling, allowed_token_ids=())
    tenant = rng.choice("abc")
    request = GenerationRequest(
        name,
        tenant=tenant,
        domain=rng.choice([tenant, "shared"]),
        weight=rng.choice([1000, 3000]),
        priority=rng.randint(0, 1),
        sampling=replace(sampling, max_tokens=most, min_tokens=min(sampling.min_tokens, most)),
    )
    return Prompt(request, most, ids=ids, grammar=grammar)
