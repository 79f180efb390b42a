"""What adapters cost on this device: loaded from files as a worker loads them, and decoded with beside none."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from benchmarks.gpu import speed
from benchmarks.gpu.shapes import Sizes
from inference.cuda.runner import CudaRunner
from inference.execution.adapter_room import Bounds

RANK = 16
MOST = 16
ROWS = (1, 8, 32, 256)


def measure(sizes: Sizes, subject: CudaRunner, length: int, add: Callable[[str, str, str], None]) -> None:
    """Tell how long an adapter takes to load, its memory, and decoding with one and with sixteen beside none."""
    adapters = subject._model.adapters
    assert adapters is not None
    with tempfile.TemporaryDirectory() as folder:
        adapters.offer(_written(sizes, Path(folder)), Bounds(MOST))
        began = time.perf_counter()
        keys = [adapters.load(f"a{number}") for number in range(MOST)]
        speed.synchronise(sizes)
        seconds = (time.perf_counter() - began) / MOST
    size = adapters.nbytes / MOST / 1e6
    add(f"an adapter of rank {RANK}", f"{size:.1f} MB", f"loaded in {seconds * 1e3:.0f} ms")
    for rows in sorted({min(rows, sizes.rows) for rows in ROWS}):
        context = length if rows < 64 else length // 2
        plain = speed.decoding(sizes, subject, rows, context)
        for count in sorted({1, min(MOST, rows)}):
            taken = speed.decoding(sizes, subject, rows, context, adapters=keys[:count])
            add(
                f"decoding {rows} rows, {count} adapter{'s' if count > 1 else ''}",
                f"{rows / taken:.1f} tok/s",
                f"{plain / taken:.2f} of {rows / plain:.1f} tok/s without",
            )


def _written(sizes: Sizes, folder: Path) -> dict[str, Path]:
    """Return folders of adapters of every linear layer. All have the same numbers, which each keeps for itself."""
    tensors = {}
    for layer in range(sizes.config.num_hidden_layers):
        for module, (outputs, inputs) in _shapes(sizes.config).items():
            name = f"base_model.model.model.layers.{layer}.{module}.lora_"
            tensors[f"{name}A.weight"] = (torch.randn(RANK, inputs) * inputs**-0.5).to(sizes.dtype)
            tensors[f"{name}B.weight"] = (torch.randn(outputs, RANK) * 0.1).to(sizes.dtype)
    save_file(tensors, folder / "adapter_model.safetensors")
    found = {}
    for number in range(MOST):
        one = found[f"a{number}"] = folder / str(number)
        one.mkdir()
        os.link(folder / "adapter_model.safetensors", one / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK}
        (one / "adapter_config.json").write_text(json.dumps(config))
    return found


def _shapes(config: LlamaConfig) -> dict[str, tuple[int, int]]:
    """Return the outputs and inputs of a layer's modules."""
    hidden, inner = config.hidden_size, config.intermediate_size
    stored = config.num_key_value_heads * hidden // config.num_attention_heads
    return {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (stored, hidden),
        "self_attn.v_proj": (stored, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
