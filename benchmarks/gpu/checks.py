"""Every kernel on this device against plain torch, in the dtypes that it serves in."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import torch

from benchmarks.gpu.reference import attention, rotated
from benchmarks.gpu.shapes import Sizes
from inference.cuda.kernels import experts as kernels
from inference.cuda.kernels.activation import gelu_mul, silu_mul
from inference.cuda.kernels.decode import decode
from inference.cuda.kernels.int4 import int4_matmul, quantise_int4, unpack_int4
from inference.cuda.kernels.low_rank import FEW, LowRankStep, PackedAdapter
from inference.cuda.kernels.matmul import scaled_matmul
from inference.cuda.kernels.matvec import matvec
from inference.cuda.kernels.norm import rms_norm
from inference.cuda.kernels.prefill import prefill
from inference.cuda.kernels.quantise import quantise
from inference.cuda.kernels.rope import rotate_and_store
from inference.cuda.kernels.sample import sample
from inference.cuda.kernels.store import store
from inference.execution import experts

Check = tuple[str, float, float]  # what, the error relative to the reference's spread, the most allowed


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    if not torch.isfinite(found.float()).all():
        return float("inf")
    return float((found.float() - expected.float()).abs().max() / expected.float().abs().max().clamp(min=1e-6))


def parts(sizes: Sizes) -> dict[str, Callable[[], Iterator[Check]]]:
    """Return the checks in parts that need nothing of each other, by name: those of the dtype that is served first."""
    small = sizes.device.type == "cpu"
    dtypes = (torch.float32,) if small else (torch.bfloat16, torch.float16, torch.float32)
    kernels_of = {
        "attention": _attention,
        "fused": _fused,
        "linear": _linears,
        "experts": _experts,
        "low rank": _adapters,
    }
    found: dict[str, Callable[[], Iterator[Check]]] = {
        f"{name} {dtype}": partial(part, sizes, dtype) for dtype in dtypes for name, part in kernels_of.items()
    }
    found["sampling"] = partial(_sampling, sizes)
    found["invariance"] = partial(_invariance, sizes, dtypes[0])
    return found


def run(sizes: Sizes) -> list[Check]:
    """Return every check; one whose error is above its bound has failed. A part that raises is one that failed."""
    checks: list[Check] = []
    for name, part in parts(sizes).items():
        torch.manual_seed(0)
        try:
            checks.extend(part())
        except Exception as error:  # noqa: BLE001 - whatever it is, the other parts still run
            traceback.print_exc()
            checks.append((f"{name}: {type(error).__name__}", float("inf"), 0.0))
    return checks


def _bound(dtype: torch.dtype) -> float:
    return {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}[dtype]


def _step(  # noqa: PLR0917 - called in one way
    rows: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, size: int, dtype: torch.dtype, sizes: Sizes
) -> tuple[torch.Tensor, ...]:
    device = sizes.device
    counts = [-(-length // size) for _, length in rows]
    order = (torch.randperm(sum(counts)) + 1).int()
    tables = torch.zeros(len(rows), max(counts), dtype=torch.int32)
    for row, blocks in enumerate(order.split(counts)):
        tables[row, : counts[row]] = blocks
    cache = torch.randn(2, sum(counts) + 1, kv_heads, size, dim, device=device).to(dtype)
    query = torch.randn(sum(new for new, _ in rows), heads, dim, device=device).to(dtype)
    begins = torch.tensor([0, *(new for new, _ in rows)]).cumsum(0).int()
    lengths = torch.tensor([length for _, length in rows]).int()
    slots = torch.arange(len(rows)).int()
    return query, cache[0], cache[1], *(part.to(device) for part in (begins, lengths, slots, tables))


def _attention(sizes: Sizes, dtype: torch.dtype) -> Iterator[Check]:
    small = sizes.device.type == "cpu"
    mixes: list[list[tuple[int, int]]] = (
        [[(1, 40), (5, 18)]] if small else [[(1, 1328), (5, 18), (129, 463)], [(1, 1), (1, 4000), (2, 700), (4, 4)]]
    )
    shapes = [(2, 1, 64, 16)] if small else [(4, 4, 128, 16), (32, 8, 128, 16), (5, 1, 80, 32), (8, 2, 256, 16)]
    extras: list[dict[str, object]] = [{}, {"window": 20, "softcap": 5.0}, {"window": 300}]
    for heads, kv_heads, dim, size in shapes:
        for rows in mixes:
            for extra in extras[: 2 if small else 3]:
                step = _step(rows, heads, kv_heads, dim, size, dtype, sizes)
                expected = attention(*step, scale=dim**-0.5, **extra)
                out = torch.full_like(step[0], float("nan"))
                decode(*step, out, scale=dim**-0.5, processors=8, max_queries=4, **extra)
                prefill(*step, out, scale=dim**-0.5, min_queries=5, **extra)
                name = f"attention {heads}/{kv_heads}x{dim} {rows} {extra or ''} {dtype}"
                yield name, _error(out, expected), _bound(dtype)


def _fused(sizes: Sizes, dtype: torch.dtype) -> Iterator[Check]:
    device, bound = sizes.device, _bound(dtype)
    width = 96 if device.type == "cpu" else 4096
    x = torch.randn(7, width, device=device).to(dtype)
    weight = torch.randn(width, device=device).to(dtype)
    norm: Callable[[torch.Tensor], torch.Tensor] = lambda x: torch.nn.functional.rms_norm(  # noqa: E731
        x.float(), (width,), weight.float(), 1e-5
    )
    yield f"rms_norm {dtype}", _error(rms_norm(x, weight, 1e-5), norm(x)), bound
    gate, up = torch.randn(7, 2 * width, device=device).to(dtype).chunk(2, -1)
    joint = torch.cat((gate, up), -1)
    for name, kernel, act in (("silu", silu_mul, torch.nn.functional.silu), ("gelu", gelu_mul, _gelu)):
        yield f"{name}_mul {dtype}", _error(kernel(joint), act(gate.float()) * up.float()), bound
    heads, kv_heads, dim = 8, 2, 128
    joint = torch.randn(7, heads + 2 * kv_heads, dim, device=device).to(dtype)
    angles = torch.rand(7, dim // 2, device=device) * 6
    rotations = torch.stack((angles.cos(), angles.sin()), -1)
    places = torch.arange(16, 23, device=device)
    caches = [torch.zeros(3, kv_heads, 16, dim, dtype=dtype, device=device) for _ in range(4)]
    query = rotate_and_store(joint, rotations, caches[0], caches[1], places, query_heads=heads)
    key = rotated(joint[:, heads : heads + kv_heads], rotations).to(dtype)
    store(key, joint[:, heads + kv_heads :], caches[2], caches[3], places)
    yield f"rope {dtype}", _error(query, rotated(joint[:, :heads], rotations)), bound
    yield f"rope's store {dtype}", _error(caches[0], caches[2]) + _error(caches[1], caches[3]), bound


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


def _linears(sizes: Sizes, dtype: torch.dtype) -> Iterator[Check]:
    device, bound = sizes.device, _bound(dtype)
    n, k = (40, 128) if device.type == "cpu" else (6144, 4096)
    weight = torch.randn(n, k, device=device).to(dtype) * k**-0.5
    for m in (1, 3, 16) if device.type == "cpu" else (1, 3, 16, 40, 64):
        x = torch.randn(m, k, device=device).to(dtype)
        yield f"matvec {m} rows {dtype}", _error(matvec(x, weight, dtype), x.float() @ weight.float().T), bound
    int4 = quantise_int4(weight)
    for m in (2,) if device.type == "cpu" else (1, 16, 32, 64, 200):
        x = torch.randn(m, k, device=device).to(dtype)
        expected = x.float() @ unpack_int4(int4, torch.float32).T
        yield f"int4 {m} rows {dtype}", _error(int4_matmul(x, int4), expected), bound
    kinds = [torch.int8]
    if device.type == "cpu" or torch.cuda.get_device_capability() >= (8, 9):
        kinds.append(torch.float8_e4m3fn)
    for kind in kinds:
        numbers, scales = quantise(weight, kind)
        for m in (2,) if device.type == "cpu" else (1, 16, 64, 200):
            x, x_scales = quantise(torch.randn(m, k, device=device).to(dtype), kind)
            expected = (x.float() @ numbers.float().T) * x_scales[:, None] * scales
            found = scaled_matmul(x, numbers, x_scales, scales, dtype)
            # Float8 sums on Hopper's tensor cores keep fewer bits than float32.
            yield f"matmul {kind} {m} rows {dtype}", _error(found, expected), max(bound, 1e-2)
            if m <= 64:
                found = matvec(x, numbers, dtype, x_scales=x_scales, weight_scales=scales)
                yield f"matvec {kind} {m} rows {dtype}", _error(found, expected), bound


def _experts(sizes: Sizes, dtype: torch.dtype) -> Iterator[Check]:
    """Routing, products and sums, with many tokens of one expert and few of others."""
    device, bound = sizes.device, _bound(dtype)
    count, n, k = (6, 40, 64) if device.type == "cpu" else (64, 1536, 2048)
    weight = torch.randn(count, n, k, device=device).to(dtype) * k**-0.5
    for tokens in (5,) if device.type == "cpu" else (1, 40, 700):
        logits = torch.randn(tokens, count, device=device)
        logits[:, 1] += 5
        numbers, weights = experts.route(logits, 4, is_normalised=True, is_shared=False)
        found, shares = kernels.route(logits, 4, is_normalised=True, is_shared=False)
        yield f"route {tokens} tokens", float((found != numbers).sum()) + _error(shares, weights), 1e-5
        x = torch.randn(tokens, k, device=device).to(dtype)
        arrangement = kernels.arrange(numbers, count)
        rows = kernels.grouped_matmul(x, weight, arrangement, dtype, chosen=4)
        owners = numbers.view(-1)[arrangement.order.long()].long()
        given = x[arrangement.order.long() // 4]
        expected = torch.empty(len(owners), n, device=device)
        for expert in owners.unique().tolist():
            expected[owners == expert] = given[owners == expert].float() @ weight[expert].float().T
        yield f"experts {tokens} tokens {dtype}", _error(rows, expected), bound
        summed = experts.combine(rows, arrangement.places, weights, None)
        yield (
            f"combine {tokens} tokens {dtype}",
            _error(kernels.combine(rows, arrangement.places, weights), summed),
            bound,
        )


def _adapters(sizes: Sizes, dtype: torch.dtype) -> Iterator[Check]:
    """Adapters of several ranks, of two modules side by side, in one step with tokens of none; one changes nothing."""
    device, bound = sizes.device, _bound(dtype)
    small = device.type == "cpu"
    k, widths = (64, (40, 24)) if small else (4096, (4096, 1024))

    def parts(rank: int) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
        pairs = [(torch.randn(rank, k) * k**-0.5, torch.randn(width, rank)) for width in widths]
        begins = (0, widths[0])
        return [(at, down.to(dtype), up.to(dtype)) for at, (down, up) in zip(begins, pairs, strict=True)]

    known = {rank: parts(rank) for rank in ((3, 16) if small else (1, 8, 16, 37, 64, 128))}
    packed = {rank: PackedAdapter(device, 2, {1: known[rank]}) for rank in known}
    elsewhere = PackedAdapter(device, 2, {0: parts(4)})
    for tokens in (3, 21) if small else (1, 8, 32, 256, FEW + 1, 2000):
        x, base = (torch.randn(tokens, width, device=device).to(dtype) for width in (k, sum(widths)))
        cuts = sorted({0, *(tokens * number // (len(known) + 2) for number in range(1, len(known) + 3))})
        owners = [*known, 0, -1]
        spans = [(owner, *span) for owner, span in zip(owners, pairwise(cuts), strict=False)]
        step, out, expected = LowRankStep(device), base.clone(), base.float()
        step.tell([(packed.get(owner, elsewhere), begin, end) for owner, begin, end in spans if owner >= 0], tokens)
        step.add(1, x, out, 2 * 128)
        for owner, begin, end in spans:
            for at, down, up in known.get(owner, ()):
                hidden = (x[begin:end].float() @ down.to(device).float().T).to(dtype).float()
                expected[begin:end, at : at + len(up)] += hidden @ up.to(device).float().T
        yield f"adapters {tokens} tokens {dtype}", _error(out, expected), bound


def _sampling(sizes: Sizes) -> Iterator[Check]:
    device = sizes.device
    vocabulary = 3000 if device.type == "cpu" else 151936
    rows = 2 if device.type == "cpu" else 64
    logits = torch.randn(rows, vocabulary, device=device) * 4
    tokens = torch.empty(rows, dtype=torch.long, device=device)
    for name, temperature, top_k, top_p in (
        ("greedy", 0.0, 0, 1.0),
        ("top-k", 1.0, 20, 1.0),
        ("top-p", 0.8, 0, 0.7),
        ("both", 1.2, 50, 0.8),
    ):
        sample(
            logits,
            tokens,
            temperature=torch.full((rows,), temperature, device=device),
            top_k=torch.full((rows,), top_k, dtype=torch.int32, device=device),
            top_p=torch.full((rows,), top_p, device=device),
            min_p=torch.zeros(rows, device=device),
            keys=torch.arange(rows, device=device),
        )
        ranks = (logits > logits.gather(1, tokens[:, None])).sum(1)
        before = torch.where(
            logits > logits.gather(1, tokens[:, None]), (logits / max(temperature, 1e-6)).softmax(1), 0
        ).sum(1)
        wrong = (ranks >= (top_k or (1 if not temperature else vocabulary))) | ((before > top_p + 1e-3) & (top_p < 1))
        yield f"sampling {name}", float(wrong.float().mean()), 0.0


def _invariance(sizes: Sizes, dtype: torch.dtype) -> Iterator[Check]:
    """A row alone and in a batch, and a prompt whole and in chunks, are the same bits."""
    small = sizes.device.type == "cpu"
    rows = [(1, 40), (1, 7)] if small else [(1, 2900), (1, 30), (1, 1025), (1, 257)]
    query, keys, values, begins, lengths, slots, tables = _step(rows, 8, 2, 64, 16, dtype, sizes)
    together = torch.empty_like(query)
    decode(query, keys, values, begins, lengths, slots, tables, together, scale=0.1, processors=132)
    alone = torch.empty_like(query)
    for row in range(len(rows)):
        part = slice(row, row + 1)
        one = (query[part], keys, values, begins[:2], lengths[part], slots[part], tables, alone[part])
        decode(*one, scale=0.1, processors=1)
    yield "decoding alone and in a batch", float((alone != together).any()), 0.0
    length = 40 if small else 700
    query, keys, values, begins, lengths, slots, tables = _step([(length, length)], 8, 2, 64, 16, dtype, sizes)
    whole, chunked = torch.empty_like(query), torch.empty_like(query)
    prefill(query, keys, values, begins, lengths, slots, tables, whole, scale=0.1)
    cuts = [0, 32, length] if small else [0, 100, 333, length]
    for begin, end in pairwise(cuts):
        ends = torch.tensor([0, end - begin], dtype=torch.int32, device=sizes.device)
        until = torch.tensor([end], dtype=torch.int32, device=sizes.device)
        prefill(query[begin:end], keys, values, ends, until, slots, tables, chunked[begin:end], scale=0.1)
    yield "a prompt whole and in chunks", float((whole != chunked).any()), 0.0
    n, k = (40, 128) if small else (6144, 4096)
    weight, x = (torch.randn(size, k, device=sizes.device).to(dtype) for size in (n, 4 if small else 64))
    every = matvec(x, weight, dtype)
    for rows in (1, 3) if small else (1, 8, 16, 32):
        yield f"products of {rows} rows and of all", float((matvec(x[:rows], weight, dtype) != every[:rows]).any()), 0.0
