"""The draws: the largest of logit / temperature plus Gumbel noise is an exact sample, of all tokens or of some."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from inference.sampling.filters import surviving
from inference.sampling.rng import exponentials, uniforms
from inference.sampling.state import Gathered

CANDIDATES = 1024  # largest logits that are tried first: most rows need no others, and sorting all is slow
BLOCK = 1 << 18  # logits whose passes stay in the processor's cache
SLACK = 1e-3  # far above the rounding of the bound, far below the distance of most tokens from the winner


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines `numbers` of the logits, with their n parameters and noise `keys` [n, 1]."""

    numbers: list[int]
    params: Gathered
    keys: torch.Tensor


def draw(logits: torch.Tensor, peak: torch.Tensor, lines: Lines) -> torch.Tensor:
    """Return a token [n] for each of `lines` of `logits` [rows, vocabulary], whose largest are `peak` [rows, 1]."""
    vocabulary = torch.arange(logits.shape[1], device=logits.device)[None]
    block = max(1, BLOCK // logits.shape[1]) if logits.device.type == "cpu" else len(lines.numbers)
    tokens = []
    for begin in range(0, len(lines.numbers), block):
        numbers = lines.numbers[begin : begin + block]
        scaled = (logits[numbers] - peak[numbers]).div_(lines.params.temperature[begin : begin + block])
        tokens.append(_largest(scaled, lines.keys[begin : begin + block], vocabulary))
    return torch.cat(tokens)


def _largest(scaled: torch.Tensor, keys: torch.Tensor, vocabulary: torch.Tensor) -> torch.Tensor:
    """Return the token [n] with the largest `scaled` [n, vocabulary] plus noise; few logarithms are computed."""
    uniform = uniforms(keys, vocabulary)
    # Exp(1) noise is at least its uniform variate u, and log2(u) at least its float's bits as a number, less the bias:
    # so this is an upper bound of the score, at most 0.06 above it where u is small.
    bound = uniform.view(torch.int32).to(torch.float32)
    bound.mul_(-math.log(2) / 2**23).add_(127 * math.log(2)).add_(scaled)
    best = bound.argmax(1, keepdim=True)
    least = scaled.gather(1, best) - exponentials(keys, best).log_()
    lines, tokens = (bound >= least - SLACK).nonzero(as_tuple=True)
    scores = scaled[lines, tokens] - exponentials(keys[lines], tokens[:, None]).log_()[:, 0]
    highest = scores.new_full((len(keys),), float("-inf")).scatter_reduce_(0, lines, scores, "amax")
    won = scores == highest[lines]
    first = tokens.new_full((len(keys),), scaled.shape[1])
    return first.scatter_reduce_(0, lines[won], tokens[won], "amin")


def draw_filtered(logits: torch.Tensor, peak: torch.Tensor, lines: Lines) -> torch.Tensor:
    """Do the same under the lines' filters: among the largest candidates, or among all tokens where needed."""
    vocabulary = logits.shape[1]
    tokens = torch.empty(len(lines.numbers), dtype=torch.long, device=logits.device)
    rest = list(range(len(lines.numbers)))
    for count in (min(CANDIDATES, vocabulary), vocabulary):
        if not rest:
            break
        numbers = [lines.numbers[i] for i in rest]
        shifted = logits[numbers] - peak[numbers]
        temperature = lines.params.temperature[rest]
        values, ids = (
            torch.sort(shifted, stable=True, dim=1, descending=True)
            if count == vocabulary
            else shifted.topk(count, dim=1)
        )
        scaled = values / temperature
        mask, complete = surviving(
            scaled,
            torch.logsumexp(shifted / temperature, 1, keepdim=True),
            lines.params.top_k[rest],
            lines.params.top_p[rest],
            lines.params.min_p[rest],
        )
        race = (scaled - exponentials(lines.keys[rest], ids).log_()).masked_fill_(~mask, float("-inf"))
        winners = ids.gather(1, race.argmax(1, keepdim=True))[:, 0]
        done = complete.tolist() if count < vocabulary else [True] * len(rest)
        settled = [i for i, ok in enumerate(done) if ok]
        tokens[[rest[i] for i in settled]] = winners[settled]
        rest = [i for i, ok in zip(rest, done, strict=True) if not ok]
    return tokens
