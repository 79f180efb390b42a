"""Forward passes of decoding steps, captured for some numbers of rows and repeated without launching each kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch

from inference.core.step import Row
from inference.execution.backend import CausalBackend
from inference.execution.cuda.device import Device
from inference.execution.inputs import Packer
from inference.types import SamplingParams

log = logging.getLogger(__name__)


def buckets(most: int) -> list[int]:
    """Return the numbers of rows to capture, ascending: close enough that padding costs little, `most` the last."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, most + 1, 32)]
    return [*(size for size in sizes if size < most), most]


class DecodeGraphs:
    """The captured forward passes of one model, over the buffers of `packer`.

    A step of rows with one token each runs in the smallest graph that holds it. Rows that fill it up have the slot
    `padding`, which no sequence has: one token whose only block is the null block, so that it is stored nowhere.
    `failure` is why nothing is captured ("": everything is); steps run without graphs then.
    """

    def __init__(self, model: CausalBackend, packer: Packer, device: Device, *, padding: int) -> None:
        self.failure = "not captured yet"
        self._model = model
        self._packer = packer
        self._device = device
        self._pad = Row(padding, "", (0,), 0, (0,), True, 0, SamplingParams(temperature=0.0), 0)
        self._graphs: dict[int, tuple[Callable[[], None], torch.Tensor]] = {}

    def capture(self, most: int) -> None:
        """Capture steps of up to `most` rows, the largest first, since the others then fit into its memory."""
        try:
            for size in reversed(buckets(most)):
                batch = self._packer.pack([self._pad] * size)
                self._graphs[size] = self._device.capture(partial(self._model.forward, batch))
        except Exception as error:  # noqa: BLE001 - a model may do what can't be captured; it still runs without
            self._graphs.clear()
            self._device.release()
            self.failure = str(error).strip().partition("\n")[0] or type(error).__name__
            log.warning("decoding runs without graphs: %s", self.failure)
            return
        self.failure = ""

    def forward(self, rows: Sequence[Row]) -> torch.Tensor | None:
        """Run a step of `rows` and return their hidden states [rows, width], or None if no graph is for it."""
        size = next((size for size in sorted(self._graphs) if size >= len(rows)), 0)
        if not size or any(row.count != 1 or not row.samples or row.adapter for row in rows):
            return None
        self._packer.pack([*rows, *[self._pad] * (size - len(rows))])
        replay, hidden = self._graphs[size]
        replay()
        return hidden[: len(rows)]
