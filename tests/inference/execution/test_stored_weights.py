"""Weights that a checkpoint stores in eight bits: which operators compute with them as they are, and how exactly."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import MagicMock

import pytest
import torch

from inference.architectures.load import kernel_folder
from inference.architectures.tiers import choose
from inference.cuda.operators import TritonOperators
from inference.execution.linear import EightBits, Weight, joined, wide
from inference.execution.operators import CPU, Operators, TorchOperators
from inference.execution.packed_operators import PackedOperators

INT8, FLOAT8 = torch.int8, torch.float8_e4m3fn


def stored(dtype: torch.dtype, outputs: int = 48, inputs: int = 64) -> EightBits:
    """A weight whose largest numbers aren't the dtype's, so that to round it anew would change it."""
    numbers = torch.randint(-100, 101, (outputs, inputs)).float()
    return EightBits(numbers.to(dtype), torch.rand(outputs) + 0.01, torch.float32)


def rows(dtype: torch.dtype) -> torch.Tensor:
    """Rows that eight bits of `dtype` hold exactly, each with a scale of 1."""
    x = torch.randint(-8, 9, (3, 64)).float()
    x[:, 5] = 127 if dtype is INT8 else 448
    return x


def c_operators(quantization: str = "") -> Operators:
    operators = choose(torch.float32, kernel_folder(), quantization=quantization)
    if not operators.tier.startswith("C kernels"):
        pytest.skip("no C kernels here")
    return operators


@pytest.mark.usefixtures("c_kernels")
@pytest.mark.parametrize(
    ("make", "kept"),
    [
        (TorchOperators, set()),
        (PackedOperators, set()),
        (c_operators, {INT8}),
        (lambda: c_operators("w8a8"), {INT8}),
        (lambda: c_operators("int4"), set()),
        (lambda: TritonOperators(CPU), {INT8, FLOAT8}),
        (lambda: TritonOperators(CPU, "w8a8"), {INT8}),
        (lambda: TritonOperators(CPU, "fp8"), {FLOAT8}),
        (lambda: TritonOperators(CPU, "int4"), set()),
    ],
)
def test_what_is_kept_is_computed_with_as_it_is(make: Callable[[], Operators], kept: set[torch.dtype]) -> None:
    """So rows that eight bits hold give the exact product, and others are rounded."""
    operators = make()
    assert operators.kept == kept

    def error(weight: EightBits, x: torch.Tensor) -> float:
        expected = x @ wide(weight).T
        with torch.inference_mode():
            return float((operators.linear(weight)(x) - expected).norm() / expected.norm())

    for dtype in (INT8, FLOAT8):
        weight = stored(dtype)
        if dtype in kept or not operators.quantization:
            assert error(weight, rows(dtype)) < 1e-5
        is_rounded = bool(operators.quantization) or dtype in kept
        assert is_rounded == (error(weight, torch.randn(3, 64)) > 1e-3)


@pytest.mark.parametrize(("capability", "kept"), [((8, 0), {INT8}), ((8, 9), {INT8, FLOAT8})])
def test_float8_is_made_wide_on_a_gpu_without_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], kept: set[torch.dtype]
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: capability)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "a GPU")
    monkeypatch.setattr("inference.cuda.operators.driver", MagicMock())
    assert TritonOperators(torch.device("cuda:0")).kept == kept


@pytest.mark.parametrize("dtype", [INT8, FLOAT8])
def test_experts_are_computed_with_as_they_are(dtype: torch.dtype) -> None:
    operators = TritonOperators(CPU)
    pairs: list[tuple[Weight, Weight]] = [(stored(dtype, 64), stored(dtype, 24, 64)) for _ in range(2)]
    x, between, made = rows(dtype), rows(dtype), []

    def activation(both: torch.Tensor) -> torch.Tensor:
        made.append(both)
        return between

    products = operators.products(iter(pairs), activation)
    found, places = products(x, torch.tensor([[0], [1], [0]], dtype=torch.int32))
    for token, (both, down) in enumerate((pairs[0], pairs[1], pairs[0])):
        place = int(places[token, 0])
        torch.testing.assert_close(made[0][place], wide(both) @ x[token], rtol=1e-5, atol=1e-3)
        torch.testing.assert_close(found[place], wide(down) @ between[place], rtol=1e-5, atol=1e-3)
    with pytest.raises(ValueError, match=r"the experts of a layer are in torch\.float32 and torch\.int8"):
        operators.products(iter([(stored(INT8), stored(INT8)), (wide(stored(INT8)), stored(INT8))]), operators.silu_mul)


def test_weights_are_joined_in_eight_bits_only_where_all_are_in_the_same() -> None:
    integers, floats = stored(INT8, 8), stored(FLOAT8, 16)
    both = joined([integers, integers])
    assert isinstance(both, EightBits)
    assert torch.equal(wide(both), torch.cat([wide(integers)] * 2))
    for other in (floats, wide(floats)):
        mixed = joined([integers, other])
        assert isinstance(mixed, torch.Tensor)
        assert torch.equal(mixed, torch.cat([wide(integers), wide(floats)]))
    order = torch.tensor([3, 1, 2])
    for weight in (integers, floats):
        assert torch.equal(wide(weight[order]), wide(weight)[order])
