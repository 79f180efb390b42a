"""Low-rank pairs beside a model's linear layers: only they are trained, and PEFT's format is how they are kept."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

PREFIX = "base_model.model."


class LowRank(nn.Module):
    """A linear layer, which is left as it is, and a pair that is added to it; the pair begins without effect."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features, device=base.weight.device))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))
        nn.init.kaiming_uniform_(self.lora_A, a=5**0.5)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        device = given.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else given.dtype
        weight, a, b = (one.to(dtype) for one in (self.base.weight, self.lora_A, self.lora_B * self.scale))
        bias = None if self.base.bias is None else self.base.bias.to(dtype)
        if device == "cuda":
            linear = nn.functional.linear
            return linear(given, weight, bias) + linear(linear(given, a), b)
        whole: torch.Tensor = _Product.apply(given.to(dtype), weight, a, b)  # type: ignore[no-untyped-call]
        return whole if bias is None else whole + bias


class _Product(torch.autograd.Function):
    """`x Wᵀ + (x Aᵀ) Bᵀ` of one type, with gradients of x, A and B.

    Written out because W needs none: autograd of the plain expression takes a fifth longer for it on a CPU. On a GPU
    the plain one is as fast, and can be compiled.
    """

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        rows = given.reshape(-1, given.shape[-1])
        with torch.autocast(given.device.type, enabled=False):
            low = rows @ a.T
            whole = (rows @ weight.T).addmm_(low, b.T)
        ctx.save_for_backward(rows, weight, a, b, low)
        return whole.view(*given.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weight, a, b, low = ctx.saved_tensors
        grad = grads[0].reshape(-1, grads[0].shape[-1])
        grad_low = grad @ b
        # The first layers' input has no gradient to give: nothing that is trained stands before it.
        back = (grad @ weight).addmm_(grad_low, a) if ctx.needs_input_grad[0] else None
        shaped = None if back is None else back.view(*grads[0].shape[:-1], -1)
        return shaped, None, grad_low.T @ rows, grad.T @ low


def adapt(model: nn.Module, targets: Iterable[str], rank: int, alpha: float) -> dict[str, LowRank]:
    """Freeze `model`, add pairs to its linear layers that are called one of `targets`; return them by their names."""
    wanted = frozenset(targets)
    model.requires_grad_(False)
    found: dict[str, LowRank] = {}
    for name, layer in list(model.named_modules()):
        above, _, last = name.rpartition(".")
        if isinstance(layer, nn.Linear) and last in wanted:
            found[name] = LowRank(layer, rank, alpha)
            setattr(model.get_submodule(above), last, found[name])
    return found


def save(folder: Path, pairs: dict[str, LowRank], *, base: str, task: str, dtype: torch.dtype) -> None:
    """Write `adapter_model.safetensors` in `dtype` and `adapter_config.json` into `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{PREFIX}{name}.{part}.weight": getattr(pair, part).detach().to("cpu", dtype).contiguous()
        for name, pair in pairs.items()
        for part in ("lora_A", "lora_B")
    }
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    one = next(iter(pairs.values()))
    config = {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": base,
        "r": len(one.lora_A),
        "lora_alpha": round(one.scale * len(one.lora_A), 6),
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.rpartition(".")[2] for name in pairs}),
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def restore(folder: Path, pairs: dict[str, LowRank]) -> None:
    """Give `pairs` the numbers that `save` wrote into `folder`."""
    tensors = load_file(folder / "adapter_model.safetensors")
    with torch.no_grad():
        for name, pair in pairs.items():
            for part in ("lora_A", "lora_B"):
                getattr(pair, part).copy_(tensors[f"{PREFIX}{name}.{part}.weight"])
