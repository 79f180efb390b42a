"""Quantised models: what of them is quantised is told, and rounding is not taken for an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inference.architectures.load import load_model
from inference.config import EngineConfig
from tests.inference.tiny import save_tiny

pytestmark = pytest.mark.usefixtures("c_kernels")


def details(folder: Path, **config: Any) -> Any:
    return load_model(EngineConfig("test", str(folder), kv_tokens=256, **config), threads=1).details


def test_of_a_model_whose_layers_are_of_a_kind_of_its_own_only_the_head_is(tmp_path: Path) -> None:
    """It was told as quantised whole."""
    folder = save_tiny("gpt2", tmp_path)
    assert details(folder, dtype="float32", quantization="w8a8")["quantization"] == "w8a8, 7% of the weights"
    assert details(folder, dtype="float32")["quantization"] == "none"


def test_a_foreign_model_in_eight_bits_may_differ_by_their_rounding(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path)
    found = details(folder, dtype="float32", quantization="w8a8", architecture="transformers")
    assert found["quantization"] == "w8a8"


def test_a_shape_that_no_kernel_takes_is_served_by_the_models_own_operators(tmp_path: Path) -> None:
    found = details(save_tiny("llama", tmp_path, intermediate_size=97), dtype="bfloat16", quantization="")
    assert "inputs, not 97" in found["own decoder"]
    assert found["architecture"] == "transformers (llama)"


def test_a_layer_without_whole_groups_has_eight_bits_instead_of_four(tmp_path: Path) -> None:
    found = details(save_tiny("llama", tmp_path, intermediate_size=100), dtype="bfloat16", quantization="int4")
    assert found["architecture"] == "own decoder (llama)"
