"""Mixtures of experts: routing, the products of each expert with its own tokens, and the sum of what they gave.

The pairs of a token and one of its experts are sorted by expert, each expert's in the order of tokens; a row is the
result of one pair, at its place in that order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from inference.cuda.kernels.matvec import compute_type

SMALL = 512  # pairs that one program sorts
LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def _route(
    logits,
    numbers,
    weights,
    stride,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    CHOSEN: tl.constexpr,
    PADDED_CHOSEN: tl.constexpr,
    IS_NORMALISED: tl.constexpr,
    IS_SHARED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, PADDED)
    place = tl.arange(0, PADDED_CHOSEN)
    inside = expert < EXPERTS
    x = tl.load(logits + token * stride + expert, mask=inside, other=float("-inf")).to(tl.float32)
    peak = tl.max(x, 0)
    parts = tl.where(inside, tl.exp(x - peak), 0.0)
    # What isn't finite takes part in the choice too, so that the numbers are always of different experts.
    left = tl.where(inside, tl.where(x > LOWEST, x, LOWEST), float("-inf"))
    number = tl.zeros([PADDED_CHOSEN], tl.int32)
    weight = tl.zeros([PADDED_CHOSEN], tl.float32)
    for k in tl.static_range(CHOSEN):
        best = tl.argmax(left, 0)
        number = tl.where(place == k, best, number)
        weight = tl.where(place == k, tl.sum(tl.where(expert == best, parts, 0.0), 0), weight)
        left = tl.where(expert == best, float("-inf"), left)
    total = tl.sum(weight, 0) if IS_NORMALISED else tl.sum(parts, 0)
    tl.store(numbers + token * CHOSEN + place, number, mask=place < CHOSEN)
    width: tl.constexpr = CHOSEN + IS_SHARED
    tl.store(weights + token * width + place, weight / total, mask=place < CHOSEN)
    if IS_SHARED:
        shared = tl.load(logits + token * stride + EXPERTS).to(tl.float32)
        tl.store(weights + token * width + CHOSEN, tl.sigmoid(shared))


@triton.jit
def _arrange(
    numbers,
    order,
    places,
    begins,
    tiles,
    PAIRS: tl.constexpr,
    PADDED_PAIRS: tl.constexpr,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    pair = tl.arange(0, PADDED_PAIRS)
    real = pair < PAIRS
    mine = tl.load(numbers + pair, mask=real, other=EXPERTS)
    # Each pair counts those before it, a chunk at a time.
    place = tl.zeros([PADDED_PAIRS], tl.int32)
    expert = tl.arange(0, PADDED)
    begin = tl.zeros([PADDED], tl.int32)
    end = tl.zeros([PADDED], tl.int32)
    for start in range(0, PAIRS, 16):
        other = start + tl.arange(0, 16)
        theirs = tl.load(numbers + other, mask=other < PAIRS, other=EXPERTS)
        is_lower = theirs[None, :] < mine[:, None]
        is_earlier = (theirs[None, :] == mine[:, None]) & (other[None, :] < pair[:, None])
        place += tl.sum(((other < PAIRS)[None, :] & (is_lower | is_earlier)).to(tl.int32), 1)
        begin += tl.sum((theirs[None, :] < expert[:, None]).to(tl.int32), 1)
        end += tl.sum((theirs[None, :] <= expert[:, None]).to(tl.int32), 1)
    tl.store(places + pair, place, mask=real)
    tl.store(order + place, pair, mask=real)
    end = tl.where(expert < EXPERTS, end, begin)
    needed = (end - begin + BLOCK_M - 1) // BLOCK_M
    tl.store(begins + expert, begin, mask=expert <= EXPERTS)
    tl.store(tiles + expert, tl.cumsum(needed, 0) - needed, mask=expert <= EXPERTS)


@triton.jit
def _grouped(
    x,
    weight,
    x_scales,
    weight_scales,
    order,
    begins,
    tiles,
    out,
    N,
    K,
    x_stride,
    CHOSEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    EVEN_K: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0)
    numbers = tl.arange(0, PADDED)
    before = tl.load(tiles + 1 + numbers, mask=numbers < EXPERTS, other=2147483647)
    expert = tl.sum((before <= tile).to(tl.int32), 0)
    if expert < EXPERTS:  # the grid has as many tiles as there may be
        m = tl.load(begins + expert) + (tile - tl.load(tiles + expert)) * BLOCK_M + tl.arange(0, BLOCK_M)
        real = m < tl.load(begins + expert + 1)
        line = m
        if CHOSEN:  # the rows of `x` are tokens
            line = tl.load(order + m, mask=real, other=0) // CHOSEN
        line = tl.where(real, line, 0).to(tl.int64)
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        row = expert.to(tl.int64) * N + n % N
        at_weight = weight + row[:, None] * K + k[None, :]
        at_x = x + line[None, :] * x_stride + k[:, None]
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.int32 if tl.int8 == COMPUTE else tl.float32)
        for start in range(0, K, BLOCK_K):
            if EVEN_K:
                w = tl.load(at_weight)
                a = tl.load(at_x, mask=real[None, :], other=0.0)
            else:
                rest = K - start
                w = tl.load(at_weight, mask=k[None, :] < rest, other=0.0)
                a = tl.load(at_x, mask=real[None, :] & (k[:, None] < rest), other=0.0)
            acc = tl.dot(w.to(COMPUTE), a.to(COMPUTE), acc, input_precision="ieee", out_dtype=acc.dtype)
            at_weight += BLOCK_K
            at_x += BLOCK_K
        result = acc.to(tl.float32)
        if HAS_SCALES:
            result *= tl.load(weight_scales + row)[:, None]
            result *= tl.load(x_scales + line, mask=real, other=0.0)[None, :]
        at = m.to(tl.int64)[None, :] * N + n[:, None]
        tl.store(out + at, result.to(out.dtype.element_ty), mask=(n < N)[:, None] & real[None, :])


@triton.jit
def _combine(
    rows, places, weights, residual, out, width, TERMS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    total = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(TERMS):
        place = tl.load(places + token * TERMS + k).to(tl.int64)
        row = tl.load(rows + place * width + column, mask=mask, other=0.0).to(tl.float32)
        total += row * tl.load(weights + token * TERMS + k)
    if HAS_RESIDUAL:
        total += tl.load(residual + token * width + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=mask)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The sorted pairs of one step, int32: `order` [T · k] is the pair at each place, `places` [T, k] where one stands.

    An expert's rows begin at `begins` [experts + 1], its tiles of `block` rows at `tiles` [experts + 1]; `most` is a
    bound on the number of tiles that doesn't depend on the routing.
    """

    order: torch.Tensor
    places: torch.Tensor
    begins: torch.Tensor
    tiles: torch.Tensor
    block: int
    most: int


def route(
    logits: torch.Tensor, chosen: int, *, is_normalised: bool, is_shared: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each token's experts int32 [T, chosen], the likeliest first, and their weights float32 [T, chosen (+ 1)].

    `logits` is [T, experts]. A weight is the softmax over all experts, or over those chosen with `is_normalised`. With
    `is_shared` the logits have one more column and so have the weights: its sigmoid.
    """
    tokens, experts = len(logits), logits.shape[1] - is_shared
    numbers = torch.empty(tokens, chosen, dtype=torch.int32, device=logits.device)
    weights = torch.empty(tokens, chosen + is_shared, dtype=torch.float32, device=logits.device)
    if tokens:
        _route[(tokens,)](
            logits,
            numbers,
            weights,
            logits.stride(0),
            EXPERTS=experts,
            PADDED=triton.next_power_of_2(experts),
            CHOSEN=chosen,
            PADDED_CHOSEN=triton.next_power_of_2(chosen),
            IS_NORMALISED=is_normalised,
            IS_SHARED=int(is_shared),
            num_warps=1 if experts <= 256 else 4,
        )
    return numbers, weights


def arrange(numbers: torch.Tensor, experts: int) -> Arrangement:
    """Return the arrangement of the pairs `numbers` int32 [T, k], each a number below `experts`."""
    flat = numbers.view(-1)
    pairs = len(flat)
    block = next((size for size in (16, 32, 64) if pairs <= size * experts), 128)
    places, order = torch.empty_like(flat), torch.empty_like(flat)
    if pairs <= SMALL:
        begins, tiles = torch.empty(2, experts + 1, dtype=torch.int32, device=flat.device).unbind()
        _arrange[(1,)](
            flat,
            order,
            places,
            begins,
            tiles,
            PAIRS=pairs,
            PADDED_PAIRS=triton.next_power_of_2(pairs),
            EXPERTS=experts,
            PADDED=triton.next_power_of_2(experts + 1),
            BLOCK_M=block,
        )
    else:
        numbers_in_order, sorted_pairs = torch.sort(flat, stable=True)
        order = sorted_pairs.int()
        places[sorted_pairs] = torch.arange(pairs, dtype=torch.int32, device=flat.device)
        all_experts = torch.arange(experts + 1, dtype=torch.int32, device=flat.device)
        begins = torch.searchsorted(numbers_in_order, all_experts, out_int32=True)
        needed = (begins.diff() + block - 1) // block
        tiles = torch.nn.functional.pad(needed.cumsum(0, dtype=torch.int32), (1, 0))
    most = min(pairs, pairs // block + experts)
    return Arrangement(order, places.view(numbers.shape), begins, tiles, block, most)


def grouped_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    arrangement: Arrangement,
    dtype: torch.dtype,
    *,
    chosen: int = 0,
    x_scales: torch.Tensor | None = None,
    weight_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x · weight[e]ᵀ for each row, of the expert e that it belongs to, as `dtype` [T · k, N].

    `x` is [T · k, K] in the order of `arrangement`, or with `chosen` = k its tokens [T, K]; `weight` is contiguous
    [experts, N, K]. Both are of one type of 16 or 32 bits, or of 8 with scales float32 of the rows of `x` and
    [experts, N].
    """
    experts, n, k = weight.shape
    out = torch.empty(len(arrangement.order), n, dtype=dtype, device=x.device)
    if not len(out):
        return out
    block_n = 64 if n >= 64 else 32
    block_k = 128 if weight.itemsize == 1 else 64 if weight.itemsize == 2 else 32
    _grouped[(arrangement.most, triton.cdiv(n, block_n))](
        x,
        weight,
        out if x_scales is None else x_scales,
        out if weight_scales is None else weight_scales,
        arrangement.order,
        arrangement.begins,
        arrangement.tiles,
        out,
        n,
        k,
        x.stride(0),
        CHOSEN=chosen,
        EXPERTS=experts,
        PADDED=triton.next_power_of_2(experts),
        HAS_SCALES=x_scales is not None and weight_scales is not None,
        EVEN_K=k % block_k == 0,
        COMPUTE=compute_type(x, weight),
        BLOCK_M=arrangement.block,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        num_warps=4,
        num_stages=4 if arrangement.block <= 32 else 3,
    )
    return out


def combine(
    rows: torch.Tensor, places: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Return Σ weights[t, k] · rows[places[t, k]] (+ residual[t]) [T, width] for each token t.

    `places` int32 and `weights` float32 [T, terms]; the sum is in float32, in the order of k, and rounded once.
    """
    (tokens, terms), width = places.shape, rows.shape[1]
    out = torch.empty(tokens, width, dtype=rows.dtype, device=rows.device)
    if tokens:
        block = min(1024, triton.next_power_of_2(width))
        _combine[(tokens, triton.cdiv(width, block))](
            rows,
            places,
            weights,
            out if residual is None else residual,
            out,
            width,
            TERMS=terms,
            HAS_RESIDUAL=residual is not None,
            BLOCK=block,
        )
    return out
