"""Each of the CPU's kernels beside torch's operators and beside what the machine can do, in turns; medians.

    python benchmarks/engine/kernels.py [linear|attention|sampler|elementwise …]

Linear layers stream more weights than the caches hold. For each: microseconds, GB/s of weights, GFLOP/s (or GOP/s).
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as a worker has it

import torch
from limits import bandwidth, matmul_rate
from torch.nn.functional import rms_norm as torch_norm
from torch.nn.functional import scaled_dot_product_attention, silu

from inference.execution.linear import PackedLinear
from inference.kernels import attention, sampler
from inference.kernels.elementwise import rms_norm, silu_mul
from inference.kernels.library import Library, load
from inference.kernels.linear import DenseLinear, EightBitLinear, FourBitLinear
from inference.sampling.rng import exponentials

BF16 = torch.bfloat16
STREAMED = 150_000_000  # numbers: more than any cache holds


def medians(calls: dict[str, Callable[[], object]], seconds: float = 0.4) -> dict[str, float]:
    """Seconds of each call, all of them in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or len(next(iter(times.values()))) < 4:
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(each[1:]) for name, each in times.items()}


def linears(library: Library) -> None:
    sizes = {"bf16": 2.0, "W8A8": 1.0, "int4": 0.5625, "oneDNN bf16": 2.0}
    for outputs, inputs in ((4096, 1024), (1024, 3072), (151_936, 1024)):
        copies = max(1, STREAMED // (outputs * inputs))
        weights = [torch.randn(outputs, inputs).to(BF16) for _ in range(copies)]
        forms: dict[str, list[Callable[[torch.Tensor], torch.Tensor]]] = {
            "bf16": [DenseLinear(library, weight) for weight in weights],
            "W8A8": [EightBitLinear(library, weight, dtype=BF16) for weight in weights],
            "int4": [FourBitLinear(library, weight, dtype=BF16) for weight in weights],
            "oneDNN bf16": [PackedLinear(weight) for weight in weights],
        }
        del weights
        for tokens in (1, 2, 4, 8, 16, 32, 64, 256):
            if outputs > 100_000 and tokens > 32:
                continue
            x = torch.randn(tokens, inputs).to(BF16)
            took = medians(
                {name: lambda form=form, x=x: [linear(x) for linear in form] for name, form in forms.items()}
            )
            for name, seconds in took.items():
                each = seconds / copies
                read, work = outputs * inputs * sizes[name] / each / 1e9, 2 * tokens * outputs * inputs / each / 1e9
                print(f"| {outputs} × {inputs}, M={tokens} | {name} | {each * 1e6:.0f} | {read:.1f} | {work:.0f} |")


def attentions(library: Library) -> None:
    for case in ((1, 1, 512), (8, 1, 512), (32, 1, 512), (32, 1, 2048), (1, 512, 512), (1, 256, 4096)):
        one_attention(library, *case)


def one_attention(library: Library, rows: int, queries: int, length: int) -> None:
    """Time `rows` rows of `queries` tokens that see up to `length` keys."""
    heads, kv_heads, dim, block = 16, 8, 128, 16
    blocks = -(-length // block)
    shape = (rows * blocks + 1, kv_heads, block, dim)
    layers = [tuple(torch.randn(shape).to(BF16) for _ in range(2)) for _ in range(max(1, 60_000 // (rows * length)))]
    tables = torch.arange(1, rows * blocks + 1, dtype=torch.int32).view(rows, blocks)
    begins = torch.arange(rows + 1, dtype=torch.int32) * queries
    lengths = torch.full((rows,), length, dtype=torch.int32)
    slots = torch.arange(rows, dtype=torch.int32)
    query = torch.randn(rows * queries, heads, dim).to(BF16)
    joined = query.view(rows, queries, heads, dim).transpose(1, 2)
    mask = torch.ones(queries, length, dtype=torch.bool).tril(length - queries)

    narrow = [
        (
            *(torch.randint(-127, 128, shape, dtype=torch.int8) for _ in range(2)),
            (torch.rand(shape[:3]) / 50, torch.rand(shape[:3]) / 50),
        )
        for _ in layers
    ]

    def ours() -> None:
        for keys, values in layers:
            attention.attend(library, query, keys, values, begins, lengths, slots, tables, scale=0.1)

    def in_int8() -> None:
        for keys, values, scales in narrow:
            attention.attend(library, query, keys, values, begins, lengths, slots, tables, scales, scale=0.1)

    def gathered() -> None:
        for keys, values in layers:
            key, value = (
                side[1:].view(rows, blocks, kv_heads, block, dim).transpose(1, 2).reshape(rows, kv_heads, -1, dim)
                for side in (keys, values)
            )
            scaled_dot_product_attention(
                joined, key[:, :, :length], value[:, :, :length], attn_mask=mask, enable_gqa=True
            )

    seen = sum(min(length, length - queries + 1 + i) for i in range(queries)) * rows
    for name, seconds in medians({"ours": ours, "ours, K/V in int8": in_int8, "gather + SDPA": gathered}).items():
        each = seconds / len(layers)
        width = 2 * dim + 8 if "int8" in name else 4 * dim
        read, work = rows * length * kv_heads * width / each / 1e9, 4 * seen * heads * dim / each / 1e9
        print(f"| {rows} × {queries} of {length} | {name} | {each * 1e6:.0f} | {read:.1f} | {work:.0f} |")


def samplers(library: Library) -> None:
    rows, vocabulary = 32, 151_936
    logits = (torch.randn(rows, vocabulary) * 2).to(BF16)
    keys, inverse = torch.randint(2**62, (rows,)), torch.ones(rows)
    tokens, peaks = torch.arange(vocabulary)[None], logits.float().max(1).values
    top_k, top_p, min_p = torch.full((rows,), 40), torch.full((rows,), 0.9), torch.zeros(rows)
    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    took = medians(
        {
            "argmax": lambda: sampler.argmax(library, logits),
            "torch max": lambda: logits.float().max(1),
            "gumbel_argmax": lambda: sampler.gumbel_argmax(library, logits, peaks, inverse, keys),
            "filtered_argmax": lambda: sampler.filtered_argmax(library, logits, peaks, inverse, keys, **filters),
            "torch race": lambda: (logits.float() - exponentials(keys[:, None], tokens).log_()).argmax(1),
            "log_sum_exp": lambda: sampler.log_sum_exp(library, logits, peaks, inverse),
            "torch logsumexp": lambda: logits.float().logsumexp(1),
            "top_candidates 64": lambda: sampler.top_candidates(library, logits, 64),
            "torch topk 64": lambda: logits.float().topk(64),
        }
    )
    for name, seconds in took.items():
        read = rows * vocabulary * 2 / seconds / 1e9
        print(f"| {rows} × {vocabulary} | {name} | {seconds * 1e6:.0f} | {read:.1f} | |")


def elementwise(library: Library) -> None:
    for tokens in (1, 32, 512):
        x, weight, both = (
            torch.randn(tokens, 1024).to(BF16),
            torch.randn(1024),
            torch.randn(tokens, 6144).to(BF16),
        )
        narrow = weight.to(BF16)
        took = medians(
            {
                "rms_norm": lambda x=x, weight=weight: rms_norm(library, x, weight, 1e-6),
                "torch rms_norm": lambda x=x, narrow=narrow: torch_norm(x, (1024,), narrow, 1e-6),
                "silu_mul": lambda both=both: silu_mul(library, both),
                "torch silu, mul": lambda both=both: silu(both[:, :3072]) * both[:, 3072:],
            },
            0.2,
        )
        for name, seconds in took.items():
            print(f"| {tokens} tokens | {name} | {seconds * 1e6:.1f} | | |")


def main() -> None:
    parts = {"linear": linears, "attention": attentions, "sampler": samplers, "elementwise": elementwise}
    library = load(Path(os.environ.get("SLUICE_HOME", tempfile.gettempdir())) / "cache" / "kernels")
    print(f"{library.level}, {torch.get_num_threads()} threads; memory {bandwidth():.1f} GB/s, ", end="")
    print(f"matmul bf16 {matmul_rate(BF16):.0f}, fp32 {matmul_rate(torch.float32):.0f} GFLOP/s\n")
    print("| what | by | µs | GB/s | GFLOP/s |\n|---|---|---|---|---|")
    for part in sys.argv[1:] or parts:
        parts[part](library)


if __name__ == "__main__":
    main()
