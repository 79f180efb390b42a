"""The block tables of running sequences on the device, by slot."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch


class BlockTables:
    """`device` int32 [slots, width]: the blocks of the sequence in each slot, 0 past its end; `host` is the same.

    A table that grew is appended to; it is written whole only when its slot has got another one.
    """

    def __init__(self, slots: int, width: int, device: torch.device) -> None:
        self.host: npt.NDArray[np.int32] = np.zeros((slots, width), np.int32)
        shared = torch.from_numpy(self.host)
        self.device = shared if device.type == "cpu" else torch.zeros_like(shared, device=device)
        self._held: list[tuple[int, ...]] = [()] * slots

    def update(self, slots: Iterable[int], tables: Iterable[tuple[int, ...]]) -> None:
        """Make the tables of `slots` these."""
        held = self._held
        changed: list[tuple[int, int, int]] = []
        for slot, new in zip(slots, tables, strict=True):
            old = held[slot]
            if old is new:
                continue
            held[slot] = new
            kept = len(old) if old == new[: len(old)] else 0
            end = max(len(old), len(new))
            line = self.host[slot]
            line[kept : len(new)] = new[kept:]
            line[len(new) : end] = 0
            changed.append((slot, kept, end))
        if changed and self.device.device.type != "cpu":
            self._send(changed)

    def _send(self, changed: list[tuple[int, int, int]]) -> None:
        """Copy the parts `changed` (slot, from, to) of the host's tables to the device's, in one transfer."""
        width = self.host.shape[1]
        places = np.concatenate([np.arange(slot * width + begin, slot * width + end) for slot, begin, end in changed])
        pairs = np.stack((places, self.host.reshape(-1)[places]))
        sent = torch.from_numpy(pairs).pin_memory().to(self.device.device, non_blocking=True)
        self.device.view(-1).index_copy_(0, sent[0], sent[1].to(torch.int32))
