"""Reading LoRA adapters in PEFT's format: adapter_config.json and adapter_model.safetensors, and no other file.

A setting that changes what is computed and isn't known here refuses the adapter by its name, and so does every tensor
that isn't part of a low-rank pair of one of the model's linear layers. All of that is checked by the file's header,
before a tensor is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from inference.errors import ModelRefusedError
from inference.execution.adapters import Adapter
from inference.execution.checks import lacks_memory
from inference.execution.low_rank import LowRank, Part
from inference.sources.adapters import (
    CONFIG,
    MOST_CONFIG_BYTES,
    MOST_HEADER_BYTES,
    MOST_RANK,
    NAME,
    WEIGHTS,
    WIDTHS,
    check_complete,
    config_of,
)


@dataclass(frozen=True, slots=True)
class Module:
    """A linear module of the checkpoint, which is a part of the model's linear layer at `place`.

    Its outputs begin at `begin` of that layer's, in the order `order` (int64 [outputs]); it has `inputs` inputs.
    """

    place: int
    begin: int
    order: torch.Tensor
    inputs: int


@dataclass(frozen=True, slots=True)
class Modules:
    """The modules of a model that adapters may change, by their names behind "layers."."""

    by_name: dict[str, Module] = field(default_factory=dict)

    def add(self, place: int, orders: Mapping[str, torch.Tensor], inputs: int) -> None:
        """Add the modules whose outputs, in these orders and one after the other, are those of the layer at `place`."""
        begin = 0
        for name, order in orders.items():
            self.by_name[name] = Module(place, begin, order, inputs)
            begin += len(order)


class AdapterReader:
    """Reads adapters for a model of `modules`, to be computed in `dtype` by `low_rank`."""

    def __init__(self, modules: Modules, dtype: torch.dtype, low_rank: LowRank) -> None:
        self._modules = modules
        self._dtype = dtype
        self._low_rank = low_rank

    def bytes_of(self, rank: int) -> int:
        """Return about how much memory an adapter of this rank takes that changes every module."""
        numbers = sum(rank * (module.inputs + len(module.order)) for module in self._modules.by_name.values())
        return numbers * self._dtype.itemsize

    def read(self, folder: Path) -> Adapter:
        """Return the adapter in `folder`; raise ModelRefusedError with a reason that names no path, MemoryError where
        memory ran out, OSError where its files can't be read now.
        """
        try:
            return self._read(folder)
        except RuntimeError as error:
            if lacks_memory(error):
                raise MemoryError(str(error)) from None  # the traceback of the original would keep its tensors
            raise

    def _read(self, folder: Path) -> Adapter:
        if not folder.is_dir():
            raise ModelRefusedError("its files were lost: delete it and make it anew")
        with torch.inference_mode():
            text = _file(folder, CONFIG, MOST_CONFIG_BYTES).read_bytes()
            config = config_of(text)
            weights = _file(folder, WEIGHTS, self._most_bytes())
            tensors = self._tensors(weights, config.rank, config.targets)
            with weights.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256")
            digest.update(text)
            layers: dict[int, list[Part]] = {}
            for name, (down, up) in sorted(tensors.items()):
                layers.setdefault(self._modules.by_name[name].place, []).append(
                    self._part(name, down, up, config.scale)
                )
            packed = self._low_rank.pack(layers)
            return Adapter(digest.hexdigest()[:32], packed, packed.nbytes)

    def _most_bytes(self) -> int:
        """The size of the largest adapter in float32, and its header."""
        numbers = sum(MOST_RANK * (module.inputs + len(module.order)) for module in self._modules.by_name.values())
        return 4 * numbers + MOST_HEADER_BYTES + 8

    def _tensors(self, path: Path, rank: int, targets: frozenset[str] | None) -> dict[str, tuple[torch.Tensor, ...]]:
        """Return the pair of each module by its name."""
        with path.open("rb") as file:
            if int.from_bytes(file.read(8), "little") > MOST_HEADER_BYTES:
                raise ModelRefusedError(f"{WEIGHTS} has a header of more than {MOST_HEADER_BYTES} bytes")
        try:
            with safe_open(str(path), framework="pt") as file:
                names: dict[str, dict[str, str]] = {}
                for name in file.keys():  # noqa: SIM118 - it isn't a mapping
                    module, kind = self._checked(name, file.get_slice(name), rank)
                    if kind in names.setdefault(module, {}):
                        raise ModelRefusedError(f"{WEIGHTS} has the pair of {module} twice")
                    names[module][kind] = name
                check_complete(names, targets)
                found = {module: tuple(file.get_tensor(pair[kind]) for kind in "AB") for module, pair in names.items()}
        except SafetensorError as error:
            raise ModelRefusedError(f"{WEIGHTS} can't be read: {error}") from error
        for module, pair in found.items():
            if not all(bool(torch.isfinite(tensor).all()) for tensor in pair):
                raise ModelRefusedError(f"the pair of {module} has numbers that are not finite")
        return found

    def _checked(self, name: str, tensor: Any, rank: int) -> tuple[str, str]:
        """Return the module and the kind ("A" or "B") of a tensor; raise ModelRefusedError unless it fits."""
        match = NAME.fullmatch(name)
        if match is None or match[1] not in self._modules.by_name:
            raise ModelRefusedError(
                f"{WEIGHTS} has {name[:200]}, which is no low-rank pair of this model's linear layers"
            )
        module = self._modules.by_name[match[1]]
        expected = [rank, module.inputs] if match[2] == "A" else [len(module.order), rank]
        if tensor.get_shape() != expected:
            raise ModelRefusedError(f"{name} has the shape {tensor.get_shape()}, where this model needs {expected}")
        if tensor.get_dtype() not in WIDTHS:
            raise ModelRefusedError(f"{name} is {tensor.get_dtype()}, where only {', '.join(WIDTHS)} are read")
        return match[1], match[2]

    def _part(self, name: str, down: torch.Tensor, up: torch.Tensor, scale: float) -> Part:
        """Return the pair of a module, its outputs in the layer's order."""
        module = self._modules.by_name[name]
        part = Part(module.begin, down.to(self._dtype), (up.float()[module.order] * scale).to(self._dtype))
        if not all(bool(torch.isfinite(tensor).all()) for tensor in (part.down, part.up)):
            raise ModelRefusedError(f"the pair of {name} is too large for {self._dtype}")
        return part


def _file(folder: Path, name: str, most: int) -> Path:
    """Return the path of a regular file of at most `most` bytes in `folder` itself."""
    path = folder / name
    if not path.is_file():
        pickled = " (pickles as adapter_model.bin are never read)" if name == WEIGHTS else ""
        raise ModelRefusedError(f"the adapter has no {name}{pickled}")
    if path.resolve().parent != folder.resolve():
        raise ModelRefusedError(f"{name} is a link that leads out of the adapter's folder")
    if path.stat().st_size > most:
        raise ModelRefusedError(f"{name} has {path.stat().st_size} bytes, where {most} are the most")
    return path
