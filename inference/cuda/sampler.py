"""Choosing tokens on the device without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from inference.core.step import Row, RowFailure
from inference.cuda.kernels.sample import sample
from inference.sampling.rng import noise_keys
from inference.sampling.sampler import Sampler
from inference.sampling.state import Admitted, SlotStates, sent
from inference.types import PositionLogprobs


@dataclass(frozen=True, slots=True)
class Choice:
    """The tokens int64 [rows] on the device, negative where a row has no finite logits; the rest is by row number."""

    tokens: torch.Tensor
    failures: dict[int, RowFailure] = field(default_factory=dict)
    logprobs: dict[int, PositionLogprobs] = field(default_factory=dict)


class DeviceSampler:
    """Samples the rows of one model's steps on a GPU.

    Rows with temperature, top-k, top-p and min-p alone are drawn by a kernel, and nothing is waited for. Only those
    with penalties, masks, guidance or log-probabilities too go the way of `general`, which waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._states = SlotStates(device)
        self.general = Sampler(device)
        self._device = device

    def sample(self, logits: torch.Tensor, rows: Sequence[Row]) -> Choice:
        """Choose the token of each row from `logits` [rows, vocabulary], which may be overwritten."""
        states = self._states.admit(rows)
        plain: list[int] = []
        others: list[int] = []
        for number, (row, state) in enumerate(zip(rows, states, strict=True)):
            (others if _needs_more(row, state) else plain).append(number)
        if not others:
            return Choice(self._draw(logits, rows))
        if not plain:
            sampled = self.general.sample(logits, rows)
            return Choice(sampled.tokens, sampled.failures, sampled.logprobs)
        places = sent(torch.tensor(plain + others), self._device)
        # First what nothing is waited for.
        drawn = self._draw(logits[places[: len(plain)]], [rows[number] for number in plain])
        sampled = self.general.sample(logits[places[len(plain) :]], [rows[number] for number in others])
        return Choice(
            torch.empty_like(places).index_copy_(0, places, torch.cat((drawn, sampled.tokens))),
            {others[number]: failure for number, failure in sampled.failures.items()},
            {others[number]: told for number, told in sampled.logprobs.items()},
        )

    def _draw(self, logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
        """Return the tokens of rows that need no more than the kernel."""
        both = torch.tensor([[row.slot for row in rows], [row.output_index for row in rows]])
        slots, positions = sent(both, self._device)
        params = self._states.gather(slots)
        tokens = torch.empty(len(rows), dtype=torch.long, device=self._device)
        sample(
            logits,
            tokens,
            temperature=params.temperature.contiguous(),
            top_k=params.top_k.clamp(max=logits.shape[1]).int(),
            top_p=params.top_p.contiguous(),
            min_p=params.min_p.contiguous(),
            keys=noise_keys(params.seed_keys, positions),
        )
        return tokens


def _needs_more(row: Row, state: Admitted) -> bool:
    return state.is_penalised or state.is_masked or row.grammar is not None or row.sampling.logprobs is not None
