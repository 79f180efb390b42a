"""What it takes to choose the tokens of one step: 32 rows over a vocabulary of 151,936, by torch and by the kernels.

    python -m benchmarks.engine.sampling

Medians of interleaved runs, in milliseconds; the logits are those of a peaked distribution, as language models give.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from inference.core.step import Row
from inference.kernels.build import BuildError
from inference.kernels.library import load
from inference.sampling.cpu_passes import CPUPasses
from inference.sampling.passes import Passes
from inference.sampling.sampler import Sampler
from inference.sampling.torch_passes import TorchPasses
from inference.types import SamplingParams

ROWS, VOCABULARY, CONTEXT, RUNS = 32, 151_936, 500, 7
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {},
    "top-k 40": {"top_k": 40},
    "top-p 0.9": {"top_p": 0.9},
    "min-p 0.05": {"min_p": 0.05},
    "penalties, greedy": {"temperature": 0.0, "repetition_penalty": 1.1, "presence_penalty": 0.5},
    "bias and min_tokens, greedy": {"temperature": 0.0, "logit_bias": ((5, 2.0),), "min_tokens": 10_000},
    "5 log-probabilities, greedy": {"temperature": 0.0, "logprobs": 5},
}


def main() -> None:
    """Print one table."""
    torch.manual_seed(0)
    logits = torch.randn(ROWS, VOCABULARY) * 2
    logits[:, :200] += torch.linspace(14, 4, 200)
    kinds: dict[str, Passes] = {"torch": TorchPasses()}
    with tempfile.TemporaryDirectory() as folder:
        try:
            kinds["kernels"] = CPUPasses(load(Path(folder)))
        except BuildError as error:
            print(f"without the kernels: {error}")
        print(f"{torch.get_num_threads()} threads, {ROWS} rows, vocabulary {VOCABULARY}; ms per step")
        print(f"{'':30}" + "".join(f"{f'{kind} {dtype}':>18}" for kind in kinds for dtype in ("fp32", "bf16")))
        for name, params in CASES.items():
            cells = [measure(passes, logits.to(dtype), params) for passes in kinds.values() for dtype in DTYPES]
            print(f"{name:30}" + "".join(f"{cell:18.2f}" for cell in cells))


DTYPES = (torch.float32, torch.bfloat16)


def measure(passes: Passes, logits: torch.Tensor, params: dict[str, Any]) -> float:
    """The median milliseconds of a step, the copy of the logits not counted."""
    sampler = Sampler(torch.device("cpu"), passes)
    sampling = [SamplingParams(**params) for _ in range(ROWS)]
    histories = [list(range(CONTEXT)) for _ in range(ROWS)]
    times = []
    for step in range(RUNS):
        rows = [
            Row(
                slot, "r", (1,), CONTEXT - 1 + step, (), True, step, sampling[slot], slot,
                history=histories[slot] if sampling[slot].penalises else (),
                banned=(7,) if sampling[slot].min_tokens else (),
            )
            for slot in range(ROWS)
        ]  # fmt: skip
        copy = logits.clone()
        begin = time.perf_counter()
        tokens = sampler.sample(copy, rows).tokens.tolist()
        times.append(time.perf_counter() - begin)
        for history, token in zip(histories, tokens, strict=True):
            history.append(token)
    return statistics.median(times) * 1000


if __name__ == "__main__":
    main()
