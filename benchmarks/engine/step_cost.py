"""What our own Python costs in each step of the engine, by part, with a model whose forward pass does nothing.

    python benchmarks/engine/step_cost.py [--rows 1,32,256] [--steps 300] [--context 512]

All rows decode. Parts: *plan* (the scheduler chooses), *prepare* (rows become tensors), *sample* (greedy, over a small
vocabulary), *commit* (tokens are counted, blocks published, ends found), *text* (ids become text). The table has the
median microseconds of CPU time of a step, and how many of them a row costs.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from inference.config import EngineConfig
from inference.execution.attention.reference import ReferenceAttention
from inference.execution.backend import LoadedModel
from inference.execution.inputs import StepBatch
from inference.execution.kv_cache import KVCache, KVSpec, LayerShape
from inference.execution.runner import TorchRunner
from inference.local.engine import LocalEngine
from inference.text.byte_tokenizer import VOCABULARY, ByteTokenizer
from inference.text.prepare import Prompt
from inference.types import GenerationRequest, Kind, SamplingParams

BLOCK = 16
PARTS = ("plan", "prepare", "sample", "commit", "text")


class NullModel:
    """A model whose forward pass and logits cost nothing."""

    vocab_size = VOCABULARY
    spec = KVSpec((LayerShape(1, 16, 16),), torch.float32)
    adapters = None
    low_rank = None

    def __init__(self, rows: int) -> None:
        self._logits = torch.randn(rows, VOCABULARY)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        return self._logits[: len(batch.sampled)]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


class Clock:
    """Seconds spent in each part of the steps since the last reset."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def watch(self, owner: Any, method: str, part: str) -> None:
        """Count the time in `owner.method` for `part`."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **options: Any) -> Any:
            begin = time.thread_time()
            try:
                return inner(*args, **options)
            finally:
                self.seconds[part] += time.thread_time() - begin

        setattr(owner, method, timed)


class NullAttention(ReferenceAttention):
    """Attention that prepares nothing: what a backend does is its own matter."""

    def prepare(self, inputs: Any) -> None:
        pass


def measure(rows: int, steps: int, context: int) -> dict[str, float]:
    """Return the median microseconds of each part, and of all ("step"), when `rows` rows decode."""
    output = steps + 4 * rows + BLOCK  # the first rows decode for as long as the last ones' prompts are read
    length = context + output
    blocks = rows * -(-length // BLOCK) + 1
    model = NullModel(rows)
    attention = NullAttention(KVCache(model.spec, blocks, BLOCK), max_rows=rows, max_blocks=-(-length // BLOCK))
    tokens = max(4096, rows)
    runner = TorchRunner(causal=(model, attention), limit=length, max_tokens=tokens)
    loaded = LoadedModel(
        runner=runner,
        kinds=frozenset({Kind.CHAT}),
        max_context=length,
        max_input=length - 1,
        vocab_size=VOCABULARY,
        eos_ids=frozenset(),
        kv_blocks=blocks,
        block_size=BLOCK,
        vector_width=0,
        tokenizer_folder=Path(),
    )
    config = EngineConfig(
        "bench", "-", block_size=BLOCK, max_rows=rows, max_step_tokens=tokens, prefill_chunk=tokens,
        max_waiting=rows + 1, max_waiting_per_tenant=rows + 1,
    )  # fmt: skip
    engine = LocalEngine(config, loaded, ByteTokenizer())
    greedy = SamplingParams(temperature=0.0, ignore_eos=True)
    for number in range(rows):
        request = GenerationRequest(str(number), tenant=f"t{number % 8}", domain="d", sampling=greedy)
        ids = tuple((number + i) % 100 for i in range(context))
        engine.submit(Prompt(request, output, ids=ids))
    while any(seq.output < 2 for seq in engine.schedulers[0]._live.values()):
        engine.step()
    clock = Clock()
    (scheduler,) = engine.schedulers
    clock.watch(scheduler, "plan", "plan")
    clock.watch(runner._packer, "pack", "prepare")
    clock.watch(runner._sampler, "sample", "sample")
    clock.watch(scheduler, "commit", "commit")
    clock.watch(engine, "_with_text", "text")
    taken: dict[str, list[float]] = defaultdict(list)
    for _ in range(steps - 8):
        clock.seconds.clear()
        begin = time.thread_time()
        outputs = engine.step()
        clock.seconds["step"] = time.thread_time() - begin
        assert len(outputs) == rows
        for part, seconds in clock.seconds.items():
            taken[part].append(seconds * 1e6)
    return {part: statistics.median(values) for part, values in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,32,256")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--context", type=int, default=512, help="tokens of each prompt")
    options = parser.parse_args()
    torch.set_num_threads(1)
    gc.freeze()  # as the worker does it
    gc.set_threshold(20_000, 20, 20)
    print(f"| rows | {' | '.join(PARTS)} | rest | step | a row |")
    print("|---|" + "---|" * (len(PARTS) + 3))
    with torch.inference_mode():
        for rows in (int(part) for part in options.rows.split(",")):
            found = measure(rows, options.steps, options.context)
            parts = [found[part] for part in PARTS]
            step = found["step"]
            cells = [*parts, step - sum(parts), step, step / rows]
            print(f"| {rows} | " + " | ".join(f"{cell:,.0f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
