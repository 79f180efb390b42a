"""Compile every kernel as its functions launch it, for GPUs that needn't be here: python compiling.py all 80 90 100.
With `one` for `all` each kernel as it is launched first.

The functions are called with tensors of the device "meta", and each launch is compiled instead of run. It prints one
line for each kernel and target, and fails with the first that doesn't build.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"  # before the kernels are defined

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from inference.cuda.kernels.activation import gelu_mul, silu_mul
from inference.cuda.kernels.decode import decode
from inference.cuda.kernels.experts import arrange, combine, grouped_matmul, route
from inference.cuda.kernels.int4 import Int4Weight, int4_matmul, unpack_int4
from inference.cuda.kernels.low_rank import LowRankStep, PackedAdapter
from inference.cuda.kernels.matmul import scaled_matmul
from inference.cuda.kernels.matvec import matvec
from inference.cuda.kernels.norm import rms_norm
from inference.cuda.kernels.prefill import prefill
from inference.cuda.kernels.quantise import quantise
from inference.cuda.kernels.rope import rotate_and_store
from inference.cuda.kernels.sample import sample
from inference.cuda.kernels.store import store

NAMES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}
FLOAT8 = torch.float8_e4m3fn
HALF = torch.bfloat16
META = torch.device("meta")
SHARED = {80: 166912, 89: 101376, 90: 232448, 100: 232448, 120: 101376}  # bytes of one program

launches: dict[str, tuple[JITFunction[Any], dict[str, str], dict[str, Any], dict[Any, Any], dict[str, int]]] = {}


def record(kernel: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
    """Stand in for a launch: note what would be compiled for it."""
    values = dict(zip(kernel.arg_names, args, strict=False)) | {
        name: options.pop(name) for name in list(options) if name in kernel.arg_names
    }
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    aligned: dict[Any, Any] = {}
    for number, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = f"*{NAMES[value.dtype]}"
            aligned[number,] = [["tt.divisibility", 16]]
        elif not isinstance(value, float) and value == 1 and not parameter.do_not_specialize:  # a variant of its own
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = 1
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
        else:
            signature[parameter.name] = "i32" if abs(value) < 1 << 31 else "i64"
            if value % 16 == 0 and not parameter.do_not_specialize:
                aligned[number,] = [["tt.divisibility", 16]]
    types = " ".join(kind for kind in signature.values() if kind != "constexpr")
    key = f"{kernel.fn.__name__} {types} {constants} {options}"
    launches.setdefault(key, (kernel, signature, constants, aligned, options))


def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def attention(dtype: torch.dtype, cache: torch.dtype, dim: int, heads: int, kv_heads: int, **options: Any) -> None:
    keys = empty(cache, 1000, kv_heads, 16, dim)
    for rows in (1, 8):
        step = (empty(torch.int32, rows + 1), empty(torch.int32, rows), empty(torch.int32, rows))
        for kernel, tokens, extra in ((prefill, 2048, {}), (decode, rows, {"processors": 132})):
            query = empty(dtype, tokens, heads, dim)
            kernel(query, keys, keys, *step, empty(torch.int32, 64, 512), query, scale=0.1, **options, **extra)


def layer(dtype: torch.dtype, cache: torch.dtype) -> None:
    keys, places = empty(cache, 1000, 8, 16, 128), empty(torch.int64, 64)
    joint, norm = empty(dtype, 64, 48, 128), empty(torch.float32, 128)
    store(joint[:, :8], joint[:, 8:16], keys, keys, places)
    rotations = empty(torch.float32, 64, 64, 2)
    rotate_and_store(joint, rotations, keys, keys, places, query_heads=32)
    rotate_and_store(joint, rotations, keys, keys, places, query_heads=32, query_norm=norm, key_norm=norm)
    hidden, weight = empty(dtype, 64, 4096), empty(torch.float32, 4096)
    rms_norm(hidden, weight, 1e-6)
    silu_mul(empty(dtype, 64, 28672))
    gelu_mul(empty(dtype, 64, 28672))


def linears(dtype: torch.dtype, *, eight: torch.dtype) -> None:
    weight, scales, bias = empty(eight, 4096, 4096), empty(torch.float32, 4096), empty(dtype, 4096)
    for rows in (1, 64, 2048):
        x, x_scales = quantise(empty(dtype, rows, 4096), eight)
        scaled_matmul(x, weight, x_scales, scales, dtype, bias)
        if rows <= 64:
            matvec(x, weight, dtype, x_scales=x_scales, weight_scales=scales, residual=empty(dtype, rows, 4096))
    matvec(empty(dtype, 8, 4096), weight, dtype, weight_scales=scales, bias=bias)
    matvec(empty(dtype, 8, 4096), empty(dtype, 150000, 4096), dtype)
    int4 = Int4Weight(empty(torch.int32, 4096, 512), empty(torch.int32, 32, 4096), empty(torch.int32, 256))
    for rows in (1, 16, 32, 64, 200):
        int4_matmul(empty(dtype, rows, 4096), int4)
    unpack_int4(int4, dtype)


def adapters(dtype: torch.dtype) -> None:
    pair = (0, torch.zeros(16, 4096, dtype=dtype), torch.zeros(4096, 16, dtype=dtype))
    adapter, step = PackedAdapter(META, 9, {8: [pair]}), LowRankStep(META)
    for tokens in (1, 64, 2048):
        step.tell([(adapter, 0, tokens)], tokens)
        step.add(8, empty(dtype, tokens, 4096), empty(dtype, tokens, 4096), 128)


def experts(dtype: torch.dtype, *, eight: torch.dtype | None = None) -> None:
    scales = {"x_scales": empty(torch.float32, 64), "weight_scales": empty(torch.float32, 128, 1536)} if eight else {}
    for tokens in (1, 64, 4096):
        numbers, weights = route(empty(dtype, tokens, 129), 8, is_normalised=False, is_shared=True)
        arrangement = arrange(numbers, 128)
        x, weight = empty(eight or dtype, tokens, 2048), empty(eight or dtype, 128, 1536, 2048)
        grouped_matmul(x, weight, arrangement, dtype, chosen=8, **scales)
        rows = grouped_matmul(empty(eight or dtype, tokens * 8, 2048), weight, arrangement, dtype, **scales)
        combine(rows, numbers, weights[:, :8], empty(dtype, tokens, 1536))
    route(empty(dtype, 1, 8), 2, is_normalised=True, is_shared=False)


def sampling(dtype: torch.dtype) -> None:
    rows = 8
    parameters = {
        "temperature": empty(torch.float32, rows),
        "top_k": empty(torch.int32, rows),
        "top_p": empty(torch.float32, rows),
        "min_p": empty(torch.float32, rows),
        "keys": empty(torch.int64, rows),
    }
    for allowed in (None, empty(torch.int32, rows, 4748)):
        sample(empty(dtype, rows, 151936), empty(torch.int64, rows), allowed=allowed, **parameters)


def everything(capability: int) -> list[Callable[[], None]]:
    """What the engine launches on a GPU of that capability. Triton has float8_e4m3fn from 89 on."""
    calls: list[Callable[[], None]] = [
        lambda: attention(HALF, HALF, 128, 32, 8),
        lambda: attention(HALF, HALF, 256, 8, 4, window=1024, softcap=50.0),
        lambda: attention(torch.float16, torch.float16, 80, 5, 1),
        lambda: attention(HALF, HALF, 64, 64, 8, window=128, sinks=empty(HALF, 64)),
        lambda: attention(torch.float32, torch.float32, 64, 8, 2),
        lambda: layer(HALF, HALF),
        lambda: layer(torch.float32, torch.float32),
        lambda: linears(HALF, eight=torch.int8),
        lambda: linears(torch.float32, eight=torch.int8),
        lambda: adapters(HALF),
        lambda: adapters(torch.float32),
        lambda: experts(HALF),
        lambda: experts(HALF, eight=torch.int8),
        lambda: experts(torch.float32),
        lambda: sampling(HALF),
        lambda: sampling(torch.float32),
    ]
    if capability >= 89:
        calls += [
            lambda: attention(HALF, FLOAT8, 128, 32, 8),
            lambda: layer(HALF, FLOAT8),
            lambda: linears(HALF, eight=FLOAT8),
            lambda: experts(HALF, eight=FLOAT8),
        ]
    return calls


def build(key: str, capability: int) -> str:
    kernel, signature, constants, aligned, options = launches[key]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert compiled.metadata.shared <= SHARED[capability], f"sm_{capability} {key}: {compiled.metadata.shared} bytes"
    return f"sm_{capability} {kernel.fn.__name__} {len(compiled.asm['cubin'])}"


def main(which: str, capabilities: list[int]) -> None:
    JITFunction.run = record  # type: ignore[method-assign]
    torch.set_num_threads(1)
    with ThreadPoolExecutor(2) as pool:
        for capability in capabilities:
            launches.clear()
            for call in everything(capability):
                call()
            keys = list(launches if which == "all" else {launches[key][0]: key for key in reversed(launches)}.values())
            for line in pool.map(lambda key, at=capability: build(key, at), keys):
                print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], [int(argument) for argument in sys.argv[2:]])
