"""Reading a folder's safetensors: one tensor at a time, or as a whole model of transformers.

A model's proof is of its config, with random weights. What the real file has beyond that is refused here: a tensor of a
dtype that isn't a number's own, one that the model doesn't read, one whose values are not finite.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open

from inference.architectures.quantised import CONFIG, NAMES, Quantised
from inference.architectures.small_model import first_line
from inference.errors import ModelRefusedError
from inference.execution.linear import EightBits, Weight, wide
from inference.json_files import read_object

FILE = "model.safetensors"
DTYPES = ("F64", "F32", "F16", "BF16")  # numbers that stand for themselves, without a scale beside them
# What a checkpoint may have that isn't read: tables that are computed, and what a model has to see and to hear.
UNREAD = re.compile(
    r"(?:^|\.)(?:inv_freq|position_ids|token_type_ids|masked_bias|(?:attn|attention)\.bias)$"
    r"|^(?:model\.)?(?:vision_tower|vision_model|visual|audio_tower|embed_vision|embed_audio|multi_modal_projector)\."
)
CURE = "take the original checkpoint, as transformers saves it"


class Weights(Protocol):
    """A model's tensors by name."""

    def __contains__(self, name: str) -> bool: ...

    def take(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return the tensor as `dtype`, in memory of its own; raise ModelRefusedError when there is none."""
        ...

    def matrix(self, name: str, dtype: torch.dtype) -> Weight:
        """Return a linear layer's weight like `take`, but in eight bits where it is stored so."""
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

    matrix = take


class FolderWeights:
    """The tensors of a checkpoint folder by name, in one file or several. A context manager."""

    def __init__(self, folder: Path, file: str = FILE, quantised: Quantised | None = None) -> None:
        """Open the files; raise ModelRefusedError when they are missing, can't be read, or have a tensor that may be
        read and is neither of a dtype of DTYPES nor `quantised`.
        """
        index = folder / f"{file}.index.json"
        names = _names(index) if index.is_file() else {}
        if not names and not (folder / file).is_file():
            raise ModelRefusedError(f"{folder} holds no {file}")
        if names and (folder / file).is_file() and file not in names.values():  # transformers would read that one
            raise ModelRefusedError(f"{index} doesn't name {file} beside it: remove the one that isn't the model's")
        self._files: dict[str, Any] = {}
        try:
            for one in sorted(set(names.values()) or {file}):
                self._files[one] = safe_open(str(folder / one), framework="pt")
        except (OSError, SafetensorError) as error:
            raise ModelRefusedError(f"{folder}: the weights can't be read: {error}") from error
        self._file_of = {key: one for one, opened in self._files.items() for key in opened.keys()}  # noqa: SIM118
        self._quantised = quantised
        self._scales: dict[str, str] = {}  # the name of a quantised weight's scales by its own
        for name in sorted(self._file_of):
            dtype = self._slice(name).get_dtype()
            if quantised and dtype == NAMES[quantised.dtype] and name.endswith(".weight"):
                self._scales[name] = name.removesuffix("weight") + quantised.scale
            elif dtype not in DTYPES and not UNREAD.search(name):
                raise ModelRefusedError(
                    f"the checkpoint's tensor {name} is {dtype}, where only {', '.join(DTYPES)} are read: {CURE}"
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def check(self, shapes: Mapping[str, tuple[int, ...]], unquantised: Collection[str] = ()) -> None:
        """Raise ModelRefusedError unless each tensor is one of `shapes`, of its shape, or of those not read; and unless
        those linear layers are quantised that are meant, of which `unquantised` need not be.
        """
        check_unread(self._file_of.keys() - shapes.keys() - set(self._scales.values()))
        for name in sorted(self._file_of.keys() & shapes.keys()):
            self._check_quantised(name, shapes[name], needs_it=name not in unquantised)
            found = tuple(self._slice(name).get_shape())
            if found != shapes[name]:
                raise ModelRefusedError(
                    f"the checkpoint's tensor {name} is {list(found)}, and by the config it is {list(shapes[name])}"
                )

    def take(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        return wide(self.matrix(name, dtype))

    def matrix(self, name: str, dtype: torch.dtype) -> Weight:
        stored = self._stored(name)
        if self._quantised is None or name not in self._scales:
            weight: Weight = stored.to(dtype, copy=True)
        else:
            scales = self._stored(self._scales[name])
            _check_finite(self._scales[name], scales)
            weight = self._quantised.read(stored, scales, dtype)
        _check_finite(name, weight.numbers if isinstance(weight, EightBits) else weight)
        return weight

    def _stored(self, name: str) -> torch.Tensor:
        if name not in self._file_of:
            raise ModelRefusedError(f"the checkpoint lacks the tensor {name}")
        tensor: torch.Tensor = self._files[self._file_of[name]].get_tensor(name)
        return tensor

    def _check_quantised(self, name: str, shape: tuple[int, ...], *, needs_it: bool) -> None:
        """Raise ModelRefusedError where a linear layer isn't quantised as is said, or its scales don't fit `shape`."""
        if self._quantised is None or not name.endswith(".weight"):
            return
        is_meant = len(shape) == 2 and self._quantised.covers(name.removesuffix(".weight"))
        is_stored = name in self._scales
        if is_stored != is_meant and (is_stored or needs_it):
            dtype, meant = self._slice(name).get_dtype(), "is" if is_meant else "isn't"
            raise ModelRefusedError(
                f"the checkpoint's tensor {name} is {dtype}, and by the config's {CONFIG} it {meant} quantised: {CURE}"
            )
        if is_stored and (scales := self._scales[name]) in self._file_of:
            found, possible = tuple(self._slice(scales).get_shape()), self._quantised.scales_of(shape)
            if found not in possible:
                raise ModelRefusedError(
                    f"the checkpoint's tensor {scales} is {list(found)}, and by the config it is {list(possible[0])}"
                )

    def _slice(self, name: str) -> Any:
        return self._files[self._file_of[name]].get_slice(name)


def read_model(make: Any, folder: Path, dtype: torch.dtype, *, unused: str = "", **options: Any) -> Any:
    """Return the folder's model as transformers' class `make` loads it; raise ModelRefusedError where it can't, or
    where the model and the checkpoint's tensors aren't the same.

    Tensors whose names begin with the pattern `unused` may be there or not: the model is used without them.
    """
    with FolderWeights(folder):
        pass
    try:
        model, report = make.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, use_safetensors=True, trust_remote_code=False, **options
        )
    except Exception as error:  # a foreign model can raise anything
        raise ModelRefusedError(f"{folder} can't be loaded by transformers: {first_line(error)}") from error
    is_unused = re.compile(unused or "$").match
    if lacking := sorted(name for name in report["missing_keys"] if not is_unused(name)):  # it drew them by chance
        raise ModelRefusedError(f"{folder}: the checkpoint lacks {', '.join(lacking[:3])}")
    check_unread(name for name in report["unexpected_keys"] if not is_unused(name))
    for name, parameter in model.named_parameters():
        _check_finite(name, parameter)
    return model.eval()


def check_unread(names: Iterable[str]) -> None:
    """Raise ModelRefusedError unless a model is right that is read without the checkpoint's tensors `names`."""
    if beyond := sorted(name for name in names if not UNREAD.search(name)):
        raise ModelRefusedError(
            f"the checkpoint has {beyond[0]}, which a model of its config doesn't read: {CURE}, or correct the config"
        )


def _check_finite(name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype.itemsize == 1:  # float8 has no least value
        tensor = tensor.half()
    # The least and the largest come as fast as memory, NaN if one is; to ask each value takes fifty times as long.
    if tensor.numel() and not torch.isfinite(torch.stack(torch.aminmax(tensor))).all():
        raise ModelRefusedError(
            f"the checkpoint's tensor {name} has values that are not finite in {tensor.dtype}: load it again from "
            "its source, or set dtype to float32"
        )


def _names(index: Path) -> dict[str, str]:
    """Return the file of each tensor, as an index says."""
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise ModelRefusedError(f"{index} has no weight_map from tensors to files")
    return names
