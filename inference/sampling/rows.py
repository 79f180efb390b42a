"""The sampling parameters of one step's rows as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inference.core.step import Row
from inference.sampling.rng import noise_key


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Sampling parameters of n rows.

    Each row number is in one of `greedy` (temperature 0), `unfiltered` and `filtered`. `temperature`, `top_p` and
    `min_p` are float32 [n, 1], `top_k` int64 [n, 1] (0: off), `keys` int64 [n, 1] (the noise keys).
    """

    greedy: tuple[int, ...]
    unfiltered: tuple[int, ...]
    filtered: tuple[int, ...]
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    keys: torch.Tensor

    @classmethod
    def of(cls, rows: Sequence[Row]) -> SamplingRows:
        """Return the parameters of `rows`."""
        params = [row.sampling for row in rows]
        numbers = range(len(rows))
        greedy = [p.temperature <= 0 for p in params]
        filters = [p.top_k > 0 or p.top_p < 1 or p.min_p > 0 for p in params]
        return cls(
            greedy=tuple(i for i in numbers if greedy[i]),
            unfiltered=tuple(i for i in numbers if not greedy[i] and not filters[i]),
            filtered=tuple(i for i in numbers if not greedy[i] and filters[i]),
            temperature=torch.tensor([[p.temperature] for p in params], dtype=torch.float32),
            top_k=torch.tensor([[max(p.top_k, 0)] for p in params], dtype=torch.long),
            top_p=torch.tensor([[p.top_p] for p in params], dtype=torch.float32),
            min_p=torch.tensor([[p.min_p] for p in params], dtype=torch.float32),
            keys=torch.tensor([[noise_key(row.seed, row.output_index)] for row in rows], dtype=torch.long),
        )
