"""Random adapters in PEFT's format, and the same weights merged into their model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

SPLIT = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FUSED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


def save_adapter(
    model: Path,
    folder: Path,
    *,
    rank: int = 4,
    alpha: float = 8.0,
    targets: Iterable[str] = SPLIT,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Write an adapter of the model's folder, wide enough that its answers are others; return `folder`."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    with safe_open(model / "model.safetensors", framework="pt") as file:
        shapes = {name.removesuffix(".weight"): file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    for module, shape in shapes.items():
        if module.rsplit(".", 1)[-1] not in targets or len(shape) != 2:
            continue
        outputs, inputs = shape
        down = torch.randn(rank, inputs, generator=generator) / inputs**0.5
        up = torch.randn(outputs, rank, generator=generator) * 0.5 / rank**0.5
        tensors[f"base_model.model.{module}.lora_A.weight"] = down.to(dtype)
        tensors[f"base_model.model.{module}.lora_B.weight"] = up.to(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "somewhere/else",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets),
        "bias": "none",
        "use_dora": False,
        "use_rslora": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "lora_dropout": 0.05,
        "init_lora_weights": True,
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    return folder


def merge(model: Path, adapter: Path, folder: Path) -> Path:
    """Write the model with the adapter's products added to its weights to `folder` and return it."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / (config["r"] ** (0.5 if config["use_rslora"] else 1))
    pairs = load_file(adapter / "adapter_model.safetensors")
    weights = load_file(model / "model.safetensors")
    for name in list(pairs):
        if name.endswith(".lora_A.weight"):
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            product = pairs[name.replace("lora_A", "lora_B")].double() @ pairs[name].double()
            weights[f"{module}.weight"] = (weights[f"{module}.weight"].double() + scale * product).float()
    shutil.copytree(model, folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
