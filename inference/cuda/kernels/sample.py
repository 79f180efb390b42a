"""The next token of each row, without sorting: argmax, or the exact draw of a Gumbel race under top-k, top-p and min-p.

The tokens that pass the filters are the first of the order (logit descending, id ascending). So the race's winner over
all tokens is the draw if it passes; if not, no token behind it passes either, and the race is run again among those
before it. Each round takes two passes over the logits, and few rounds are needed. Only top-k together with top-p needs
the k-th largest logit, whose value a search over its bits finds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference.cuda.kernels.noise import exponentials

CHUNK = 4096
BLOCK = 4096
PIVOTS = 8


@triton.jit
def _logits(logits, allowed, token, vocabulary, words, HAS_MASK: tl.constexpr):
    """The logits of some tokens in float32, -inf where they are not allowed or don't exist."""
    within = token < vocabulary
    x = tl.load(logits + token, mask=within, other=float("-inf")).to(tl.float32)
    if HAS_MASK:
        word = tl.load(allowed + token // 32, mask=within & (token // 32 < words), other=0)
        x = tl.where((word >> (token % 32)) & 1 != 0, x, float("-inf"))
    return x


@triton.jit
def _score(x, token, key, temperature):
    """Scores of tokens in the race: the logits themselves when greedy."""
    drawn = x / tl.where(temperature > 0.0, temperature, 1.0) - tl.log(exponentials(key, token))
    return tl.where(temperature > 0.0, drawn, x)


@triton.jit
def _race(
    logits,
    allowed,
    temperatures,
    keys,
    scores,
    winners,
    peaks,
    masses,
    logits_stride,
    vocabulary,
    words,
    chunks,
    HAS_MASK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    x = _logits(logits + row * logits_stride, allowed + row * words, token, vocabulary, words, HAS_MASK)
    temperature = tl.load(temperatures + row)
    # NaN compares with nothing: make it +inf, which fails the row as well.
    x = tl.where(x != x, float("inf"), x)  # noqa: PLR0124
    peak = tl.max(x, 0)
    base = tl.where((peak == float("-inf")) | (peak == float("inf")), 0.0, peak)
    mass = tl.sum(tl.exp((tl.minimum(x, base) - base) / tl.where(temperature > 0.0, temperature, 1.0)), 0)
    score = _score(x, token, tl.load(keys + row), temperature)
    winner = tl.argmax(score, 0)
    at = row * chunks + chunk
    tl.store(scores + at, tl.max(score, 0))
    tl.store(winners + at, chunk * CHUNK + winner)
    tl.store(peaks + at, peak)
    tl.store(masses + at, mass)


@triton.jit
def _ordered(x):
    """Float32 as int32 in the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _top_mass(
    logits,
    allowed,
    vocabulary,
    words,
    peak,
    temperature,
    top_k,
    HAS_MASK: tl.constexpr,
    BLOCK: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """The mass of the `top_k` largest logits, relative to the peak."""
    low = _ordered(peak * 0.0 - float("inf")).to(tl.int64)
    high = _ordered(peak).to(tl.int64)
    number = tl.arange(0, PIVOTS)
    while low < high:  # the k-th largest is in low … high
        pivot = low + 1 + (high - low - 1) * number // (PIVOTS - 1)
        count = tl.zeros([PIVOTS], tl.int32)
        for start in range(0, vocabulary, BLOCK):
            token = start + tl.arange(0, BLOCK)
            x = _logits(logits, allowed, token, vocabulary, words, HAS_MASK)
            at_least = (_ordered(x)[:, None] >= pivot.to(tl.int32)[None, :]) & (token < vocabulary)[:, None]
            count += tl.sum(at_least.to(tl.int32), 0)
        enough = count >= top_k
        low = tl.max(tl.where(enough, pivot, low), 0)
        high = tl.min(tl.where(enough, high, pivot - 1), 0)
    kth = low.to(tl.int32)
    count_above = 0
    above = 0.0
    for start in range(0, vocabulary, BLOCK):
        x = _logits(logits, allowed, start + tl.arange(0, BLOCK), vocabulary, words, HAS_MASK)
        is_above = _ordered(x) > kth
        count_above += tl.sum(is_above.to(tl.int32), 0)
        above += tl.sum(tl.where(is_above, tl.exp((x - peak) / temperature), 0.0), 0)
    value = tl.where(kth < 0, kth ^ 0x7FFFFFFF, kth).to(tl.float32, bitcast=True)
    return above + (top_k - count_above).to(tl.float32) * tl.exp((value - peak) / temperature)


@triton.jit
def _settle(
    logits,
    allowed,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    keys,
    scores,
    winners,
    peaks,
    masses,
    tokens,
    logits_stride,
    vocabulary,
    words,
    chunks,
    HAS_MASK: tl.constexpr,
    PADDED_CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_stride
    allowed += row * words
    chunk = tl.arange(0, PADDED_CHUNKS)
    exists = chunk < chunks
    at = row * chunks + chunk
    score = tl.load(scores + at, mask=exists, other=float("-inf"))
    best = tl.argmax(score, 0)
    winner = tl.load(winners + row * chunks + best)
    chunk_peak = tl.load(peaks + at, mask=exists, other=float("-inf"))
    peak = tl.max(chunk_peak, 0)
    if (peak == float("inf")) | (peak == float("-inf")):
        tl.store(tokens + row, -1)
        return
    temperature = tl.load(temperatures + row)
    top_k = tl.load(top_ks + row)
    top_p = tl.load(top_ps + row)
    min_p = tl.load(min_ps + row)
    if (temperature > 0.0) & ((top_k > 0) | (top_p < 1.0) | (min_p > 0.0)):
        base = tl.where(chunk_peak == float("-inf"), 0.0, chunk_peak)
        mass = tl.load(masses + at, mask=exists, other=0.0)
        total = tl.sum(tl.where(chunk_peak == float("-inf"), 0.0, mass * tl.exp((base - peak) / temperature)), 0)
        if (top_k > 0) & (top_k < vocabulary) & (top_p < 1.0):
            total = _top_mass(logits, allowed, vocabulary, words, peak, temperature, top_k, HAS_MASK, BLOCK, PIVOTS)
        key = tl.load(keys + row)
        settled = 0
        while settled == 0:
            pivot = tl.load(logits + winner).to(tl.float32)
            count = 0
            before = 0.0
            for start in range(0, vocabulary, BLOCK):
                token = start + tl.arange(0, BLOCK)
                x = _logits(logits, allowed, token, vocabulary, words, HAS_MASK)
                is_before = (x > pivot) | ((x == pivot) & (token < winner))
                count += tl.sum(is_before.to(tl.int32), 0)
                before += tl.sum(tl.where(is_before, tl.exp((x - peak) / temperature), 0.0), 0)
            passes = (count == 0) | (
                ((top_k == 0) | (count < top_k))
                & ((top_p >= 1.0) | (before < top_p * total))
                & (tl.exp((pivot - peak) / temperature) >= min_p)
            )
            settled = passes.to(tl.int32)
            if settled == 0:
                lead = float("-inf")
                next_winner = winner
                for start in range(0, vocabulary, BLOCK):
                    token = start + tl.arange(0, BLOCK)
                    x = _logits(logits, allowed, token, vocabulary, words, HAS_MASK)
                    is_before = (x > pivot) | ((x == pivot) & (token < winner))
                    race = tl.where(is_before, _score(x, token, key, temperature), float("-inf"))
                    leading = tl.max(race, 0)
                    candidate = start + tl.argmax(race, 0)
                    next_winner = tl.where(leading > lead, candidate, next_winner)
                    lead = tl.maximum(leading, lead)
                winner = next_winner
    tl.store(tokens + row, winner.to(tl.int64))


def sample(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    keys: torch.Tensor,
    allowed: torch.Tensor | None = None,
) -> None:
    """Write each row's token to `tokens` int64 [S], -1 where a row's largest logit is not finite.

    `logits` [S, vocabulary] may have gaps between its rows. `temperature`, `top_p` and `min_p` are float32 [S],
    `top_k` int32 [S] (0: off), `keys` int64 [S] the noise keys. Temperature 0 takes the first of the largest logits.
    Bit t % 32 of `allowed[s, t // 32]` (int32 [S, words]) says whether row s may take token t. A row's token depends
    on its own values alone; nothing is read back to the host.
    """
    rows, vocabulary = logits.shape
    if not rows:
        return
    chunks = triton.cdiv(vocabulary, CHUNK)
    scores, peaks, masses = torch.empty(3, rows, chunks, dtype=torch.float32, device=logits.device).unbind()
    winners = torch.empty(rows, chunks, dtype=torch.int32, device=logits.device)
    words = 0 if allowed is None else allowed.shape[1]
    bits = winners if allowed is None else allowed
    _race[(rows, chunks)](
        logits,
        bits,
        temperature,
        keys,
        scores,
        winners,
        peaks,
        masses,
        logits.stride(0),
        vocabulary,
        words,
        chunks,
        HAS_MASK=allowed is not None,
        CHUNK=CHUNK,
        num_warps=8,
    )
    _settle[(rows,)](
        logits,
        bits,
        temperature,
        top_k,
        top_p,
        min_p,
        keys,
        scores,
        winners,
        peaks,
        masses,
        tokens,
        logits.stride(0),
        vocabulary,
        words,
        chunks,
        HAS_MASK=allowed is not None,
        PADDED_CHUNKS=triton.next_power_of_2(chunks),
        BLOCK=BLOCK,
        PIVOTS=PIVOTS,
        num_warps=16,
    )
