"""Recorded calls give what the plain calls give, on other inputs too; what isn't kernels alone is never recorded."""

from __future__ import annotations

import threading

import pytest
import torch

from inference.kernels.elementwise import rms_norm, silu_mul
from inference.kernels.library import Library
from inference.kernels.linear import DenseLinear
from inference.kernels.program import Programs, _Piece, place

WIDTH = 64


class Layers:
    """Some layers of norms, linear layers and activations, whose runs in Python are counted."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.runs = 0
        self.norm = torch.rand(WIDTH)
        self.layers = [
            (DenseLinear(library, torch.randn(4 * WIDTH, WIDTH)), DenseLinear(library, torch.randn(WIDTH, 2 * WIDTH)))
            for _ in range(5)
        ]

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        x = rms_norm(self.library, x, self.norm, 1e-6, y)
        for up, down in self.layers:
            x = down(silu_mul(self.library, up(rms_norm(self.library, x, self.norm, 0.5))), x)
        return x


def test_a_program_gives_what_its_calls_give(library: Library) -> None:
    layers, programs = Layers(library), Programs(library)
    with torch.inference_mode():
        for turn in range(6):
            for tokens in (1, 7, 3):  # their programs share one memory
                x, y = torch.randn(tokens, WIDTH), torch.randn(tokens, WIDTH)
                expected = layers(x.clone(), y)
                before = layers.runs
                got = programs.run(tokens, layers, x, y)
                assert torch.equal(got, expected)
                assert layers.runs - before == (turn < 2)
    assert not programs.refused


def test_pieces_that_live_at_once_lie_apart() -> None:
    lives = [(-1, 3, 1000), (0, 1, 500), (1, 2, 2000), (2, 5, 300), (4, 9, 100), (4, 4, 1)]
    pieces = [_Piece(0, size, first, last) for first, last, size in lives]
    most = place(pieces)
    for a in pieces:
        for b in pieces:
            if a is not b and a.first <= b.last and b.first <= a.last:
                assert a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
    assert most < sum(size for *_, size in lives)


@pytest.mark.parametrize("spoil", ["adds", "in place", "reads", "copies"])
def test_what_torch_computes_is_never_left_out(library: Library, spoil: str) -> None:
    layers, programs = Layers(library), Programs(library)

    def compute(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = layers(x, y)
        if spoil == "adds":
            return rms_norm(library, x + 1, layers.norm, 1e-6)
        if spoil == "in place":
            x.mul_(2)
        if spoil == "reads" and x[0, 0].item() > 0:
            return x
        if spoil == "copies":
            x = x[:, :32].contiguous()
        return x

    with torch.inference_mode():
        for _ in range(4):
            x, y = torch.randn(3, WIDTH), torch.randn(3, WIDTH)
            assert torch.equal(programs.run(0, compute, x.clone(), y), compute(x, y))
    assert programs.refused


def test_another_threads_calls_are_not_recorded(library: Library) -> None:
    layers, other = Layers(library), Layers(library)
    x, y = torch.randn(2, WIDTH), torch.randn(2, WIDTH)
    with library.record() as recording:
        thread = threading.Thread(target=other, args=(x.clone(), y))
        thread.start()
        thread.join()
        assert recording == []
        layers(x, y)
    assert len(recording) == 1 + 5 * 4
    layers(x, y)
    assert len(recording) == 1 + 5 * 4
