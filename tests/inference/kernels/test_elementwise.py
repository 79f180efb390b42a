"""Norms and activations in C against torch's."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import gelu, silu
from torch.nn.functional import rms_norm as plain_norm

from inference.kernels.elementwise import gelu_mul, rms_norm, silu_mul, softcap
from inference.kernels.library import Library


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (5, 100), (40, 1024)])
def test_norms(library: Library, dtype: torch.dtype, rows: int, width: int) -> None:
    x, delta, weight = (
        torch.randn(rows, width).to(dtype),
        torch.randn(rows, width).to(dtype),
        torch.randn(width),
    )
    added = x + delta
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype is torch.float32 else {"atol": 0.01, "rtol": 0.01}
    expected = plain_norm(x.float(), (width,), weight, 1e-6).to(dtype)
    torch.testing.assert_close(rms_norm(library, x, weight, 1e-6), expected, **close)
    got = rms_norm(library, x, weight, 1e-6, delta)
    assert torch.equal(x, added)
    torch.testing.assert_close(got, plain_norm(added.float(), (width,), weight, 1e-6).to(dtype), **close)
    for row in range(rows):
        assert torch.equal(rms_norm(library, added[row : row + 1], weight, 1e-6)[0], got[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (5, 100), (40, 1024)])
def test_gated_activations(library: Library, dtype: torch.dtype, rows: int, width: int) -> None:
    both = (torch.randn(rows, 2 * width) * 5).to(dtype)
    both[0, :3] = torch.tensor([-200.0, 200.0, -80.0])
    gate, up = both.float().chunk(2, -1)
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype is torch.float32 else {"atol": 0.01, "rtol": 0.01}
    for ours, active in ((silu_mul, silu(gate)), (gelu_mul, gelu(gate, approximate="tanh"))):
        got = ours(library, both)
        torch.testing.assert_close(got, (active * up).to(dtype), **close)
        for row in range(rows):
            assert torch.equal(ours(library, both[row : row + 1])[0], got[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softcap(library: Library, dtype: torch.dtype) -> None:
    x = (torch.randn(7, 211) * 30).to(dtype)
    x[0, :4] = torch.tensor([1e9, -1e9, 0.0, -1e-3])
    got = softcap(library, x, 30.0)
    expected = (30 * torch.tanh(x.float() / 30)).to(dtype)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5 if dtype is torch.float32 else 0.01)
    for row in range(7):
        assert torch.equal(softcap(library, x[row : row + 1], 30.0)[0], got[row])


def test_what_is_not_finite_stays_so(library: Library) -> None:
    both = torch.zeros(1, 64)
    both[0, 3] = float("nan")
    assert torch.isnan(silu_mul(library, both)[0, 3])
    assert torch.isnan(gelu_mul(library, both)[0, 3])
    assert torch.isnan(softcap(library, both, 5.0)[0, 3])
    assert torch.isnan(rms_norm(library, both, torch.ones(64), 1e-6)).all()
