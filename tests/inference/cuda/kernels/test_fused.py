"""The fused kernels of a layer against the same steps in plain torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import gelu, silu

from benchmarks.gpu import reference
from inference.cuda.kernels.activation import gelu_mul, silu_mul
from inference.cuda.kernels.norm import rms_norm
from inference.cuda.kernels.rope import rotate_and_store
from inference.cuda.kernels.store import store

PLACES = [40, -1, 34, 3, 79]  # -1 is nowhere, and 3 in the null block


def blocks(kv_heads: int, size: int, width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((-(-80 // size), kv_heads, size, width), 7.0).to(dtype)


def stored(cache: torch.Tensor, place: int) -> torch.Tensor:
    size = cache.shape[2]
    return cache[place // size, :, place % size].float()


@pytest.mark.parametrize(
    ("kv_heads", "width", "value_width", "size"), [(2, 64, 64, 16), (5, 80, 48, 32), (20, 128, 128, 16)]
)
def test_store_writes_each_place_and_nothing_else(kv_heads, width, value_width, size) -> None:
    key = torch.randn(5, 2 * kv_heads, width)[:, :kv_heads]  # a view into a wider tensor
    value = torch.randn(5, kv_heads, value_width)
    keys, values = blocks(kv_heads, size, width), blocks(kv_heads, size, value_width)
    expected = keys.clone(), values.clone()
    store(key, value, keys, values, torch.tensor(PLACES))
    for token, place in enumerate(PLACES):
        if place >= size:
            expected[0][place // size, :, place % size] = key[token]
            expected[1][place // size, :, place % size] = value[token]
    assert torch.equal(keys, expected[0])
    assert torch.equal(values, expected[1])


def test_store_divides_float8_by_its_scales() -> None:
    # Numbers that float8 has: the interpreter rounds some others by half.
    small = torch.randn(2, 5, 2, 64).to(torch.float8_e4m3fn).float()
    key, value = small[0] * 4.0, small[1] * 2.0**-9
    key[0, 0, 0] = 1e6  # too large: the largest there is
    keys, values = (blocks(2, 16, 64, torch.float8_e4m3fn) for _ in range(2))
    store(key, value, keys, values, torch.tensor(PLACES), key_scale=4.0, value_scale=2.0**-9)
    for token, place in enumerate(PLACES):
        if place >= 16:
            assert torch.equal(stored(keys, place) * 4.0, key[token].clamp(max=448 * 4.0))
            assert torch.equal(stored(values, place) * 2.0**-9, value[token])


@pytest.mark.parametrize("width", [64, 80, 1000, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_norms(width, dtype) -> None:
    hidden = torch.randn(3, width).to(dtype)
    weight = torch.randn(width).to(dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 5e-3
    expected = reference.rms_norm(hidden, weight, 1e-6)
    torch.testing.assert_close(rms_norm(hidden, weight, 1e-6).float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(8, 2, 64), (5, 1, 80), (4, 4, 128), (2, 2, 256)])
def test_rotate_and_store(heads, kv_heads, width, normed) -> None:
    joint = torch.randn(5, heads + 2 * kv_heads, width)
    angles = torch.rand(5, width // 2) * 6
    rotations = torch.stack((angles.cos(), angles.sin()), -1)
    norms = {"query_norm": torch.randn(width), "key_norm": torch.randn(width), "eps": 1e-6} if normed else {}
    keys, values = blocks(kv_heads, 16, width), blocks(kv_heads, 16, width)
    query = rotate_and_store(joint, rotations, keys, values, torch.tensor(PLACES), query_heads=heads, **norms)
    first, second, third = joint.split((heads, kv_heads, kv_heads), 1)
    if normed:
        first = reference.rms_norm(first, norms["query_norm"], 1e-6)
        second = reference.rms_norm(second, norms["key_norm"], 1e-6)
    torch.testing.assert_close(query, reference.rotated(first, rotations), atol=1e-5, rtol=1e-5)
    for token, place in enumerate(PLACES):
        if place >= 16:
            key = reference.rotated(second, rotations)[token]
            torch.testing.assert_close(stored(keys, place), key, atol=1e-5, rtol=1e-5)
            assert torch.equal(stored(values, place), third[token])
    untouched = sorted(set(range(80)) - set(PLACES))
    assert all((stored(cache, place) == 7).all() for cache in (keys, values) for place in untouched)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy's, of a sigmoid that is 0
@pytest.mark.parametrize("width", [64, 1000, 1025])
def test_gated_activations(width) -> None:
    joint = torch.randn(3, 2 * width) * 3
    gate, up = joint.chunk(2, -1)
    torch.testing.assert_close(silu_mul(joint), silu(gate) * up, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gelu_mul(joint), gelu(gate, approximate="tanh") * up, atol=1e-5, rtol=1e-5)


def test_nothing_to_do_launches_nothing() -> None:
    empty = torch.empty(0, 2, 64)
    store(empty, empty, blocks(2, 16, 64), blocks(2, 16, 64), torch.empty(0, dtype=torch.long))
    assert silu_mul(torch.empty(0, 8)).shape == (0, 4)
    assert rms_norm(torch.empty(0, 8), torch.ones(8), 1e-6).shape == (0, 8)
