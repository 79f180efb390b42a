"""A slow sampler that is obviously right: one row at a time, plain Python and float64, each definition as it reads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from inference.sampling.rng import GOLDEN, mix, seed_key, signed
from inference.types import SamplingParams

CLOSE = 1e-3  # where two candidates' scores are closer than this, float32 may prefer the other


def noise_key(seed: int, position: int) -> int:
    return signed(mix(seed_key(seed) + (position + 1) * GOLDEN))


def gumbel(seed: int, position: int, token: int) -> float:
    word = mix((noise_key(seed, position) + (token + 1) * GOLDEN) & ((1 << 64) - 1))
    uniform = min((word >> 1 | 1) * 2.0**-63, 1 - 2.0**-24)
    return -math.log(-math.log1p(-uniform))


def processed(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], output: Sequence[int], ends: Sequence[int]
) -> list[float]:
    values = list(logits)
    for token, bias in params.logit_bias:
        values[token] += bias
    if params.allowed_token_ids:
        values = [v if i in params.allowed_token_ids else -math.inf for i, v in enumerate(values)]
    if len(output) < params.min_tokens:
        for token in ends:
            values[token] = -math.inf
    for token in {*prompt, *output}:
        values[token] = (
            values[token] / params.repetition_penalty
            if values[token] > 0
            else (values[token] * params.repetition_penalty)
        )
    for token, count in Counter(output).items():
        values[token] -= params.frequency_penalty * count + params.presence_penalty
    return values


def scores(values: Sequence[float], params: SamplingParams, seed: int, position: int) -> tuple[dict[int, float], bool]:
    """The score of each candidate, of which the largest wins, and whether the choice of candidates is a close one."""
    order = sorted((i for i, v in enumerate(values) if v > -math.inf), key=lambda i: (-values[i], i))
    if params.temperature == 0:
        return {i: values[i] for i in order}, False
    close = False
    if params.top_k and params.top_k < len(order):
        close = values[order[params.top_k - 1]] - values[order[params.top_k]] < CLOSE
        order = order[: params.top_k]
    best = values[order[0]]
    weights = [math.exp((values[i] - best) / params.temperature) for i in order]
    total = sum(weights)
    kept: list[int] = []
    before = 0.0
    for i, weight in zip(order, weights, strict=True):
        probability = weight / total
        close |= abs(before - params.top_p) < CLOSE / 10 or abs(weight - params.min_p) < CLOSE * weight
        if (before < params.top_p or params.top_p >= 1 or not kept) and weight >= params.min_p:
            kept.append(i)
        before += probability
    return {i: (values[i] - best) / params.temperature + gumbel(seed, position, i) for i in kept}, close


@dataclass(eq=False)
class Known:
    """A sequence: its parameters, and `tokens`, the prompt's and then the output's so far."""

    params: SamplingParams
    seed: int
    prompt: list[int]
    tokens: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]


def expected(logits: Sequence[float], known: Known, ends: Sequence[int] = ()) -> set[int]:
    """The tokens that may be chosen: one, or those whose scores are too close to call; none if any may."""
    values = processed(logits, known.params, known.prompt, known.output, ends)
    candidates, close = scores(values, known.params, known.seed, len(known.output))
    if close:
        return set()
    best = max(candidates.values())
    return {i for i, score in candidates.items() if score >= best - CLOSE}
