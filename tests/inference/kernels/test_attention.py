"""Paged attention in C against attention by hand; each query's bits in any chunk, batch and number of threads."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from inference.kernels.attention import Scales, attend, rope_store, store, unsupported
from inference.kernels.library import Library
from tests.inference.sweeps import crossed

BF16 = torch.bfloat16
FORMS = ["fp32", "bf16", "int8-fp32", "int8-bf16"]  # of K/V, and behind int8 of the rest
BOUND = {"fp32": 1e-5, "bf16": 2e-2, "int8-fp32": 3e-4, "int8-bf16": 2e-2}
ROWS = [(1, 1), (1, 40), (5, 18), (1, 500), (23, 23), (7, 130), (1, 3), (1, 65), (2, 2), (70, 200)]  # queries, keys
SHAPES = [(4, 4, 32, 32), (8, 2, 64, 64), (6, 1, 48, 80), (2, 1, 256, 256), (32, 1, 16, 16)]


def dtype_of(form: str) -> torch.dtype:
    return torch.float32 if form.endswith("fp32") else BF16


def rounded(x: torch.Tensor) -> torch.Tensor:
    """What is left of keys or values [.., width] in eight bits, in float32."""
    peak = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-12)
    return (x.float() * (torch.full_like(peak, 127) / peak)).round() * (peak / 127)


def memory(form: str, *shape: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A side of a cache in which anything lies that makes a result NaN if it is used, and its scales."""
    if not form.startswith("int8"):
        return torch.full(shape, float("nan"), dtype=dtype_of(form)), None
    return torch.randint(-128, 128, shape, dtype=torch.int8), torch.full(shape[:3], float("nan"))


@dataclass
class Paged:
    """Rows with their K/V in scattered blocks; what isn't theirs is NaN. `key` and `value` are as they are stored."""

    library: Library
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    block_size: int
    form: str
    rows: list[tuple[int, int]]

    def __post_init__(self) -> None:
        dtype = dtype_of(self.form)
        counts = [-(-length // self.block_size) for _, length in self.rows]
        free = list(range(1, sum(counts) + 1))
        random.Random(1).shuffle(free)
        blocks = len(free) + 1
        self.keys, key_scales = memory(self.form, blocks, self.kv_heads, self.block_size, self.key_dim)
        self.values, value_scales = memory(self.form, blocks, self.kv_heads, self.block_size, self.value_dim)
        self.scales: Scales | None = None
        if key_scales is not None and value_scales is not None:
            self.scales = key_scales, value_scales
        self.tables = torch.zeros(len(self.rows) + 3, max(counts) + 2, dtype=torch.int32)
        self.slots = torch.arange(len(self.rows), dtype=torch.int32).flip(0) + 2
        self.key, self.value, self.query = [], [], []
        for number, ((queries, length), count) in enumerate(zip(self.rows, counts, strict=True)):
            held = [free.pop() for _ in range(count)]
            self.tables[self.slots[number], :count] = torch.tensor(held, dtype=torch.int32)
            key = torch.randn(length, self.kv_heads, self.key_dim).to(dtype)
            value = torch.randn(length, self.kv_heads, self.value_dim).to(dtype)
            self.query.append(torch.randn(queries, self.heads, self.key_dim).to(dtype))
            places = torch.tensor(
                [held[p // self.block_size] * self.block_size + p % self.block_size for p in range(length)]
            )
            store(self.library, key, value, places, self.keys, self.values, self.scales)
            self.key.append(key if self.scales is None else rounded(key))
            self.value.append(value if self.scales is None else rounded(value))

    def attend(self, parts: list[tuple[int, int, int]], **options: Any) -> torch.Tensor:
        """Attention of parts (row, first query, last query + 1) as one batch."""
        begins = torch.tensor([0, *(end - begin for _, begin, end in parts)]).cumsum(0).int()
        lengths = [self.rows[row][1] - self.rows[row][0] + end for row, _, end in parts]
        return attend(
            self.library,
            torch.cat([self.query[row][begin:end] for row, begin, end in parts]),
            self.keys,
            self.values,
            begins,
            torch.tensor(lengths, dtype=torch.int32),
            self.slots[[row for row, _, _ in parts]].contiguous(),
            self.tables,
            self.scales,
            **options,
        )

    def plain(
        self, row: int, *, scale: float, window: int = 0, softcap: float = 0.0, sinks: Any = None
    ) -> torch.Tensor:
        """Attention of a row's queries, written out in float64."""
        key, value, query = self.key[row].double(), self.value[row].double(), self.query[row].double()
        group = self.heads // self.kv_heads
        positions = torch.arange(len(key))
        own = positions[len(key) - len(query) :, None]
        visible = (positions <= own) & ((positions > own - window) if window else True)
        scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(group, 1)) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(~visible, float("-inf"))
        if sinks is not None:
            scores = torch.cat((scores, sinks.double()[:, None, None].expand(-1, len(query), 1)), -1)
        weights = torch.softmax(scores, -1)[..., : len(key)]
        return torch.einsum("hqk,khd->qhd", weights, value.repeat_interleave(group, 1))


def whole(paged: Paged) -> list[tuple[int, int, int]]:
    return [(row, 0, queries) for row, (queries, _) in enumerate(paged.rows)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("extras", "window"), crossed(["both", "plain", "softcap", "sinks"], [9, 0, 1, 100]))
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_against_attention_by_hand(
    library: Library, form: str, extras: str, window: int, shape: tuple[int, ...]
) -> None:
    check(Paged(library, *shape, 16, form, ROWS), extras, window)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES[3:])
@pytest.mark.parametrize("block_size", [16, 32, 128])
def test_wide_heads_and_large_blocks(library: Library, form: str, shape: tuple[int, ...], block_size: int) -> None:
    check(Paged(library, *shape, block_size, form, ROWS), "plain", 0)


def check(paged: Paged, extras: str, window: int) -> None:
    options = {
        "scale": 1.5 / paged.key_dim**0.5,
        "window": window,
        "softcap": 2.0 if extras in {"softcap", "both"} else 0.0,
        "sinks": torch.randn(paged.heads) if extras in {"sinks", "both"} else None,
    }
    got = paged.attend(whole(paged), **options)
    expected = torch.cat([paged.plain(row, **options) for row in range(len(paged.rows))])
    bound = BOUND[paged.form]
    torch.testing.assert_close(got.double(), expected, atol=bound, rtol=bound)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{}, {"window": 37}, {"window": 100}, {"softcap": 3.0, "sinks": True}], ids=str)
def test_a_query_has_the_same_bits_in_any_chunk_and_batch(library: Library, form: str, options: dict[str, Any]) -> None:
    chance = random.Random(3)
    paged = Paged(library, 6, 2, 64, 48, 16, form, [(300, 300), (64, 171), (1, 90), (33, 33), (130, 515)])
    given = {**options, "scale": 0.2}
    if "sinks" in options:
        given["sinks"] = torch.randn(6)
    library.use_threads(1)
    alone = {
        (row, query): paged.attend([(row, query, query + 1)], **given)[0]
        for row, (queries, _) in enumerate(paged.rows)
        for query in range(queries)
    }
    for turn in range(24):
        library.use_threads(1 + turn % 3)
        parts = []
        for row in chance.sample(range(5), chance.randint(1, 5)):
            begin = chance.randrange(paged.rows[row][0])
            parts.append((row, begin, chance.randint(begin + 1, paged.rows[row][0])))
        got = paged.attend(parts, **given)
        expected = torch.stack([alone[row, query] for row, begin, end in parts for query in range(begin, end)])
        assert torch.equal(got, expected)
    library.use_threads(torch.get_num_threads())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("first", [None, 16, 17])
def test_rope_and_store_against_their_plain_forms(library: Library, form: str, normed: bool, first: int | None) -> None:
    """With tokens at scattered places, and at those from `first` on, where several share a word of the values."""
    heads, kv_heads, key_dim, value_dim, tokens, dtype = 6, 2, 64, 32, 37, dtype_of(form)
    joint = torch.randn(tokens, heads * key_dim + kv_heads * (key_dim + value_dim)).to(dtype)
    query, key, value = joint.split((heads * key_dim, kv_heads * key_dim, kv_heads * value_dim), -1)
    query, key = query.reshape(tokens, heads, key_dim), key.reshape(tokens, kv_heads, key_dim)
    norms = [torch.randn(key_dim) for _ in range(2)]
    angles = torch.randn(tokens, key_dim // 2) * 9
    rotations = torch.polar(torch.full_like(angles, 1.2), angles)

    def turned(x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        x = x.float()
        if normed:
            x = torch.nn.functional.rms_norm(x, (key_dim,), norm, 1e-5)
        pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * rotations[:, None]).flatten(-2).to(dtype)

    places = torch.randperm(64)[:tokens] + 16 if first is None else torch.arange(first, first + tokens)
    places[3] = -1
    assert tokens * (heads + 2 * kv_heads) * key_dim > 16384  # divided among threads

    is_int8 = form.startswith("int8")

    def memory(width: int) -> torch.Tensor:
        return torch.zeros(5, kv_heads, 16, width, dtype=torch.int8 if is_int8 else dtype)

    scales = [tuple(torch.zeros(5, kv_heads, 16) for _ in range(2)) if is_int8 else None for _ in range(3)]
    caches = [(memory(key_dim), memory(value_dim), scales[number]) for number in range(3)]
    given = {"heads": heads} | ({"query_norm": norms[0], "key_norm": norms[1], "eps": 1e-5} if normed else {})
    library.use_threads(3)
    got = rope_store(library, joint, rotations, places, *caches[0], **given)
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype is torch.float32 else {"atol": 0.02, "rtol": 0.01}
    torch.testing.assert_close(got, turned(query, norms[0]), **close)
    store(library, turned(key, norms[1]), value.reshape(tokens, kv_heads, value_dim).contiguous(), places, *caches[1])
    library.use_threads(torch.get_num_threads())
    if is_int8:
        # A norm or rotation that is rounded otherwise by a bit may be another byte, next to it.
        bytes_of_keys = [cache[0].int() & 255 for cache in caches]
        assert (bytes_of_keys[0] - bytes_of_keys[1]).abs().max() <= (1 if dtype is torch.float32 else 2)
        torch.testing.assert_close(scales[0][0], scales[1][0], **close)
        assert torch.equal(scales[0][1], scales[1][1])
    else:
        torch.testing.assert_close(caches[0][0], caches[1][0], **close)
    assert torch.equal(caches[0][1], caches[1][1])
    for number in range(tokens):  # each token as in the batch, to the bit
        one = rope_store(
            library,
            joint[number : number + 1],
            rotations[number : number + 1],
            places[[number]],
            *caches[2],
            **given,
        )
        assert torch.equal(one[0], got[number])
    for several, alone in zip(caches[0][:2], caches[2][:2], strict=True):
        assert torch.equal(several, alone)
    if is_int8:
        assert torch.equal(torch.stack(scales[0]), torch.stack(scales[2]))
    assert not caches[0][0][0].any()  # the null block stays as it is


def test_what_is_unsupported_is_told() -> None:
    assert unsupported(64, 64, 16, BF16) == unsupported(64, 64, 16, torch.int8) == ""
    assert "block of 4" in unsupported(64, 64, 4, BF16)
    assert "heads of 40" in unsupported(40, 64, 16, BF16)
    assert "no float16" in unsupported(64, 64, 16, torch.float16)


@pytest.mark.parametrize("form", FORMS)
def test_a_query_that_is_no_number_is_none_behind_a_cap_either(library: Library, form: str) -> None:
    paged = Paged(library, 4, 2, 32, 32, 16, form, [(1, 40), (1, 40)])
    paged.query[0][:] = float("nan")
    out = paged.attend(whole(paged), scale=1.0, softcap=5.0)
    assert torch.isnan(out[0]).all()
    assert torch.isfinite(out[1]).all()


@pytest.mark.parametrize("form", FORMS[2:])
def test_eight_bits_lose_at_most_half_a_step(library: Library, form: str) -> None:
    """Read through attention to one key alone, whose weight is 1: what is stored is what comes out."""
    paged = Paged(library, 2, 2, 32, 48, 16, form, [(1, 1)] * 3)
    values = torch.randn(3, 2, 48).to(dtype_of(form)) * torch.tensor([1e-6, 1.0, 1e6])[:, None, None].to(dtype_of(form))
    values[1, 0] = 0
    for row in range(3):
        place = paged.tables[paged.slots[row], :1].long() * 16
        store(
            library,
            torch.randn(1, 2, 32).to(values.dtype),
            values[row : row + 1],
            place,
            paged.keys,
            paged.values,
            paged.scales,
        )
    out = paged.attend(whole(paged), scale=1.0).float()
    step = values.float().abs().amax(-1, keepdim=True) / 127
    assert ((out - values.float()).abs() <= step * (0.502 if form == "int8-fp32" else 1.1)).all()
    assert not out[1, 0].any()


@pytest.mark.parametrize("form", FORMS[2:])
@pytest.mark.parametrize("what", ["keys", "values"])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite_in_eight_bits_is_seen_by_its_own_row_alone(
    library: Library, form: str, what: str, number: float
) -> None:
    paged = Paged(library, 4, 2, 32, 48, 16, form, [(3, 70), (3, 70)])
    before = paged.attend(whole(paged), scale=0.3)
    key, value = torch.randn(1, 2, 32).to(dtype_of(form)), torch.randn(1, 2, 48).to(dtype_of(form))
    (key if what == "keys" else value)[0, 1, 5] = number
    place = paged.tables[paged.slots[0], 4:5].long() * 16 + 4  # of position 68
    store(library, key, value, place, paged.keys, paged.values, paged.scales)
    out = paged.attend(whole(paged), scale=0.3)
    assert torch.equal(out[0], before[0])  # of a query that doesn't see it
    assert torch.equal(out[3:], before[3:])
    assert torch.isnan(out[1:3, 2:]).all()
