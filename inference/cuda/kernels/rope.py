"""Queries and keys normed and rotated, keys and values stored: from the joint projection in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference.cuda.kernels.store import narrowed

HEADS_PER_PROGRAM = 8


@triton.jit
def _half(x, norm, square, is_normed, HAS_NORM: tl.constexpr, WIDTH: tl.constexpr, eps, dtype: tl.constexpr):
    """One half of each pair, normed where `is_normed` and rounded to the model's dtype as an own step would."""
    if HAS_NORM:
        normed = x * tl.rsqrt(square / WIDTH + eps)[:, None] * norm
        x = tl.where(is_normed[:, None], normed.to(dtype).to(tl.float32), x)
    return x


@triton.jit
def _rotate_and_store(
    joint,
    rotations,
    query_norm,
    key_norm,
    places,
    query,
    keys,
    values,
    eps,
    key_scale,
    value_scale,
    joint_stride,
    query_heads,
    kv_heads,
    BLOCK_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_query = head < query_heads
    is_key = (head >= query_heads) & (head < query_heads + kv_heads)
    is_value = (head >= query_heads + kv_heads) & (head < query_heads + 2 * kv_heads)
    is_rotated = is_query | is_key

    pair = tl.arange(0, PADDED_HALF)
    within = pair < WIDTH // 2
    mask = (is_rotated | is_value)[:, None] & within[None, :]
    dtype: tl.constexpr = joint.dtype.element_ty
    base = joint + token * joint_stride + head[:, None] * WIDTH + 2 * pair[None, :]
    even = tl.load(base, mask=mask, other=0.0).to(tl.float32)
    odd = tl.load(base + 1, mask=mask, other=0.0).to(tl.float32)

    if HAS_NORM:
        of_query = is_query[:, None]
        even_norm = tl.where(
            of_query,
            tl.load(query_norm + 2 * pair, mask=within, other=0.0).to(tl.float32)[None, :],
            tl.load(key_norm + 2 * pair, mask=within, other=0.0).to(tl.float32)[None, :],
        )
        odd_norm = tl.where(
            of_query,
            tl.load(query_norm + 2 * pair + 1, mask=within, other=0.0).to(tl.float32)[None, :],
            tl.load(key_norm + 2 * pair + 1, mask=within, other=0.0).to(tl.float32)[None, :],
        )
        square = tl.sum(even * even + odd * odd, 1)
        even = _half(even, even_norm, square, is_rotated, HAS_NORM, WIDTH, eps, dtype)
        odd = _half(odd, odd_norm, square, is_rotated, HAS_NORM, WIDTH, eps, dtype)

    turn = rotations + token * WIDTH + 2 * pair
    cosine = tl.where(is_rotated[:, None], tl.load(turn, mask=within, other=0.0)[None, :], 1.0)
    sine = tl.where(is_rotated[:, None], tl.load(turn + 1, mask=within, other=0.0)[None, :], 0.0)
    real = (even * cosine - odd * sine).to(dtype)
    imaginary = (even * sine + odd * cosine).to(dtype)

    at = query + (token * query_heads + head[:, None]) * WIDTH + 2 * pair[None, :]
    to_query = is_query[:, None] & within[None, :]
    tl.store(at, real, mask=to_query)
    tl.store(at + 1, imaginary, mask=to_query)

    place = tl.load(places + token)
    written = (place >= BLOCK_SIZE) & within[None, :]
    block_row = (place // BLOCK_SIZE) * kv_heads
    offset = place % BLOCK_SIZE
    stored: tl.constexpr = keys.dtype.element_ty
    at_key = keys + ((block_row + head[:, None] - query_heads) * BLOCK_SIZE + offset) * WIDTH + 2 * pair[None, :]
    to_key = is_key[:, None] & written
    tl.store(at_key, narrowed(real, key_scale, stored), mask=to_key)
    tl.store(at_key + 1, narrowed(imaginary, key_scale, stored), mask=to_key)
    value_row = block_row + head[:, None] - query_heads - kv_heads
    at_value = values + (value_row * BLOCK_SIZE + offset) * WIDTH + 2 * pair[None, :]
    to_value = is_value[:, None] & written
    tl.store(at_value, narrowed(real, value_scale, stored), mask=to_value)
    tl.store(at_value + 1, narrowed(imaginary, value_scale, stored), mask=to_value)


def rotate_and_store(
    joint: torch.Tensor,
    rotations: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    places: torch.Tensor,
    *,
    query_heads: int,
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> torch.Tensor:
    """Return the rotated queries [T, query_heads, width]; write rotated keys and the values to `places`.

    `joint` [T, query_heads + 2 · kv_heads, width] holds queries, keys and values, the last two dimensions contiguous.
    The dimensions of queries and keys are pairs (real, imaginary), which `rotations` float32 [T, width / 2, 2] (cosine,
    sine) turns. With `query_norm` and `key_norm` [width] they get their RMS norm first. `keys`, `values`, `places` and
    the scales are those of `store`.
    """
    tokens, heads, width = joint.shape
    kv_heads = keys.shape[1]
    query = torch.empty(tokens, query_heads, width, dtype=joint.dtype, device=joint.device)
    if tokens:
        _rotate_and_store[(tokens, triton.cdiv(heads, HEADS_PER_PROGRAM))](
            joint,
            rotations,
            joint if query_norm is None else query_norm,
            joint if key_norm is None else key_norm,
            places,
            query,
            keys,
            values,
            eps,
            key_scale,
            value_scale,
            joint.stride(0),
            query_heads,
            kv_heads,
            BLOCK_SIZE=keys.shape[2],
            WIDTH=width,
            PADDED_HALF=triton.next_power_of_2(width // 2),
            HAS_NORM=query_norm is not None,
            HEADS=HEADS_PER_PROGRAM,
        )
    return query
