"""The passes over logits by torch's operators, on any device."""

from __future__ import annotations

import math

import torch

from inference.sampling.filters import surviving
from inference.sampling.passes import Lines
from inference.sampling.rng import exponentials, uniforms

BLOCK = 1 << 18  # logits whose passes stay in the processor's cache
CANDIDATES = 1024  # largest logits that filters try first: most rows need no others, and sorting all is slow
SLACK = 1e-3  # far above the rounding of the bound, far below the distance of most tokens from the winner


class TorchPasses:
    """Implements `Passes`."""

    def read(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.float()

    def argmax(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = logits.argmax(1)
        return logits.gather(1, tokens[:, None])[:, 0], tokens

    def rule_out(self, logits: torch.Tensor, numbers: torch.Tensor, masks: torch.Tensor) -> None:
        device, width = logits.device, logits.shape[1]
        bits = masks.to(device)[:, :, None] >> torch.arange(32, dtype=torch.int32, device=device) & 1
        permitted = bits.flatten(1).bool()[:, :width]
        lines = numbers.to(device)
        logits[lines, : permitted.shape[1]] = logits[lines, : permitted.shape[1]].masked_fill(~permitted, float("-inf"))
        logits[lines, permitted.shape[1] :] = float("-inf")

    def draw(self, lines: Lines) -> torch.Tensor:
        logits, temperature = lines.logits, lines.params.temperature
        vocabulary = torch.arange(logits.shape[1], device=logits.device)[None]
        block = max(1, BLOCK // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
        tokens = []
        for begin in range(0, len(logits), block):
            part = slice(begin, begin + block)
            scaled = (logits[part] - lines.peak[part, None]).div_(temperature[part, None])
            tokens.append(_race(scaled, lines.keys[part, None], vocabulary))
        return torch.cat(tokens)

    def draw_filtered(self, lines: Lines) -> torch.Tensor:
        vocabulary = lines.logits.shape[1]
        tokens, complete = self._draw_among(lines, min(CANDIDATES, vocabulary))
        rest = [i for i, ok in enumerate(complete.tolist()) if not ok]
        if rest:
            tokens[rest] = self._draw_among(lines.among(rest), vocabulary)[0]
        return tokens

    def _draw_among(self, lines: Lines, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens [n] drawn among the `count` largest, and whether no other token could pass the filters."""
        params = lines.params
        values, ids = self.largest(lines.logits, count)
        scaled = (values - lines.peak[:, None]).div_(params.temperature[:, None])
        total = self.log_sum_exp(lines.logits, lines.peak, params.temperature)[:, None]
        mask, complete = surviving(scaled, total, params.top_k[:, None], params.top_p[:, None], params.min_p[:, None])
        race = (scaled - exponentials(lines.keys[:, None], ids).log_()).masked_fill_(~mask, float("-inf"))
        return ids.gather(1, race.argmax(1, keepdim=True))[:, 0], complete

    def log_sum_exp(self, logits: torch.Tensor, peak: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp((logits - peak[:, None]).div_(temperature[:, None]), 1)

    def largest(self, logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        if count == logits.shape[1]:
            values, tokens = torch.sort(logits, stable=True, dim=1, descending=True)
            return values, tokens
        return logits.topk(count, 1)

    def count_above(self, logits: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
        return (logits > bounds[:, None]).sum(1)


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
