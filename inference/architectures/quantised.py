"""Quantised checkpoints: the forms that are read, by the `quantization_config` that states them; others are refused.

Read are weights in int8 or float8 (e4m3), symmetric, for activations that are rounded token by token or not at all:
with a scale for each output or one for the whole weight, as compressed-tensors stores them, or one for each block, as
DeepSeek and Qwen do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from inference.errors import ModelRefusedError
from inference.execution.linear import EightBits, Weight

STATED = re.compile("quant|compression_config")  # in a setting's name
CONFIG = "quantization_config"
CURE = "take the original, and set the deployment's quantization, or a checkpoint in a form that docs/models.md names"
NAMES = {torch.int8: "I8", torch.float8_e4m3fn: "F8_E4M3"}  # of dtypes, in safetensors
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Quantised:
    """How a checkpoint stores its linear layers: in `dtype`, and each weight's scales beside it under the name `scale`.

    There is a scale for each of `blocks` (outputs, inputs), or for each output or weight. `is_for_rows`: the weights
    were made for rows of eight bits. Quantised are the modules `targets` but `ignored`: "Linear" is every linear layer,
    "re:…" a pattern from a name's begin on, all else is a name or whole parts of one.
    """

    text: str
    dtype: torch.dtype
    scale: str
    blocks: tuple[int, int] | None
    is_for_rows: bool
    targets: tuple[str, ...]
    ignored: tuple[str, ...]

    def covers(self, module: str) -> bool:
        """Whether a linear module is quantised."""
        is_meant = "Linear" in self.targets or _is_named(module, self.targets)
        return is_meant and not _is_named(module, self.ignored)

    def scales_of(self, shape: Shape) -> tuple[Shape, ...]:
        """Return the shapes that the scales of a weight may have."""
        if self.blocks is not None:
            return (tuple(-(-size // block) for size, block in zip(shape, self.blocks, strict=True)),)
        return (shape[0], 1), (shape[0],), (1,), (1, 1), ()

    def is_kept(self, kept: frozenset[torch.dtype]) -> bool:
        """Whether layers that keep weights of these dtypes compute with the stored numbers as they are."""
        return self.blocks is None and self.is_for_rows and self.dtype in kept

    def read(self, numbers: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> Weight:
        """Return a weight for rows of `dtype`, as it is stored where it was made for rows of eight bits."""
        scales = scales.float()
        if self.blocks is None and self.is_for_rows:
            return EightBits(numbers.clone(), scales.reshape(-1).expand(len(numbers)).clone(), dtype)
        if self.blocks is None:
            return (numbers.float() * scales.reshape(-1, 1)).to(dtype)
        outputs, inputs = numbers.shape
        high, wide = self.blocks
        spread = scales.repeat_interleave(high, 0)[:outputs].repeat_interleave(wide, 1)[:, :inputs]
        return spread.mul_(numbers.float()).to(dtype)


def quantised(stated: Mapping[str, Any]) -> Quantised | None:
    """Return how the checkpoint of a config.json stores its linear layers, None where it isn't quantised; raise
    ModelRefusedError for a form that isn't read.
    """
    parts = [part for part in (stated, stated.get("text_config")) if isinstance(part, Mapping)]
    found = {name: value for part in parts for name, value in part.items() if value and STATED.search(name)}
    if not found:
        return None
    said = found.pop(CONFIG, None)
    if found:
        raise ModelRefusedError(
            f"the config's {next(iter(found))} says that the checkpoint is quantised, which isn't read: {CURE}"
        )
    method = said.get("quant_method") if isinstance(said, Mapping) else said
    if method == "compressed-tensors":
        return _compressed_tensors(said)
    if method == "fp8":
        return _blocks(said)
    raise ModelRefusedError(
        f"the config's {CONFIG} says that the checkpoint is quantised by {method}, which isn't read: {CURE}"
    )


def _compressed_tensors(said: Mapping[str, Any]) -> Quantised:
    _require("", said, format=("int-quantized", "float-quantized"), kv_cache_scheme=(None,))
    for name in ("sparsity_config", "transform_config"):
        part = said.get(name) or {}
        _require(name, part, format=(None, "dense"), config_groups=(None, {}))
    _know("", said, "quant_method format kv_cache_scheme sparsity_config transform_config config_groups ignore "
          "quantization_status global_compression_ratio version")  # fmt: skip
    groups = said.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        _refuse("config_groups", groups, "only one group is read")
    ((name, group),) = groups.items()
    where = f"config_groups.{name}"
    _require(where, group, format=(None, said["format"]), output_activations=(None,))
    _know(where, group, "targets weights input_activations output_activations format")
    is_integer = said["format"] == "int-quantized"
    numbers = {"num_bits": (8,), "type": ("int" if is_integer else "float",), "symmetric": (True,)}
    weights, rows = group.get("weights") or {}, group.get("input_activations")
    _require(f"{where}.weights", weights, **numbers, strategy=("channel", "tensor", "block"), dynamic=(None, False))
    if rows is not None:
        _require(f"{where}.input_activations", rows, **numbers, dynamic=(True,), strategy=("token", "tensor", "group"))
    strategy, structure = weights["strategy"], weights.get("block_structure")
    blocks = _pair(f"{where}.weights.block_structure", structure) if strategy == "block" else None
    each = _blocks_text(blocks) if blocks else "output" if strategy == "channel" else "weight"
    return Quantised(
        f"{'int8' if is_integer else 'float8'} with a scale for each {each}",
        torch.int8 if is_integer else torch.float8_e4m3fn,
        "weight_scale",
        blocks,
        is_for_rows=rows is not None and rows["strategy"] != "group",
        targets=_texts("targets", group.get("targets")),
        ignored=_texts("ignore", said.get("ignore")),
    )


def _blocks(said: Mapping[str, Any]) -> Quantised:
    _require("", said, activation_scheme=("dynamic",), fmt=(None, "e4m3"), scale_fmt=(None, "float", "ue8m0"),
             expert_dtype=(None, "fp8"))  # fmt: skip
    _know("", said, "quant_method activation_scheme fmt scale_fmt expert_dtype weight_block_size "
          "modules_to_not_convert ignored_layers")  # fmt: skip
    blocks = _pair("weight_block_size", said.get("weight_block_size"))
    names = [name for key in ("modules_to_not_convert", "ignored_layers") for name in _texts(key, said.get(key))]
    return Quantised(
        f"float8 with a scale for each {_blocks_text(blocks)}",
        torch.float8_e4m3fn,
        "weight_scale_inv",
        blocks,
        is_for_rows=True,
        targets=("Linear",),
        ignored=tuple(names),
    )


# What helps beside CURE, where a setting has another value than those that are read.
WAYS = {
    "symmetric": "zero points aren't read",
    "dynamic": "scales of activations (input_scale) aren't read, so take the checkpoint with dynamic activations",
    "activation_scheme": "scales of activations aren't read, so take the checkpoint with dynamic activations",
    "format": "weights packed in fewer bits, or sparse, aren't read",
    "weight_block_size": "without blocks take the checkpoint of compressed-tensors",
}


def _require(where: str, stated: Any, **read: tuple[Any, ...]) -> None:
    """Raise ModelRefusedError unless each setting has one of the values that are `read`."""
    if not isinstance(stated, Mapping):
        raise ModelRefusedError(f"the config's {CONFIG}.{where} is {stated!r}, and not an object")
    for name, values in read.items():
        if (value := stated.get(name)) not in values:
            _refuse(f"{where}.{name}".removeprefix("."), value, f"only {' or '.join(map(repr, values))} is read")


def _know(where: str, stated: Mapping[str, Any], names: str) -> None:
    """Raise ModelRefusedError for a setting that isn't one of `names`, if it says something."""
    for name, value in stated.items():
        if value and name not in names.split():
            _refuse(f"{where}.{name}".removeprefix("."), value, "it isn't known")


def _refuse(name: str, value: Any, reason: str) -> NoReturn:
    way = WAYS.get(name.rpartition(".")[2])
    text = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
    reason = f"{reason} ({way})" if way else reason
    raise ModelRefusedError(f"the config's {CONFIG}.{name} is {text}, and {reason}: {CURE}")


def _blocks_text(blocks: tuple[int, int]) -> str:
    return f"block of {blocks[0]} × {blocks[1]}"


def _pair(name: str, value: Any) -> tuple[int, int]:
    if not (isinstance(value, list) and len(value) == 2 and all(type(size) is int and size > 0 for size in value)):
        _refuse(name, value, "only two sizes above 0 are read")
    return value[0], value[1]


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """Return modules' names; raise ModelRefusedError where they aren't a list, or a pattern is wrong."""
    names = value or []
    if not (isinstance(names, list) and all(isinstance(text, str) for text in names)):
        _refuse(name, value, "not a list of modules")
    for text in names:
        try:
            re.compile(text.removeprefix("re:") if text.startswith("re:") else "")
        except re.error as error:
            _refuse(name, text, f"no pattern: {error}")
    return tuple(names)


def _is_named(module: str, names: tuple[str, ...]) -> bool:
    return any(
        re.match(name.removeprefix("re:"), module) is not None
        if name.startswith("re:")
        else f".{name}." in f".{module}."
        for name in names
    )
