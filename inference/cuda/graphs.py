"""Forward passes of decoding steps, captured for some numbers of rows and repeated without launching each kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from inference.core.step import Row
from inference.cuda.device import Device
from inference.execution.backend import CausalBackend
from inference.execution.inputs import Packer
from inference.types import SamplingParams

log = logging.getLogger(__name__)


def buckets(most: int) -> list[int]:
    """Return the numbers of rows to capture, ascending: close enough that padding costs little, `most` the last."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, most + 1, 32)]
    return [*(size for size in sizes if size < most), most]


def doublings(most: int) -> list[int]:
    """Return 1, 2, 4 and so on up to `most`, the last; none where that is 0."""
    return [*(1 << n for n in range(most.bit_length()) if 1 << n < most), most] if most else []


Graph = tuple[Callable[[], None], torch.Tensor]
"""A function that repeats what was captured, and where its result is written."""


class DecodeGraphs:
    """The captured forward passes of one model, over the buffers of `packer`.

    A step of rows with one token each runs in the smallest graph that holds it: one of those that read which rows have
    which adapters, where any has one and the model's tier can capture that. Rows that fill it up have the slot
    `padding`, which no sequence has: one token whose only block is the null block, so that it is stored nowhere.
    `failure` is why nothing is captured ("": steps of rows without adapters are); steps run without graphs then.
    """

    def __init__(self, model: CausalBackend, packer: Packer, device: Device, *, padding: int) -> None:
        self.failure = "not captured yet"
        self._model = model
        self._packer = packer
        self._device = device
        self._pad = Row(padding, "", (0,), 0, (0,), True, 0, SamplingParams(temperature=0.0), 0)
        self._graphs: dict[int, Graph] = {}
        self._adapted: dict[int, Graph] = {}

    def capture(self, most: int) -> None:
        """Capture steps of up to `most` rows, the largest first, since the others then fit into its memory.

        Where those with adapters can't be, they alone run without.
        """
        self.failure = self._fill(self._graphs, buckets(most), "decoding")
        low_rank = self._model.low_rank
        if self.failure or low_rank is None or not low_rank.captured:
            return
        # Fewer sizes: what a row more costs is little beside the products of adapters.
        sizes = doublings(min(most, low_rank.captured))
        self._fill(self._adapted, sizes, "decoding with adapters", lambda size: low_rank.step([], size))

    def _fill(
        self,
        graphs: dict[int, Graph],
        sizes: Sequence[int],
        what: str,
        within: Callable[[int], AbstractContextManager[object]] = nullcontext,
    ) -> str:
        """Capture steps of these sizes, ascending; return why it isn't possible, and capture none then."""
        try:
            for size in reversed(sizes):
                batch = self._packer.pack([self._pad] * size)
                with within(size):
                    graphs[size] = self._device.capture(partial(self._model.forward, batch))
        except Exception as error:  # noqa: BLE001 - a model may do what can't be captured; it still runs without
            graphs.clear()
            self._device.release()
            failure = str(error).strip().partition("\n")[0] or type(error).__name__
            log.warning("%s runs without graphs: %s", what, failure)
            return failure
        return ""

    def forward(self, rows: Sequence[Row]) -> torch.Tensor | None:
        """Run a step of `rows` and return their hidden states [rows, width], or None if no graph is for it."""
        is_adapted = any(row.adapter for row in rows)
        graphs = self._adapted if is_adapted else self._graphs
        size = next((size for size in sorted(graphs) if size >= len(rows)), 0)
        if not size or any(row.count != 1 or not row.samples for row in rows):
            return None
        batch = self._packer.pack([*rows, *[self._pad] * (size - len(rows))])
        replay, hidden = graphs[size]
        model = self._model
        if is_adapted and model.low_rank is not None and model.adapters is not None:
            with model.low_rank.step(model.adapters.spans(batch.adapted), size):
                replay()
        else:
            replay()
        return hidden[: len(rows)]
