"""Attention kernels against their reference: mixes of rows, heads, widths, blocks, windows, caps and sinks."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from benchmarks.gpu import reference
from inference.cuda.kernels.decode import decode
from inference.cuda.kernels.prefill import prefill

pytestmark = pytest.mark.slow

FAR = 1 << 31  # elements: an offset beyond it needs 64 bits


@dataclass
class Step:
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    begins: torch.Tensor
    lengths: torch.Tensor
    slots: torch.Tensor
    tables: torch.Tensor

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        return self.query, self.keys, self.values, self.begins, self.lengths, self.slots, self.tables


def make(
    rows: list[tuple[int, int]],
    *,
    heads: int = 8,
    kv_heads: int = 2,
    dim: int = 64,
    value_dim: int = 0,
    size: int = 16,
    dtype: torch.dtype = torch.float32,
    width: int = 0,
) -> Step:
    """A step of rows (queries, keys), their blocks scattered, and NaN wherever no row's key or value is."""
    torch.manual_seed(sum(q * 31 + k for q, k in rows) + heads + dim)
    counts = [-(-keys // size) for _, keys in rows]
    order = torch.randperm(sum(counts)) + 1
    tables = torch.zeros(len(rows) + 1, width or max(counts), dtype=torch.int32)
    slots = torch.randperm(len(rows) + 1)[: len(rows)].int()
    keys = torch.full((sum(counts) + 1, kv_heads, size, dim), float("nan"), dtype=dtype)
    values = torch.full((sum(counts) + 1, kv_heads, size, value_dim or dim), float("nan"), dtype=dtype)
    keys[0] = values[0] = 0
    taken = 0
    for row, (_, length) in enumerate(rows):
        blocks = order[taken : taken + counts[row]]
        taken += counts[row]
        tables[slots[row], : counts[row]] = blocks.int()
        for position in range(length):
            at = (blocks[position // size], slice(None), position % size)
            keys[at] = torch.randn(kv_heads, dim).to(dtype)
            values[at] = torch.randn(kv_heads, value_dim or dim).to(dtype)
    queries = [q for q, _ in rows]
    return Step(
        torch.randn(sum(queries), heads, dim).to(dtype),
        keys,
        values,
        torch.tensor([0, *queries]).cumsum(0).int(),
        torch.tensor([k for _, k in rows]).int(),
        slots,
        tables,
    )


def run(kernel, step: Step, **options) -> torch.Tensor:
    out = torch.full((*step.query.shape[:2], step.values.shape[-1]), float("nan"), dtype=step.query.dtype)
    kernel(*step.inputs, out, scale=step.query.shape[-1] ** -0.5, **options)
    return out.float()


def check(kernel, step: Step, tolerance: float = 2e-5, extra=None, **options) -> None:
    expected = reference.attention(*step.inputs, scale=step.query.shape[-1] ** -0.5, **options)
    torch.testing.assert_close(run(kernel, step, **options, **(extra or {})), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "dim", "size"),
    [
        ([(1, 1328), (5, 18), (129, 463)], 8, 2, 64, 16),
        ([(1, 1), (7, 7), (2, 40), (1, 17)], 4, 4, 128, 32),
        ([(33, 70), (1, 33)], 5, 1, 80, 16),
        ([(20, 50), (3, 3)], 2, 2, 256, 16),
    ],
)
def test_prefill_equals_the_reference(rows, heads, kv_heads, dim, size) -> None:
    check(prefill, make(rows, heads=heads, kv_heads=kv_heads, dim=dim, size=size))


@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "dim", "size"),
    [
        ([(1, 1328), (1, 18), (1, 1)], 8, 2, 64, 16),
        ([(1, 256), (1, 257), (1, 511)], 4, 4, 128, 32),
        ([(1, 300)], 5, 1, 80, 16),
        ([(1, 40)], 2, 2, 256, 16),
    ],
)
def test_decode_equals_the_reference(rows, heads, kv_heads, dim, size) -> None:
    check(decode, make(rows, heads=heads, kv_heads=kv_heads, dim=dim, size=size), extra={"processors": 8})


def test_decode_takes_rows_with_drafts() -> None:
    step = make([(4, 300), (1, 30), (3, 3)])
    check(decode, step, extra={"processors": 8, "max_queries": 4})


@pytest.mark.parametrize("options", [{"window": 20}, {"softcap": 1.5}, {"window": 5, "softcap": 2.0, "sinks": True}])
def test_window_softcap_and_sinks(options) -> None:
    options = dict(options)
    if options.pop("sinks", False):
        options["sinks"] = torch.randn(8)
    check(prefill, make([(1, 100), (40, 90), (3, 3)]), **options)
    check(decode, make([(1, 600), (3, 290), (1, 1)]), extra={"processors": 4, "max_queries": 3}, **options)


def test_keys_and_values_of_different_widths() -> None:
    step = make([(5, 30), (1, 20)], heads=2, kv_heads=2, dim=96, value_dim=64)
    check(prefill, step)
    check(decode, step, extra={"processors": 4, "max_queries": 5})


def test_half_precision() -> None:
    step = make([(9, 80), (1, 33)], dtype=torch.float16)
    check(prefill, step, tolerance=3e-3)
    check(decode, step, tolerance=3e-3, extra={"processors": 4, "max_queries": 9})


def test_float8_keys_and_values() -> None:
    step = make([(4, 60)], dtype=torch.float16)
    options = {"key_scale": 0.5, "value_scale": 2.0}
    scales = torch.tensor([0.5, 2.0])
    small = Step(
        step.query,
        torch.nan_to_num(step.keys.float() / scales[0]).to(torch.float8_e4m3fn),
        torch.nan_to_num(step.values.float() / scales[1]).to(torch.float8_e4m3fn),
        *step.inputs[3:],
    )
    wide = Step(step.query, small.keys.float() * scales[0], small.values.float() * scales[1], *step.inputs[3:])
    expected = reference.attention(*wide.inputs, scale=step.query.shape[-1] ** -0.5)
    for kernel, extra in ((prefill, {}), (decode, {"processors": 4, "max_queries": 4})):
        torch.testing.assert_close(run(kernel, small, **options, **extra), expected, atol=3e-3, rtol=3e-3)


def test_a_mixed_step_is_shared_by_both_kernels() -> None:
    step = make([(1, 300), (40, 90), (2, 20), (3, 3), (1, 1)])
    out = torch.full((*step.query.shape[:2], 64), float("nan"))
    decode(*step.inputs, out, scale=0.125, processors=8, max_queries=2)
    taken = torch.tensor([0, 41, 42, 46])
    assert torch.isfinite(out[taken]).all()
    assert torch.isnan(out).sum() == (len(out) - 4) * 8 * 64
    prefill(*step.inputs, out, scale=0.125, min_queries=3)
    torch.testing.assert_close(out, reference.attention(*step.inputs, scale=0.125), atol=2e-5, rtol=2e-5)


def test_padding_rows_of_length_one_give_finite_zeros() -> None:
    step = make([(1, 50), (1, 20)])
    step.slots[1] = int(next(i for i in range(3) if i not in step.slots.tolist()))  # a slot whose table is all null
    step.lengths[1] = 1
    out = run(decode, step, processors=4)
    assert torch.isfinite(out).all()
    assert not out[1].any()


def test_a_row_is_the_same_bits_in_any_batch() -> None:
    rows = [(1, 700), (1, 30), (1, 300), (1, 257)]
    step = make(rows, width=64)
    together = run(decode, step, processors=132)
    for row in range(len(rows)):
        alone = Step(
            step.query[row : row + 1],
            step.keys,
            step.values,
            torch.tensor([0, 1]).int(),
            step.lengths[row : row + 1],
            step.slots[row : row + 1],
            step.tables,
        )
        assert torch.equal(run(decode, alone, processors=1)[0], together[row])


def test_a_row_is_split_by_its_own_length_however_long_others_may_be() -> None:
    rows = [(1, 4097), (1, 300), (3, 1025)]
    narrow, wide = make(rows, heads=2, kv_heads=1, width=260), make(rows, heads=2, kv_heads=1, width=8192)
    check(decode, wide, extra={"processors": 8, "max_queries": 3})
    found = [run(decode, step, processors=8, max_queries=3) for step in (narrow, wide)]
    assert torch.equal(*found)


def test_a_chunked_prompt_is_the_same_bits_as_a_whole_one() -> None:
    whole = make([(150, 150)], dtype=torch.float16)
    expected = run(prefill, whole)
    for begin, end in ((0, 64), (64, 128), (128, 150)):  # whole tiles: numpy's product depends on a line's place
        lengths = torch.tensor([end]).int()
        chunk = Step(
            whole.query[begin:end],
            whole.keys,
            whole.values,
            torch.tensor([0, end - begin]).int(),
            lengths,
            whole.slots,
            whole.tables,
        )
        assert torch.equal(run(prefill, chunk), expected[begin:end])


def test_blocks_beyond_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last block of a cache of more than 2³¹ elements, most of whose pages are never touched."""
    kv_heads, size, dim = 2, 16, 64
    blocks = FAR // (kv_heads * size * dim) + 2
    step = make([(2, 10)], heads=2, kv_heads=kv_heads, dim=dim, dtype=torch.float16)
    keys = torch.empty(blocks, kv_heads, size, dim, dtype=torch.float16)
    values = torch.empty(blocks, kv_heads, size, dim, dtype=torch.float16)
    block = int(step.tables[step.slots[0], 0])
    keys[-1], values[-1] = step.keys[block], step.values[block]
    far = Step(step.query, keys, values, step.begins, step.lengths, step.slots, step.tables.clone())
    far.tables[far.slots[0], 0] = blocks - 1
    assert torch.equal(run(prefill, far), run(prefill, step))
    assert torch.equal(run(decode, far, processors=1, max_queries=2), run(decode, step, processors=1, max_queries=2))
