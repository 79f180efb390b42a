"""What adapters add to a layer against its plain form, and each token's bits in any batch and on many threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch

from inference.kernels.library import Library
from inference.kernels.low_rank import LowRankStep, PackedAdapter, Part

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3}
Layers = Mapping[int, Sequence[Part]]


def layers_of(
    ranks: Sequence[int], outputs: Sequence[int], inputs: int, dtype: torch.dtype, *, begin: int = 0
) -> list[Part]:
    """Pairs of modules that lie side by side from `begin` on; one with rank 0 is left out."""
    parts = []
    for rank, width in zip(ranks, outputs, strict=True):
        if rank:
            down, up = torch.randn(rank, inputs) / inputs**0.5, torch.randn(width, rank)
            parts.append((begin, down.to(dtype), up.to(dtype)))
        begin += width
    return parts


def plain(parts: Sequence[Part], x: torch.Tensor, outputs: int) -> torch.Tensor:
    out = torch.zeros(len(x), outputs, dtype=torch.float64)
    for begin, down, up in parts:
        hidden = (x.double() @ down.double().T).to(x.dtype)
        out[:, begin : begin + len(up)] += hidden.double() @ up.double().T
    return out


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(64, (64,)), (576, (576, 192, 192)), (97, (33, 1)), (5, (130,)), (1536, (576,))]
)
def test_against_the_plain_products(
    library: Library, dtype: torch.dtype, inputs: int, outputs: tuple[int, ...]
) -> None:
    """Of three adapters one doesn't change the layer, and one not all of its modules; some tokens have none."""
    width = sum(outputs)
    one = layers_of([8] * len(outputs), outputs, inputs, dtype)
    two = layers_of([3, 0, 1][: len(outputs)], outputs, inputs, dtype)
    adapters = [PackedAdapter(library, 3, layers) for layers in ({2: one, 1: one}, {2: two}, {0: one})]
    x, base = torch.randn(23, inputs).to(dtype), torch.randn(23, width).to(dtype)
    step = LowRankStep(library)
    step.tell([(adapters[0], 1, 4), (adapters[1], 4, 15), (adapters[2], 15, 18), (adapters[0], 20, 23)])
    out = base.clone()
    step.add(2, x, out)
    expected = base.double()
    for parts, begin, end in ((one, 1, 4), (two, 4, 15), (one, 20, 23)):
        expected[begin:end] += plain(parts, x[begin:end], width)
    assert (out.double() - expected).norm() / expected.norm() < TOLERANCE[dtype]
    assert torch.equal(out[[0, *range(15, 20)]], base[[0, *range(15, 20)]])
    assert all(adapter.nbytes for adapter in adapters)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_token_has_the_same_bits_in_any_batch(library: Library, dtype: torch.dtype) -> None:
    outputs = (328, 65)
    adapters = [PackedAdapter(library, 1, {0: layers_of([rank, 2], outputs, 450, dtype)}) for rank in (16, 3, 128)]
    x, base = torch.randn(70, 450).to(dtype), torch.randn(70, sum(outputs)).to(dtype)
    step = LowRankStep(library)

    def added(begin: int, end: int, spans: list[tuple[PackedAdapter, int, int]]) -> torch.Tensor:
        out = base[begin:end].clone()
        step.tell(spans)
        step.add(0, x[begin:end], out)
        return out

    library.use_threads(1)
    alone = [torch.cat([added(i, i + 1, [(adapter, 0, 1)]) for i in range(70)]) for adapter in adapters]
    for threads in (1, 2, 3):
        library.use_threads(threads)
        for first, second in ((1, 2), (7, 70), (24, 31), (35, 36), (0, 70)):
            got = added(0, 70, [(adapters[0], 0, first), (adapters[1], first, second), (adapters[2], second, 70)])
            parts = (alone[0][:first], alone[1][first:second], alone[2][second:])
            assert torch.equal(got, torch.cat(parts)), (threads, first, second)
    library.use_threads(torch.get_num_threads())


def test_more_spans_than_the_table_had_room_for(library: Library) -> None:
    parts = layers_of([2], [16], 8, torch.float32)
    adapter, step = PackedAdapter(library, 1, {0: parts}), LowRankStep(library)
    x, out = torch.randn(300, 8), torch.zeros(300, 16)
    step.tell([(adapter, i, i + 1) for i in range(300)])
    step.add(0, x, out)
    torch.testing.assert_close(out.double(), plain(parts, x, 16), rtol=1e-5, atol=1e-5)
