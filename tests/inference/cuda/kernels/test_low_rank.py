"""What adapters add to a layer against the plain products: ranks, modules and tokens of any number side by side."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from inference.cuda.kernels.low_rank import FEW, SHORT, TALL, LowRankStep, PackedAdapter
from tests.inference.kernels.test_low_rank import Part, layers_of, plain
from tests.inference.sweeps import crossed

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1.2e-2}  # the interpreter cuts bfloat16 where a GPU rounds
Spans = Sequence[tuple[Sequence[Part] | None, int, int]]


def added(spans: Spans, x: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """What becomes of `base`; the layer's place is 1, and a span without parts has an adapter of another place."""
    step, out = LowRankStep(CPU), base.clone()
    nowhere = {0: layers_of([2], [8], 4, x.dtype)}
    packed = {id(parts): PackedAdapter(CPU, 3, {2: parts, 1: parts} if parts else nowhere) for parts, _, _ in spans}
    step.tell([(packed[id(parts)], begin, end) for parts, begin, end in spans], len(x))
    step.add(1, x, out, 3 * 128)
    return out


def assert_right(spans: Spans, x: torch.Tensor, base: torch.Tensor) -> None:
    found, expected = added(spans, x, base), base.double()
    for parts, begin, end in spans:
        if parts is not None:
            expected[begin:end] += plain(parts, x[begin:end], base.shape[1])
    assert (found.double() - expected).norm() / expected.norm() < TOLERANCE[x.dtype]
    changed = {token for parts, begin, end in spans if parts is not None for token in range(begin, end)}
    others = [token for token in range(len(x)) if token not in changed]
    assert torch.equal(found[others], base[others])


SHAPES = [(64, (64,)), (576, (160, 48, 48)), (97, (33, 1)), (5, (130,)), (300, (7, 150, 3))]


@pytest.mark.parametrize(("shape", "dtype"), crossed(SHAPES, TOLERANCE))
def test_adapters_of_other_ranks_and_of_none_side_by_side(
    shape: tuple[int, tuple[int, ...]], dtype: torch.dtype
) -> None:
    """Of four adapters one doesn't change the layer, and one not all of its modules; some tokens have none."""
    inputs, outputs = shape
    width = sum(outputs)
    one = layers_of([8] * len(outputs), outputs, inputs, dtype)
    two = layers_of([3, 0, 1][: len(outputs)], outputs, inputs, dtype)
    wide = layers_of([128] * len(outputs), outputs, inputs, dtype)
    x, base = torch.randn(44, inputs).to(dtype), torch.randn(44, width).to(dtype)
    assert_right([(one, 1, 4), (two, 4, 4 + SHORT + 1), (None, 21, 23), (wide, 25, 28), (one, 43, 44)], x, base)


@pytest.mark.parametrize(("rank", "dtype"), crossed([1, 2, 7, 16, 17, 64, 100, 128], TOLERANCE))
def test_each_rank(rank: int, dtype: torch.dtype) -> None:
    parts = layers_of([rank, rank], (40, 24), 80, dtype)
    x, base = torch.randn(3, 80).to(dtype), torch.randn(3, 64).to(dtype)
    assert_right([(parts, 0, 1), (parts, 2, 3)], x, base)


@pytest.mark.parametrize(("tokens", "dtype"), crossed([FEW + 1, FEW], TOLERANCE))
def test_tokens_of_a_prompt(tokens: int, dtype: torch.dtype) -> None:
    one, two = (layers_of([rank, 4], (24, 16), 48, dtype) for rank in (5, 20))
    x, base = torch.randn(tokens, 48).to(dtype), torch.randn(tokens, 40).to(dtype)
    assert_right(
        [(one, 3, 2 * TALL), (None, 2 * TALL, 140), (two, 140, 141), (one, tokens - TALL - 1, tokens)], x, base
    )


def test_a_step_knows_nothing_of_the_one_before() -> None:
    parts = layers_of([4], [16], 8, torch.float32)
    adapter, step = PackedAdapter(CPU, 2, {1: parts}), LowRankStep(CPU)
    x, base = torch.randn(9, 8), torch.randn(9, 16)
    step.tell([(adapter, 0, 9)], 9)
    step.tell([(adapter, 4, 5)], 9)
    out = base.clone()
    step.add(1, x, out, 128)
    expected = base.double()
    expected[4:5] += plain(parts, x[4:5], 16)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    for tokens in (9, FEW + 1):
        step.tell([], tokens)
        x, base = torch.randn(tokens, 8), torch.randn(tokens, 16)
        out = base.clone()
        step.add(1, x, out, 128)
        assert torch.equal(out, base)


def test_rows_that_are_not_beside_one_another() -> None:
    """Inputs may be a part of wider rows."""
    parts = layers_of([4], [16], 8, torch.float32)
    wide, base = torch.randn(5, 24), torch.randn(5, 16)
    assert_right([(parts, 1, 5)], wide[:, 8:16], base)
