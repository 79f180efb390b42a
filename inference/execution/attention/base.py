"""The seam of attention: what every backend is given for a step, and what a model's layers call.

Kernels in C, Triton and plain torch share one calling convention, the tensors of `AttentionInputs`. A backend is made
for one cache; for each step it is given the inputs, prepares what it needs beyond them, and then stores and attends
layer by layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from inference.execution.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Where the K/V of a step's T tokens, which are packed row by row, are stored and read; on the cache's device.

    Row r has the tokens `begins[r]` … `begins[r + 1]` - 1 (`begins` int32 [rows + 1]); with them it has `lengths[r]`
    keys (int32 [rows]), in the blocks `tables[slots[r]]` (`slots` int32 [rows], `tables` int32 [slots, width], 0 past a
    row's own blocks). The K/V of token t belong at `places[t]` = block · block_size + offset (int64 [T]); -1: nowhere.
    `host_begins`, `host_lengths` and `host_slots` are the same numbers on the host. All are valid until the next step
    is packed.
    """

    begins: torch.Tensor
    lengths: torch.Tensor
    slots: torch.Tensor
    tables: torch.Tensor
    places: torch.Tensor
    host_begins: npt.NDArray[np.int32]
    host_lengths: npt.NDArray[np.int32]
    host_slots: npt.NDArray[np.int32]


class Attention(ABC):
    """One model's attention over `cache`, for steps of up to `max_rows` rows with up to `max_blocks` blocks each.

    Steps come in order, on one thread. `name` is for operators; `exact` is True when a row's result has the same bits
    whatever else is in its batch, and however its tokens are divided into steps.
    """

    name: str
    exact: bool

    def __init__(self, cache: KVCache, *, max_rows: int, max_blocks: int) -> None:
        self.cache = cache
        self.max_rows = max_rows
        self.max_blocks = max_blocks
        self._inputs: AttentionInputs | None = None

    def prepare(self, inputs: AttentionInputs) -> None:
        """Take the inputs of the next step, for `store` and `attend`."""
        self._inputs = inputs

    @property
    def inputs(self) -> AttentionInputs:
        """The step's inputs."""
        if self._inputs is None:
            raise RuntimeError("no step was prepared")
        return self._inputs

    @abstractmethod
    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write the K/V of the step's tokens: `key` [T, kv_heads, key_dim], `value` [T, kv_heads, value_dim]."""

    @abstractmethod
    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return attention of `query` [T, heads, key_dim] over each row's keys as [T, heads, value_dim].

        The step's own K/V are stored already; a token sees the keys of its row up to its own. `window` > 0 shows a
        query only the keys at positions > its own − window; `softcap` > 0 replaces a score by cap·tanh(score / cap);
        `sinks` [heads] joins each head's softmax as one more score whose value is zero.
        """
