"""The passes over logits by the CPU's kernels, on float32 and bfloat16."""

from __future__ import annotations

import torch

from inference.kernels import sampler as kernels
from inference.kernels.library import Library
from inference.sampling.passes import Lines


class CPUPasses:
    """Implements `Passes`."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def read(self, logits: torch.Tensor) -> torch.Tensor:
        logits = logits if logits.dtype is torch.bfloat16 else logits.float()
        return logits.contiguous()

    def argmax(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return kernels.argmax(self._library, logits)

    def rule_out(self, logits: torch.Tensor, numbers: torch.Tensor, masks: torch.Tensor) -> None:
        kernels.rule_out(self._library, logits, numbers, masks)

    def draw(self, lines: Lines) -> torch.Tensor:
        inverse = lines.params.temperature.reciprocal()
        return kernels.gumbel_argmax(self._library, lines.logits, lines.peak, inverse, lines.keys)

    def draw_filtered(self, lines: Lines) -> torch.Tensor:
        params = lines.params
        return kernels.filtered_argmax(
            self._library,
            lines.logits,
            lines.peak,
            params.temperature.reciprocal(),
            lines.keys,
            top_k=params.top_k.contiguous(),
            top_p=params.top_p.contiguous(),
            min_p=params.min_p.contiguous(),
        )

    def log_sum_exp(self, logits: torch.Tensor, peak: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
        return kernels.log_sum_exp(self._library, logits, peak.contiguous(), temperature.reciprocal())

    def largest(self, logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return kernels.top_candidates(self._library, logits, count)

    def count_above(self, logits: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
        return kernels.count_above(self._library, logits, bounds)
