"""Reading a folder's safetensors, one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open

from inference.errors import ModelRefusedError
from inference.json_files import read_object


class Weights(Protocol):
    """A model's tensors by name."""

    def __contains__(self, name: str) -> bool: ...

    def take(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return the tensor as `dtype`, in memory of its own; raise ModelRefusedError when there is none."""
        ...


class ModelWeights:
    """The tensors of a transformers model in memory."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._tensors = model.state_dict()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        tensor: torch.Tensor = self._tensors[name]
        return tensor.to(dtype, copy=True)


class FolderWeights:
    """The tensors of a checkpoint folder by name, in one file or several. A context manager."""

    def __init__(self, folder: Path) -> None:
        """Open the files; raise ModelRefusedError when they are missing or can't be read."""
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            names = _names(index)
        elif (folder / "model.safetensors").is_file():
            names = {}
        else:
            raise ModelRefusedError(f"{folder} holds no model.safetensors")
        self._files: dict[str, Any] = {}
        try:
            for file in sorted(set(names.values()) or {"model.safetensors"}):
                self._files[file] = safe_open(str(folder / file), framework="pt")
        except (OSError, SafetensorError) as error:
            raise ModelRefusedError(f"{folder}: the weights can't be read: {error}") from error
        self._file_of = {key: file for file, opened in self._files.items() for key in opened.keys()}  # noqa: SIM118

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def check_layers(self, root: str, layers: int) -> None:
        """Raise ModelRefusedError where there is a tensor of a layer beyond the first `layers` below `root`."""
        for name in self._file_of:
            number = name.removeprefix(root).partition(".")[0]
            if name.startswith(root) and number.isdecimal() and int(number) >= layers:
                raise ModelRefusedError(f"the checkpoint has {name}, and by the config it has {layers} layers")

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise ModelRefusedError unless each tensor named in `shapes` that is here has its shape."""
        for name in sorted(self._file_of.keys() & shapes.keys()):
            found = tuple(self._files[self._file_of[name]].get_slice(name).get_shape())
            if found != shapes[name]:
                raise ModelRefusedError(
                    f"the checkpoint's tensor {name} is {list(found)}, and by the config it is {list(shapes[name])}"
                )

    def take(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        if name not in self._file_of:
            raise ModelRefusedError(f"the checkpoint lacks the tensor {name}")
        tensor: torch.Tensor = self._files[self._file_of[name]].get_tensor(name).to(dtype, copy=True)
        # The least and the largest come as fast as memory, NaN if one is; to ask each value takes fifty times as long.
        if tensor.numel() and not torch.isfinite(torch.stack(torch.aminmax(tensor))).all():
            raise ModelRefusedError(f"the checkpoint's tensor {name} has values that are not finite in {dtype}")
        return tensor


def _names(index: Path) -> dict[str, str]:
    """Return the file of each tensor, as an index says."""
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise ModelRefusedError(f"{index} has no weight_map from tensors to files")
    return names
