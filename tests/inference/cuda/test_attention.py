"""The Triton backend of attention, in the interpreter, against attention by hand and the plain torch backend."""

from __future__ import annotations

import pytest
import torch

from inference.cuda.attention import TritonAttention
from inference.execution.kv_cache import LayerShape
from tests.inference.execution.attention.layouts import MIXED, Layout
from tests.inference.sweeps import crossed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("case", "shape"),
    crossed(
        [(1, 2.0, True), (0, 0.0, False), (9, 0.0, False), (0, 2.0, True)],  # window, cap, sinks
        [(5, 1, 16, 24), (4, 4, 16, 16)],
    ),
)
def test_against_attention_by_hand(case: tuple[int, float, bool], shape: tuple[int, ...]) -> None:
    window, softcap, has_sinks = case
    heads, kv_heads, key_dim, value_dim = shape
    layout = Layout.of(TritonAttention, heads, LayerShape(kv_heads, key_dim, value_dim), MIXED, block=16)
    options = {
        "scale": 0.3,
        "window": window,
        "softcap": softcap,
        "sinks": torch.randn(heads) if has_sinks else None,
    }
    mixed = layout.attended(**options)
    torch.testing.assert_close(mixed.double(), layout.expected(**options), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rows", [[(1, 5), (1, 300)], [(40, 40)], [(4, 9), (1, 2)]], ids=str)
def test_steps_of_one_kind(rows: list[tuple[int, int]]) -> None:
    layout = Layout.of(TritonAttention, 4, LayerShape(2, 16, 16), rows, block=16)
    torch.testing.assert_close(layout.attended(scale=0.25).double(), layout.expected(scale=0.25), atol=1e-5, rtol=1e-4)
