"""Packed linears against their plain form, and each token's bits in any batch and on any number of threads."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from inference.kernels.library import Library
from inference.kernels.linear import DenseLinear, EightBitLinear, FourBitLinear, PackedLinear

BF16 = torch.bfloat16
FORMS: dict[str, tuple[torch.dtype, Callable[..., PackedLinear]]] = {
    "fp32": (torch.float32, DenseLinear),
    "bf16": (BF16, DenseLinear),
    "w8a8": (BF16, lambda lib, w, b: EightBitLinear(lib, w, b, dtype=BF16)),
    "w8a8-fp32": (torch.float32, lambda lib, w, b: EightBitLinear(lib, w, b, dtype=torch.float32)),
    "int4": (BF16, lambda lib, w, b: FourBitLinear(lib, w, b, dtype=BF16)),
    "int4-fp32": (torch.float32, lambda lib, w, b: FourBitLinear(lib, w, b, dtype=torch.float32)),
}
# Of the results' spread; sums of rounded weights for the quantised ones.
TOLERANCE = {"fp32": 2e-6, "bf16": 3e-3, "w8a8": 0.02, "w8a8-fp32": 0.02, "int4": 0.11, "int4-fp32": 0.11}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 32), (200, 576), (97, 1024)])
def test_against_the_plain_product(library: Library, form: str, outputs: int, inputs: int) -> None:
    dtype, make = FORMS[form]
    weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)
    for tokens in (1, 2, 7, 33):
        x, residual = torch.randn(tokens, inputs).to(dtype), torch.randn(tokens, outputs).to(dtype)
        plain = x.double() @ weight.double().T
        for given_bias, given_residual in ((None, None), (bias, None), (None, residual), (bias, residual)):
            expected = plain + (0 if given_bias is None else given_bias) + (0 if given_residual is None else residual)
            got = make(library, weight, given_bias)(x, given_residual)
            assert got.dtype is dtype
            assert (got.double() - expected).norm() / plain.norm() < TOLERANCE[form]


@pytest.mark.parametrize("form", FORMS)
def test_a_token_has_the_same_bits_in_any_batch(library: Library, form: str) -> None:
    dtype, make = FORMS[form]
    linear = make(library, torch.randn(328, 448).to(dtype), torch.randn(328).to(dtype))
    x = torch.randn(70, 448).to(dtype) * torch.logspace(-2, 2, 70)[:, None].to(dtype)
    residual = torch.randn(70, 328).to(dtype)
    library.use_threads(1)
    alone = torch.cat([linear(x[i : i + 1], residual[i : i + 1]) for i in range(70)])
    for threads in (1, 2, 3):
        library.use_threads(threads)
        for tokens in (*range(1, 20), 25, 48, 70):
            begin = (7 * tokens) % (71 - tokens)
            end = begin + tokens
            assert torch.equal(linear(x[begin:end], residual[begin:end]), alone[begin:end])
    library.use_threads(torch.get_num_threads())


@pytest.mark.parametrize("form", FORMS)
def test_a_token_that_is_not_finite_stays_alone(library: Library, form: str) -> None:
    dtype, make = FORMS[form]
    linear = make(library, torch.randn(64, 64).to(dtype), None)
    x = torch.randn(3, 64).to(dtype)
    expected = linear(x)
    for value in (float("nan"), float("inf")):
        x[1, 5] = value
        got = linear(x)
        assert not torch.isfinite(got[1]).any()
        assert torch.equal(got[[0, 2]], expected[[0, 2]])


def test_eight_bits_are_what_they_say(library: Library) -> None:
    """Integer weights and activations within the range are exact."""
    weight = torch.randint(-127, 128, (40, 52)).float()
    weight[:, 0] = 127
    x = torch.randint(-127, 128, (5, 52)).float()
    x[:, 1] = -127
    linear = EightBitLinear(library, weight, dtype=torch.float32)
    torch.testing.assert_close(linear(x), x @ weight.T, rtol=1e-6, atol=0)


def test_eight_bits_that_are_given_stay_as_they_are(library: Library) -> None:
    """With scales that aren't the largest value's, and with the least number, which rounding never gives."""
    numbers = torch.randint(-100, 101, (200, 53), dtype=torch.int8)
    numbers[:, 7] = -128
    scales = torch.rand(200) + 0.01
    x = torch.randint(-127, 128, (7, 53)).float()
    x[:, 1] = 127
    linear = EightBitLinear(library, numbers, scales=scales, dtype=torch.float32)
    torch.testing.assert_close(linear(x), x @ numbers.float().T * scales, rtol=1e-6, atol=0)
    with pytest.raises(TypeError, match=r"weight has to be torch\.int8"):
        EightBitLinear(library, numbers.float(), scales=scales, dtype=torch.float32)


def test_four_bits_are_what_they_say(library: Library) -> None:
    """Weights that are a group's scale times -8 … 7 are kept exactly, the same for few and for many rows."""
    codes = torch.randint(-8, 8, (70, 96)).float()
    codes.view(70, 3, 32)[:, :, 3] = -8
    weight = codes * torch.tensor([0.5, 2.0, 0.25]).repeat_interleave(32)
    x = torch.randint(-9, 10, (9, 96)).float()
    linear = FourBitLinear(library, weight, dtype=torch.float32)
    assert torch.equal(linear(x), x @ weight.T)
    assert torch.equal(linear(x[:1]), x[:1] @ weight.T)


def test_the_result_may_replace_the_residual(library: Library) -> None:
    linear = DenseLinear(library, torch.randn(32, 32))
    x, residual = torch.randn(3, 32), torch.randn(3, 32)
    torch.testing.assert_close(linear(x, residual) - residual, linear(x), atol=1e-5, rtol=1e-5)


def test_what_does_not_fit_is_refused(library: Library) -> None:
    linear = DenseLinear(library, torch.randn(32, 32))
    with pytest.raises(ValueError, match=r"x has to be contiguous \[3, 32\]"):
        linear(torch.randn(3, 31))
    with pytest.raises(ValueError, match="x has to be contiguous"):
        linear(torch.randn(32, 3).T)
    with pytest.raises(TypeError, match=r"x has to be torch\.float32"):
        linear(torch.randn(3, 32).half())
    with pytest.raises(ValueError, match="residual"):
        linear(torch.randn(3, 32), torch.randn(2, 32))
    with pytest.raises(ValueError, match="even number"):
        DenseLinear(library, torch.randn(4, 5).to(BF16))
    with pytest.raises(ValueError, match="multiple of 32"):
        FourBitLinear(library, torch.randn(4, 40), dtype=BF16)
    with pytest.raises(TypeError, match="float16"):
        DenseLinear(library, torch.randn(4, 4).half())


@pytest.mark.parametrize("form", FORMS)
def test_no_tokens_are_nothing_to_do(library: Library, form: str) -> None:
    """In a thread that has had no memory for activations yet: as when an expert gets no token."""
    dtype, make = FORMS[form]
    linear = make(library, torch.randn(40, 64).to(dtype), None)
    with ThreadPoolExecutor(1) as fresh:
        assert fresh.submit(linear, torch.empty(0, 64, dtype=dtype)).result().shape == (0, 40)


@pytest.mark.parametrize("form", ["fp32", "bf16", "w8a8", "w8a8-fp32"])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 2), (15, 6), (17, 14), (33, 30), (63, 34), (65, 66)])
def test_shapes_that_fill_no_vector(library: Library, form: str, outputs: int, inputs: int) -> None:
    """From memory that begins between two vectors and ends with the last element."""
    dtype, make = FORMS[form]
    weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)
    linear = make(library, weight, bias)
    for tokens in (1, 5, 6, 7, 13):
        x = torch.randn(tokens * inputs + 1).to(dtype)[1:].view(tokens, inputs)
        expected = x.double() @ weight.double().T + bias.double()
        bound = TOLERANCE[form] * (float(weight.double().norm(dim=1).max()) * float(x.double().norm(dim=1).max()) + 1)
        assert float((linear(x).double() - expected).abs().max()) < bound


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_read_behind_the_last_row(library: Library, form: str) -> None:
    """Behind it lies memory that may not be read: that would end the process."""
    dtype, make = FORMS[form]
    linear = make(library, torch.randn(130, 96).to(dtype), None)
    page, size = mmap.PAGESIZE, torch.empty(0, dtype=dtype).element_size()
    with mmap.mmap(-1, 8 * page) as memory:
        begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(begin + 7 * page), page, 0) == 0
        for tokens in (1, 17, 33, 40, 70):
            at = 7 * page - tokens * 96 * size
            x = torch.frombuffer(memory, dtype=dtype, count=tokens * 96, offset=at).view(tokens, 96)
            x.copy_(torch.randn(tokens, 96))
            assert torch.equal(linear(x), linear(x.clone()))
            del x
