"""Drawing a token of each row from its processed logits, with filters or without."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference.sampling.filters import surviving
from inference.sampling.passes import Passes
from inference.sampling.rng import exponentials
from inference.sampling.state import Gathered

CANDIDATES = 1024  # largest logits that are tried first: most rows need no others, and sorting all is slow


@dataclass(frozen=True, slots=True)
class Lines:
    """Rows to be drawn: `logits` [n, vocabulary], the largest of each, `peak` [n], their parameters and `keys` [n]."""

    logits: torch.Tensor
    peak: torch.Tensor
    params: Gathered
    keys: torch.Tensor

    def among(self, numbers: list[int]) -> Lines:
        """Return those with these numbers."""
        return Lines(self.logits[numbers], self.peak[numbers], self.params.among(numbers), self.keys[numbers])


def draw(passes: Passes, lines: Lines) -> torch.Tensor:
    """Return a token [n] for each line, from its whole distribution."""
    return passes.draw(lines.logits, lines.peak, lines.params.temperature, lines.keys)


def draw_filtered(passes: Passes, lines: Lines) -> torch.Tensor:
    """Return a token [n] for each line from what passes its filters, among the largest or, where needed, all tokens."""
    vocabulary = lines.logits.shape[1]
    tokens, complete = _draw_among(passes, lines, min(CANDIDATES, vocabulary))
    rest = [i for i, ok in enumerate(complete.tolist()) if not ok]
    if rest:
        tokens[rest] = _draw_among(passes, lines.among(rest), vocabulary)[0]
    return tokens


def _draw_among(passes: Passes, lines: Lines, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens [n] drawn among the `count` largest, and whether no other token could pass the filters."""
    params = lines.params
    values, ids = passes.largest(lines.logits, count)
    scaled = (values.float() - lines.peak[:, None]).div_(params.temperature[:, None])
    total = passes.log_sum_exp(lines.logits, lines.peak, params.temperature)[:, None]
    mask, complete = surviving(scaled, total, params.top_k[:, None], params.top_p[:, None], params.min_p[:, None])
    race = (scaled - exponentials(lines.keys[:, None], ids).log_()).masked_fill_(~mask, float("-inf"))
    return ids.gather(1, race.argmax(1, keepdim=True))[:, 0], complete
