"""Adapters as PEFT writes them, small ones of no model in particular, made without torch."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

RANK = 2


def config(**changes: Any) -> dict[str, Any]:
    return {"peft_type": "LORA", "r": RANK, "lora_alpha": 4, "target_modules": ["q_proj"], **changes}


def tensors(rank: int = RANK, module: str = "model.layers.0.self_attn.q_proj", content: int = 0) -> bytes:
    """A safetensors file of one pair, whose data are zeros but for `content`."""
    sizes = {"A": [rank, 4], "B": [4, rank]}
    header, at = {}, 0
    for kind, shape in sizes.items():
        name = f"base_model.model.{module}.lora_{kind}.weight"
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 16 * rank]}
        at += 16 * rank
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content.to_bytes(4, "little") + bytes(at - 4)


def save(folder: Path, *, weights: bytes | None = None, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config(**changes)))
    (folder / "adapter_model.safetensors").write_bytes(tensors() if weights is None else weights)
    return folder
