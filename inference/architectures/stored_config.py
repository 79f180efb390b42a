"""A model's config.json as transformers reads it, refused where no model can have such a config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from inference.architectures.quantised import CONFIG, CURE, Quantised, quantised
from inference.architectures.settings import SIZES, check_settings
from inference.errors import ModelRefusedError
from inference.execution.processor import DTYPES
from inference.json_files import read_object


def read_config(folder: Path) -> Any:
    """Return the folder's transformers config of a model that isn't quantised; raise ModelRefusedError where it is,
    where the config can't be read, or can't be right.
    """
    config, stored = read_quantised(folder)
    if stored is not None:
        raise ModelRefusedError(
            f"{folder}: the config's {CONFIG} says {stored.text}, which is read of models that generate alone: {CURE}"
        )
    return config


def read_quantised(folder: Path) -> tuple[Any, Quantised | None]:
    """Return the folder's transformers config without its quantisation, and that; raise ModelRefusedError where the
    config can't be read, or can't be right, or the quantisation isn't read.

    The model of the config is the original then: what a proof is of, and whose shapes the tensors have.
    """
    from transformers import AutoConfig

    _first_architecture(folder)
    stated = read_object(folder / "config.json")
    _check_files(folder)
    try:
        stored = quantised(stated)
    except ModelRefusedError as error:
        raise ModelRefusedError(f"{folder}: {error.message}") from None
    check_settings(stated)  # of which transformers says less clearly what is wrong
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        text = config.get_text_config()
    except Exception as error:  # its checks raise what they like
        raise ModelRefusedError(f"{folder}: the config can't be read: {_reason(error)}") from error
    if (reason := _impossible(text) or _no_dtype(config)) is not None:
        raise ModelRefusedError(f"{folder}: the config can't be right: {reason}")
    for part in (config, text):
        vars(part).pop(CONFIG, None)
    return config, stored


def is_encoder(folder: Path) -> bool:
    """Whether it is a sentence-transformers folder, or a model whose class isn't a causal language model's."""
    if (folder / "modules.json").is_file():
        return True
    name = _first_architecture(folder)
    return name.endswith(("ForMaskedLM", "ForSequenceClassification")) or (
        name.endswith("Model") and not name.endswith("LMHeadModel")
    )


def stored_dtype(config: Any) -> torch.dtype:
    """Return the checkpoint's dtype; float32 when its config has none."""
    stored = getattr(config, "dtype", None)
    return stored if isinstance(stored, torch.dtype) else torch.float32


def eos_ids(config: Any, folder: Path) -> frozenset[int]:
    """Return every id that ends a generation, from the generation config and the model config."""
    path = folder / "generation_config.json"
    generation = read_object(path) if path.is_file() else {}
    text = config.get_text_config()
    ids: set[int] = set()
    for value in (generation.get("eos_token_id"), getattr(text, "eos_token_id", None)):
        listed = value if isinstance(value, list) else [value]
        if any(item is not None and not isinstance(item, int) for item in listed):
            raise ModelRefusedError(f"{folder}: eos_token_id is {value}, and not a number or a list of them")
        ids.update(item for item in listed if item not in (None, -1))  # some configs say -1 for none
    if beyond := [item for item in sorted(ids) if not 0 <= item < text.vocab_size]:
        raise ModelRefusedError(
            f"{folder}: eos_token_id {beyond[0]} is beyond the vocabulary of {text.vocab_size}: correct it in "
            "config.json or generation_config.json"
        )
    return frozenset(ids)


def _check_files(folder: Path) -> None:
    """Raise ModelRefusedError where a file beside the config says that the checkpoint is quantised, as ModelOpt's does.

    transformers passes over what it doesn't know of that, and takes the rounded weights for the real ones.
    """
    if files := sorted(path.name for path in folder.iterdir() if "quant" in path.name.lower()):
        raise ModelRefusedError(
            f"{folder}: the file {files[0]} says that the checkpoint is quantised, which isn't read: {CURE}; or remove "
            "the file where the weights are the original"
        )


def _first_architecture(folder: Path) -> str:
    names = read_object(folder / "config.json").get("architectures") or [""]
    if not isinstance(names, list):
        raise ModelRefusedError(f"{folder}: the config can't be read: architectures is {names}, and not a list")
    return str(names[0])


def _impossible(text: Any) -> str | None:
    """Return what no model can have of a language model's config, by whatever name it has it; None where nothing is."""
    for name, (least, most) in SIZES.items():
        value = _value(text, name)
        if isinstance(value, int) and not least <= value <= most:
            return f"{name} is {value}, and not a whole number from {least} to {most}"
    padding, vocabulary = _value(text, "pad_token_id"), _value(text, "vocab_size")
    if isinstance(padding, int) and isinstance(vocabulary, int) and not -vocabulary <= padding < vocabulary:
        return f"pad_token_id is {padding}, beyond a vocabulary of {vocabulary}"
    return None


def _value(text: Any, name: str) -> Any:
    """Return a setting of the model, None where it has none, or one for each layer."""
    try:
        return getattr(text, name, None)
    except RuntimeError:  # what transformers says to the latter
        return None


def _no_dtype(config: Any) -> str | None:
    stored = getattr(config, "dtype", None)
    is_one = stored in (None, torch.float64, *DTYPES.values())
    return None if is_one else f"dtype is {stored}, which no weights have"


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
