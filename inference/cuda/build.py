"""A model made ready to run on CUDA: its cache sized by a largest step, its decoding steps captured."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from inference.core.step import Row, StepPlan
from inference.cuda.attention import FEW, TritonAttention
from inference.cuda.device import Device
from inference.cuda.operators import FLOAT8_CAPABILITY
from inference.cuda.runner import CudaRunner
from inference.errors import ModelRefusedError
from inference.execution.attention.base import Attention
from inference.execution.backend import CausalBackend
from inference.execution.kv_cache import KVCache, KVSpec
from inference.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Sizes:
    """The bounds of a model's steps: `limit` tokens of a row, `rows` and `tokens` of a step.

    The cache holds `kv_tokens` tokens, or with 0 what fits beside `reserve` bytes, which adapters may take later; with
    `kv_dtype` "fp8" it stores float8.
    """

    limit: int
    rows: int
    tokens: int
    block_size: int
    kv_tokens: int = 0
    kv_dtype: str = "auto"
    reserve: int = 0


@dataclass(frozen=True, slots=True)
class Built:
    """The runner with its cache and attention; `graphs` tells how decoding runs."""

    runner: CudaRunner
    cache: KVCache
    attention: Attention
    graphs: str


def build(model: CausalBackend, device: Device, sizes: Sizes) -> Built:
    """Size the cache, capture the decoding steps and return the runner; raise ModelRefusedError with the reason.

    A step that fails while it is measured, or runs first, raises what it raised. Where capturing fails, decoding runs
    without graphs.
    """
    if sizes.kv_dtype == "fp8" and device.capability < FLOAT8_CAPABILITY:
        major, minor = device.capability
        raise ModelRefusedError(
            f"kv_dtype fp8 needs a GPU of compute capability 8.9 or above, and this one has {major}.{minor}: "
            "set kv_dtype to auto"
        )
    spec = replace(model.spec, dtype=torch.float8_e4m3fn) if sizes.kv_dtype == "fp8" else model.spec
    room = device.room(lambda: _largest_step(model, device, spec, sizes)).beside(sizes.reserve)
    blocks = room.blocks(spec, sizes.block_size, tokens=sizes.kv_tokens, max_tokens=sizes.limit * sizes.rows)
    runner, cache, attention = _runner(model, device, spec, sizes, blocks)
    runner.capture()
    _first_steps(runner, sizes, blocks)
    captured = f"captured for up to {sizes.rows} rows"
    return Built(runner, cache, attention, f"none: {runner.graphs.failure}" if runner.graphs.failure else captured)


def _runner(
    model: CausalBackend, device: Device, spec: KVSpec, sizes: Sizes, blocks: int
) -> tuple[CudaRunner, KVCache, Attention]:
    cache = KVCache(spec, blocks, sizes.block_size, device.name)
    per_row = -(-sizes.limit // sizes.block_size)
    # One more than the rows of a step: the slot of those that fill up a graph.
    attention = model.attention(cache, max_rows=sizes.rows + 1, max_blocks=per_row)
    if sizes.kv_dtype == "fp8" and not isinstance(attention, TritonAttention):
        raise ModelRefusedError(f"fp8 K/V need the Triton kernels, and attention is by {attention.name}")
    runner = CudaRunner(model, attention, device, limit=sizes.limit, max_tokens=max(sizes.tokens, sizes.rows))
    return runner, cache, attention


def _first_steps(runner: CudaRunner, sizes: Sizes, blocks: int) -> None:
    """Run a step of each kind that none was yet: a kernel compiles at its first use, which would hold all streams up.

    Prompts of the lengths from which linear layers take another kernel, one with a row that decodes, and drafts.
    """
    table = tuple(range(1, min(-(-sizes.limit // sizes.block_size) + 1, blocks)))
    most = min(sizes.limit, sizes.tokens, len(table) * sizes.block_size)

    def row(slot: int, count: int, *, drafts: int = 0) -> Row:
        return Row(slot, "first", (0,) * count, 0, table, True, 0, SamplingParams(), 0, drafts=drafts)

    steps = [[row(0, count)] for count in {min(count, most) for count in (FEW + 1, 16, 32, 64, 65)}]
    if most > FEW:
        steps.append([row(0, FEW, drafts=1)])
    if most > FEW and sizes.rows > 1 and sizes.tokens > FEW + 1:
        steps.append([row(0, 1), row(1, FEW + 1)])
    for rows in steps:
        runner.launch(StepPlan(0, tuple(rows))).wait()


def _largest_step(model: CausalBackend, device: Device, spec: KVSpec, sizes: Sizes) -> None:
    """Run a step of all the tokens that one may have, in as few rows as hold them, each of which samples."""
    per_row = min(sizes.limit, sizes.tokens)
    needed = -(-per_row // sizes.block_size)
    count = min(sizes.rows, max(1, sizes.tokens // per_row))
    runner, _, _ = _runner(model, device, spec, sizes, needed * count + 1)
    ids = (0,) * per_row
    tables = [tuple(range(1 + slot * needed, 1 + (slot + 1) * needed)) for slot in range(count)]
    rows = tuple(Row(slot, "largest", ids, 0, tables[slot], True, 0, SamplingParams(), 0) for slot in range(count))
    runner.launch(StepPlan(0, rows)).wait()
