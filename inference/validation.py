"""Bounds of a request's sampling: each is checked before the request enters an engine."""

from __future__ import annotations

import math
from collections.abc import Iterable

from inference.errors import InvalidRequestError
from inference.types import MAX_GUIDANCE_CHARACTERS, Guidance, GuidanceKind, SamplingParams

MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1000
MAX_STOP_IDS = 256
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_ALLOWED = 4096
MAX_LOGPROBS = 20
MAX_CHOICES = 16
MAX_HELD_LOGPROBS = 250_000  # of the answers that best_of chooses, which leave in one frame, some 22 bytes each
MAX_PENALTY = 2.0
MIN_REPETITION = 0.01  # a smaller one makes logits that are no numbers any more
MAX_REPETITION = 10.0
MAX_GUIDED_CHOICES = 4096
MAX_WHITESPACE_CHARACTERS = 256


def check_sampling(sampling: SamplingParams, vocabulary: int, ends: frozenset[int] = frozenset()) -> None:
    """Raise `InvalidRequestError` for the first field out of range; NaN fails each comparison.

    Token ids are below `vocabulary`; `ends` are the ids that end a generation by themselves.
    """
    p = sampling
    best_of = p.n if p.best_of is None else p.best_of
    for name, fits, way_out in (
        ("max_tokens", p.max_tokens is None or p.max_tokens >= 1, "at least 1"),
        ("temperature", 0.0 <= p.temperature < math.inf, "a number from 0"),
        ("top_p", 0.0 < p.top_p <= 1.0, "above 0 and at most 1"),
        ("top_k", p.top_k >= 0, "at least 0"),
        ("min_p", 0.0 <= p.min_p <= 1.0, "from 0 to 1"),
        # Each token's text is compared with each of them, in the step thread.
        (
            "stop",
            len(p.stop) <= MAX_STOPS and all(len(stop) <= MAX_STOP_CHARACTERS for stop in p.stop),
            f"at most {MAX_STOPS} strings of {MAX_STOP_CHARACTERS} characters",
        ),
        ("stop_token_ids", len(p.stop_token_ids) <= MAX_STOP_IDS, f"at most {MAX_STOP_IDS} ids"),
        (
            "repetition_penalty",
            MIN_REPETITION <= p.repetition_penalty <= MAX_REPETITION,
            f"from {MIN_REPETITION} to {MAX_REPETITION}",
        ),
        ("presence_penalty", abs(p.presence_penalty) <= MAX_PENALTY, f"from -{MAX_PENALTY} to {MAX_PENALTY}"),
        ("frequency_penalty", abs(p.frequency_penalty) <= MAX_PENALTY, f"from -{MAX_PENALTY} to {MAX_PENALTY}"),
        (
            "logit_bias",
            len(p.logit_bias) <= MAX_BIASES and all(abs(bias) <= MAX_BIAS for _, bias in p.logit_bias),
            f"at most {MAX_BIASES} values from -{MAX_BIAS} to {MAX_BIAS}",
        ),
        ("allowed_token_ids", len(p.allowed_token_ids) <= MAX_ALLOWED, f"at most {MAX_ALLOWED} ids"),
        ("min_tokens", 0 <= p.min_tokens <= (math.inf if p.max_tokens is None else p.max_tokens), "0 to max_tokens"),
        ("logprobs", p.logprobs is None or 0 <= p.logprobs <= MAX_LOGPROBS, f"0 to {MAX_LOGPROBS}"),
        (
            "prompt_logprobs",
            p.prompt_logprobs is None or 0 <= p.prompt_logprobs <= MAX_LOGPROBS,
            f"0 to {MAX_LOGPROBS}",
        ),
        ("n", 1 <= p.n <= MAX_CHOICES, f"1 to {MAX_CHOICES}"),
        ("best_of", p.n <= best_of <= MAX_CHOICES, f"n to {MAX_CHOICES}"),
    ):
        if not fits:
            raise InvalidRequestError(f"{name} is out of range: it must be {way_out}", param=name)
    biased = [token for token, _ in p.logit_bias]
    for name, ids in (
        ("stop_token_ids", p.stop_token_ids),
        ("logit_bias", biased),
        ("allowed_token_ids", p.allowed_token_ids),
    ):
        check_ids(ids, vocabulary, name)
    for name, ids in (("logit_bias", biased), ("allowed_token_ids", p.allowed_token_ids)):
        if len(set(ids)) != len(ids):
            raise InvalidRequestError(f"{name} names a token id twice", param=name)
    ends = frozenset(p.stop_token_ids).union(() if p.ignore_eos else ends)
    if p.min_tokens and p.allowed_token_ids and ends.issuperset(p.allowed_token_ids):
        raise InvalidRequestError(
            "allowed_token_ids has only tokens that end the answer, which min_tokens forbids", param="allowed_token_ids"
        )

    if p.guidance is not None:
        check_guidance(p.guidance)
        if p.ignore_eos:
            raise InvalidRequestError(
                "ignore_eos doesn't go with guidance, whose end is the answer's end", param="ignore_eos"
            )


def check_held_back(sampling: SamplingParams, max_output: int) -> None:
    """Raise `InvalidRequestError` where the answers that best_of chooses, of `max_output` tokens each, may have more
    log-probabilities than are held back for one request.
    """
    p = sampling
    if p.logprobs is None or p.answers <= p.n:
        return
    most = p.n * max_output * (p.logprobs + 1)
    if most > MAX_HELD_LOGPROBS:
        raise InvalidRequestError(
            f"best_of: {p.n} answers of {max_output} tokens with {p.logprobs + 1} log-probabilities each may have "
            f"{most} of them, and at most {MAX_HELD_LOGPROBS} are held back until the best are known: "
            "lower max_tokens, logprobs or n",
            param="best_of",
        )


def check_guidance(guidance: Guidance) -> None:
    """Raise `InvalidRequestError` for a guidance that is incomplete or too large to be compiled."""
    check_guidance_size(guidance.characters, guidance.param)
    if len(guidance.choices) > MAX_GUIDED_CHOICES:
        message = f"'{guidance.param}' is too large: it may have {MAX_GUIDED_CHOICES} choices"
        raise InvalidRequestError(message, code="guidance_too_complex", param=guidance.param)
    is_choice, is_bare = guidance.kind is GuidanceKind.CHOICE, guidance.kind is GuidanceKind.JSON_OBJECT
    for fits, message in (
        (bool(guidance.choices) == is_choice and all(guidance.choices), "choices have at least one character each"),
        (len(set(guidance.choices)) == len(guidance.choices), "two choices are the same"),
        (bool(guidance.source) != (is_choice or is_bare), "it is empty"),
        (len(guidance.whitespace or "") <= MAX_WHITESPACE_CHARACTERS, "the pattern of white space is too long"),
    ):
        if not fits:
            raise InvalidRequestError(f"'{guidance.param}': {message}", code="guidance_invalid", param=guidance.param)


def check_guidance_size(characters: int, param: str) -> None:
    """Raise `InvalidRequestError` for more characters than an answer can be held to; `param` is the client's field."""
    if characters > MAX_GUIDANCE_CHARACTERS:
        message = f"'{param}' is too large: an answer is held to at most {MAX_GUIDANCE_CHARACTERS} characters"
        raise InvalidRequestError(message, code="guidance_too_complex", param=param)


def check_ids(ids: Iterable[int], vocabulary: int, param: str) -> None:
    """Raise `InvalidRequestError` for the first id that is not in the model's vocabulary."""
    for token in ids:
        if not 0 <= token < vocabulary:
            raise InvalidRequestError(f"token id {token} is not in the model's vocabulary of {vocabulary}", param=param)
