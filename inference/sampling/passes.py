"""The passes over all logits of a step, by the CPU's kernels or by torch's operators."""

from __future__ import annotations

import math
from typing import Protocol

import torch

from inference.kernels.cpu import sampler as kernels
from inference.kernels.cpu.library import Library
from inference.sampling.rng import exponentials, uniforms

BLOCK = 1 << 18  # logits whose passes stay in the processor's cache
SLACK = 1e-3  # far above the rounding of the bound, far below the distance of most tokens from the winner


class Passes(Protocol):
    """Functions of `logits` [n, vocabulary], contiguous; each result of a line depends on that line alone."""

    def read(self, logits: torch.Tensor) -> torch.Tensor:
        """Return `logits` in a dtype that these passes compute in."""
        ...

    def argmax(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the largest logits (float32 [n]) and the first tokens with them (int64 [n]); NaN is the largest."""
        ...

    def draw(
        self, logits: torch.Tensor, peak: torch.Tensor, temperature: torch.Tensor, keys: torch.Tensor
    ) -> torch.Tensor:
        """Return a token [n] drawn from the softmax of logits / temperature, by the noise `keys`; all are [n].

        `peak` has the largest logits. The token with the largest scaled logit less the logarithm of its exponential
        variate wins, the first of equals.
        """
        ...

    def log_sum_exp(self, logits: torch.Tensor, peak: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
        """Return log Σ exp((logit - peak) / temperature) of each line (float32 [n])."""
        ...

    def largest(self, logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the `count` largest logits in descending order (float32 [n, count]) and their tokens."""
        ...


class TorchPasses:
    """The passes by torch's operators, on any device."""

    def read(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.float()

    def argmax(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = logits.argmax(1)
        return logits.gather(1, tokens[:, None])[:, 0], tokens

    def draw(
        self, logits: torch.Tensor, peak: torch.Tensor, temperature: torch.Tensor, keys: torch.Tensor
    ) -> torch.Tensor:
        vocabulary = torch.arange(logits.shape[1], device=logits.device)[None]
        block = max(1, BLOCK // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
        tokens = []
        for begin in range(0, len(logits), block):
            part = slice(begin, begin + block)
            scaled = (logits[part] - peak[part, None]).div_(temperature[part, None])
            tokens.append(_race(scaled, keys[part, None], vocabulary))
        return torch.cat(tokens)

    def log_sum_exp(self, logits: torch.Tensor, peak: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp((logits - peak[:, None]).div_(temperature[:, None]), 1)

    def largest(self, logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        if count == logits.shape[1]:
            values, tokens = torch.sort(logits, stable=True, dim=1, descending=True)
            return values, tokens
        return logits.topk(count, 1)


def _race(scaled: torch.Tensor, keys: torch.Tensor, vocabulary: torch.Tensor) -> torch.Tensor:
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


class CPUPasses:
    """The passes by the CPU's kernels, on float32 and bfloat16."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def read(self, logits: torch.Tensor) -> torch.Tensor:
        logits = logits if logits.dtype is torch.bfloat16 else logits.float()
        return logits.contiguous()

    def argmax(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return kernels.argmax(self._library, logits)

    def draw(
        self, logits: torch.Tensor, peak: torch.Tensor, temperature: torch.Tensor, keys: torch.Tensor
    ) -> torch.Tensor:
        return kernels.gumbel_argmax(self._library, logits, temperature.reciprocal(), keys.contiguous())

    def log_sum_exp(self, logits: torch.Tensor, peak: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
        inverse = temperature.reciprocal()
        sums = kernels.log_sum_exp(self._library, logits, inverse) - peak * inverse
        # Where the scaled peak is past float32 there is nothing beside it.
        return torch.where(torch.isfinite(sums), sums, 0.0).clamp_(min=0.0)

    def largest(self, logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return kernels.top_candidates(self._library, logits, count)
