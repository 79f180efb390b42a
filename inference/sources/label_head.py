"""A classifier's folder, made of its encoder's and of what was trained beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

PAIRS = "adapter_model.safetensors"
HEAD = ("label_head.json", "label_head.safetensors")
_PREFIX = "base_model.model."


def merge(encoder: Path, trained: Path, target: Path) -> None:
    """Write to `target`, which is made, the encoder with the low-rank pairs in `trained` (PEFT's format; there may be
    none) added to its weights, and the head with its labels beside it.
    """
    from safetensors.torch import load_file, save_file

    shutil.copytree(encoder, target, ignore=shutil.ignore_patterns("model.safetensors", "README*"))
    weights = load_file(encoder / "model.safetensors")
    if (trained / PAIRS).is_file():
        config = json.loads((trained / "adapter_config.json").read_text())
        pairs = load_file(trained / PAIRS)
        for name in sorted(pairs):
            if name.endswith(".lora_A.weight"):
                module = name.removesuffix(".lora_A.weight")
                change = pairs[f"{module}.lora_B.weight"].float() @ pairs[name].float()
                weight = weights[f"{module.removeprefix(_PREFIX)}.weight"]
                weight += (change * (config["lora_alpha"] / config["r"])).to(weight.dtype)
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    for file in HEAD:
        shutil.copyfile(trained / file, target / file)
