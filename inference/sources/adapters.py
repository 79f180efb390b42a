"""LoRA adapters in PEFT's format as files, checked as far as that needs neither their model nor torch.

An adapter is adapter_config.json and adapter_model.safetensors, and no other file. A setting that changes what is
computed and isn't known here refuses the adapter by its name, and so does every tensor that is no low-rank pair's.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from inference.errors import ModelRefusedError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MOST_CONFIG_BYTES = 1_000_000
MOST_HEADER_BYTES = 4_000_000
WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}  # bytes of a number
MOST_RANK = 128
ROOT = "base_model.model."
NAME = re.compile(
    re.escape(ROOT) + r"(?:model|language_model\.model|model\.language_model)\.layers\.(.{1,200})\.lora_([AB])\.weight"
)
# What has no effect on a forward pass, or is told by the tensors, or is read below.
KNOWN = {
    "peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "task_type", "base_model_name_or_path", "revision",
    "inference_mode", "lora_dropout", "peft_version", "auto_mapping", "layers_to_transform", "layers_pattern",
    "exclude_modules", "megatron_core", "qalora_group_size", "loftq_config", "eva_config", "runtime_config",
}  # fmt: skip
EXPECTED: Mapping[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),  # others change the model's own weights
}


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Facts of a config: the rank, the factor of the products, and the modules that are changed (None: a pattern)."""

    rank: int
    scale: float
    targets: frozenset[str] | None


def config_of(text: bytes) -> AdapterConfig:
    """Return what adapter_config.json says; raise ModelRefusedError with the reason where it can't be served."""
    config = _parsed(text)
    rank, scale = _rank_and_scale(config)
    return AdapterConfig(rank, scale, _targets(config))


def check_tensors(file: BinaryIO, size: int, config: AdapterConfig) -> None:
    """Raise ModelRefusedError unless the safetensors file of `size` bytes has whole pairs of the config's rank.

    Only its header is read.
    """
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(MOST_HEADER_BYTES, size - 8):
        raise ModelRefusedError(f"{WEIGHTS} is no safetensors file with a header of at most {MOST_HEADER_BYTES} bytes")
    header = _parsed(file.read(length), WEIGHTS)
    header.pop("__metadata__", None)
    names: dict[str, dict[str, str]] = {}
    for name, tensor in header.items():
        match = NAME.fullmatch(name) if name.isprintable() else None
        if match is None:
            raise ModelRefusedError(f"{WEIGHTS} has {_short(name)}, which is no low-rank pair of a linear layer")
        if match[2] in names.setdefault(match[1], {}):
            raise ModelRefusedError(f"{WEIGHTS} has the pair of {match[1]} twice")
        names[match[1]][match[2]] = name
        _check_tensor(name, tensor, match[2], config.rank, size - 8 - length)
    check_complete(names, config.targets)
    ends = sorted(tuple(tensor["data_offsets"]) for tensor in header.values())
    if [begin for begin, _ in ends] != [0, *(end for _, end in ends[:-1])] or ends[-1][1] != size - 8 - length:
        raise ModelRefusedError(f"{WEIGHTS} has tensors that overlap, or bytes that are no tensor's")


def _check_tensor(name: str, tensor: Any, kind: str, rank: int, room: int) -> None:
    """Raise ModelRefusedError unless a header's entry is a tensor of that rank whose data lies in `room` bytes."""
    try:
        width, (rows, columns), (begin, end) = WIDTHS[tensor["dtype"]], tensor["shape"], tensor["data_offsets"]
    except (TypeError, ValueError, KeyError) as error:
        raise ModelRefusedError(f"{name[:200]} is no matrix of {', '.join(WIDTHS)}") from error
    # Whole numbers before anything is multiplied: of a number and a text that would be the text as many times.
    if any(type(number) is not int for number in (rows, columns, begin, end)):
        raise ModelRefusedError(f"{name[:200]} has sizes that are no whole numbers")
    fits = 0 <= begin <= end <= room and rows * columns * width == end - begin
    if not fits or (rows, columns)["AB".index(kind)] != rank:
        raise ModelRefusedError(f"{name[:200]} has the shape {_short([rows, columns])}, which isn't one of rank {rank}")


def _parsed(text: bytes, name: str = CONFIG) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelRefusedError(f"{name} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelRefusedError(f"{name} is no JSON object")
    return config


def _rank_and_scale(config: Mapping[str, Any]) -> tuple[int, float]:
    """Return the rank and the factor of the products; raise ModelRefusedError for what isn't computed here."""
    if config.get("peft_type") != "LORA":
        raise ModelRefusedError(f"peft_type is {_short(config.get('peft_type'))}, and only LORA is served")
    if config.get("task_type") not in (None, "CAUSAL_LM"):
        raise ModelRefusedError(f"task_type is {_short(config['task_type'])}, and only CAUSAL_LM is served")
    for name, value in config.items():
        if not (value in EXPECTED[name] if name in EXPECTED else name in KNOWN or not value):
            raise ModelRefusedError(f"{_short(name)} is {_short(value)}, which isn't supported")
    rank, alpha, is_root = config.get("r"), config.get("lora_alpha"), config.get("use_rslora", False)
    if type(rank) is not int or not 1 <= rank <= MOST_RANK:
        raise ModelRefusedError(f"r is a whole number from 1 to {MOST_RANK}, not {_short(rank)}")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not abs(alpha) <= 1e6:
        raise ModelRefusedError(f"lora_alpha is a number up to a million, not {_short(alpha)}")
    if not isinstance(is_root, bool):
        raise ModelRefusedError(f"use_rslora is true or false, not {_short(is_root)}")
    return rank, alpha / (math.sqrt(rank) if is_root else rank)


def _targets(config: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the names of the modules that the config says are changed; None where it has a pattern."""
    targets = config.get("target_modules")
    if targets is None or isinstance(targets, str):
        return None
    if not isinstance(targets, list) or not all(isinstance(name, str) for name in targets):
        raise ModelRefusedError(f"target_modules is a list of names or a pattern, not {_short(targets)}")
    return frozenset(targets)


def check_complete(names: Mapping[str, Mapping[str, str]], targets: frozenset[str] | None) -> None:
    """Raise ModelRefusedError unless every module has both of its pair, and `targets` are what is changed.

    `names` has the names of each module's tensors by their kind; a target is the end of a module's whole name, or all.
    """
    if not names:
        raise ModelRefusedError(f"{WEIGHTS} has no tensors")
    for module, pair in names.items():
        if len(pair) != len("AB"):
            raise ModelRefusedError(f"{WEIGHTS} has only lora_{next(iter(pair))} of {module}")
    if targets is None:
        return
    changed: set[str] = set()
    for module, pair in names.items():
        parts = pair["A"].removeprefix(ROOT).removesuffix(".lora_A.weight").split(".")
        found = targets.intersection(".".join(parts[begin:]) for begin in range(len(parts)))
        if not found:
            raise ModelRefusedError(f"{WEIGHTS} has a pair of {module}, which is not among target_modules")
        changed |= found
    if missing := targets - changed:
        raise ModelRefusedError(f"{WEIGHTS} has no pair of {_short(min(missing))}, which is among target_modules")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
