"""Tiny checkpoints as quantising tools write them, made of plain ones."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

FLOAT8 = torch.float8_e4m3fn
BLOCKS = (128, 128)
Written = dict[str, torch.Tensor]  # what stands in the place of a weight, by the end of its name
Form = Callable[[torch.Tensor], tuple[Written, torch.Tensor]]
"""From a weight to what is written, and the weight that that stands for."""


def rows(kind: str, **changes: Any) -> dict[str, Any]:
    """Arguments of activations or weights as compressed-tensors states them."""
    return {
        "num_bits": 8, "type": kind, "symmetric": True, "group_size": None, "strategy": "token", "dynamic": True,
        "block_structure": None, "actorder": None, "observer": None, "observer_kwargs": {},
    } | changes  # fmt: skip


def compressed(kind: str, strategy: str = "channel", *, activations: Any = "dynamic", **changes: Any) -> dict[str, Any]:
    """A `quantization_config` of compressed-tensors, weights of `kind` int or float."""
    blocks = list(BLOCKS) if strategy == "block" else None
    of_rows = rows(kind, strategy="group" if blocks else "token") if activations == "dynamic" else activations
    group = {
        "targets": ["Linear"],
        "weights": rows(kind, strategy=strategy, dynamic=False, block_structure=blocks, observer="minmax"),
        "input_activations": of_rows,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors", "format": f"{kind}-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None,
        "global_compression_ratio": 1.5, "sparsity_config": {}, "transform_config": {}, "version": "0.12.2",
    } | changes  # fmt: skip


def in_blocks(**changes: Any) -> dict[str, Any]:
    """A `quantization_config` as of DeepSeek's and Qwen's checkpoints."""
    return {
        "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": list(BLOCKS),
    } | changes  # fmt: skip


def int8(weight: torch.Tensor) -> tuple[Written, torch.Tensor]:
    """A scale for each output, by which the least number is -128."""
    scales = (weight.abs().amax(1, keepdim=True) / 127.5).to(torch.bfloat16)
    numbers = (weight / scales.float()).round().clamp(-128, 127)
    return {"weight": numbers.to(torch.int8), "weight_scale": scales}, numbers * scales.float()


def int8_whole(weight: torch.Tensor) -> tuple[Written, torch.Tensor]:
    scale = weight.abs().max().reshape(1) / 127.5
    numbers = (weight / scale).round().clamp(-128, 127)
    return {"weight": numbers.to(torch.int8), "weight_scale": scale}, numbers * scale


def float8(weight: torch.Tensor) -> tuple[Written, torch.Tensor]:
    scales = weight.abs().amax(1, keepdim=True) / 300
    numbers = (weight / scales).to(FLOAT8)
    return {"weight": numbers, "weight_scale": scales}, numbers.float() * scales


def float8_blocks(weight: torch.Tensor, scale: str = "weight_scale_inv") -> tuple[Written, torch.Tensor]:
    """A scale for each block, the last of which are cut off where the weight ends."""
    high, wide = BLOCKS
    scales = torch.stack(
        [torch.stack([part.abs().max() for part in row.split(wide, 1)]) for row in weight.split(high, 0)]
    ) / torch.linspace(300, 448, -(-weight.shape[1] // wide))
    spread = torch.kron(scales, torch.ones(BLOCKS))[: len(weight), : weight.shape[1]]
    numbers = (weight / spread).to(FLOAT8)
    return {"weight": numbers, scale: scales}, numbers.float() * spread


def quantise(folder: Path, config: dict[str, Any], form: Form, *, but: str = r"lm_head|mlp\.gate$") -> Path:
    """Write the folder's projections, except modules that match `but`, in `form`; return a folder of the plain model
    that has the same numbers.
    """
    plain = folder.with_name(f"{folder.name}-plain")
    shutil.copytree(folder, plain)
    tensors, same = load_file(folder / "model.safetensors"), load_file(folder / "model.safetensors")
    for name, weight in list(tensors.items()):
        module = name.removesuffix(".weight")
        if name.endswith(".weight") and weight.dim() == 2 and "embed" not in name and not re.search(but, module):
            del tensors[name]
            written, same[name] = form(weight)
            tensors |= {f"{module}.{end}": tensor.contiguous() for end, tensor in written.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(same, plain / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": config}))
    return plain


def packed(group: int, name: str) -> Form:
    """Four bits in groups, as GPTQ ("qweight" along the inputs) and AWQ (along the outputs) pack them, and
    compressed-tensors ("weight_packed").
    """

    def form(weight: torch.Tensor) -> tuple[Written, torch.Tensor]:
        outputs, inputs = weight.shape
        groups = -(-inputs // group)
        scales = torch.ones(groups, outputs, dtype=torch.float16)
        zeros = torch.zeros(groups, outputs // 8, dtype=torch.int32)
        if name == "compressed-tensors":
            shape = torch.tensor([outputs, inputs])
            whole = torch.zeros(outputs, inputs // 8, dtype=torch.int32)
            return {"weight_packed": whole, "weight_scale": scales.T, "weight_shape": shape}, weight
        if name == "awq":
            whole = torch.zeros(inputs, outputs // 8, dtype=torch.int32)
            return {"qweight": whole, "qzeros": zeros, "scales": scales}, weight
        order = (torch.arange(inputs) // group).int()
        whole = torch.zeros(inputs // 8, outputs, dtype=torch.int32)
        return {"qweight": whole, "qzeros": zeros, "scales": scales, "g_idx": order}, weight

    return form
