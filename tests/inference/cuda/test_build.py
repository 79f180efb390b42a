"""A model made ready for CUDA on a stand-in device: the cache's size, graphs or the reason, and float8 K/V."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig
from triton.runtime.interpreter import GridExecutor

from inference.architectures import load
from inference.architectures.decoder import Decoder
from inference.architectures.weights import FolderWeights
from inference.config import ON_GPU, EngineConfig
from inference.core.step import Row, RowResult, StepPlan
from inference.cuda.build import Sizes, build
from inference.cuda.device import Room
from inference.cuda.operators import TritonOperators
from inference.errors import ModelRefusedError
from inference.execution.kv_cache import KVSpec, LayerShape
from inference.execution.operators import Operators, TorchOperators
from inference.types import SamplingParams
from tests.inference.cuda.host import HostDevice
from tests.inference.sweeps import first
from tests.inference.tiny import save_tiny

SIZES = Sizes(limit=40, rows=2, tokens=24, block_size=16)
SPEC = KVSpec((LayerShape(2, 16, 16),) * 4, torch.bfloat16)  # 512 bytes a token


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("llama"), num_hidden_layers=1)


def model(folder: Path, operators: Operators) -> Decoder:
    with torch.inference_mode(), FolderWeights(folder) as weights:
        return Decoder(AutoConfig.from_pretrained(folder), weights, torch.float32, operators)


def run(runner) -> tuple:
    row = Row(0, "a", (5, 6, 7), 0, (1,), True, 0, SamplingParams(temperature=0.0), 0)
    (answer,) = runner.launch(StepPlan(0, (row,))).wait().rows
    assert isinstance(answer, RowResult), answer
    return answer.tokens


def test_the_cache_takes_what_the_largest_step_leaves() -> None:
    room = Room(free=10_000_000, peak=2_000_000)
    assert room.blocks(SPEC, 16, tokens=0, max_tokens=1 << 20) == int(0.9 * 8_000_000) // 8192
    assert room.blocks(SPEC, 16, tokens=0, max_tokens=100) == 8
    assert room.blocks(SPEC, 16, tokens=160, max_tokens=1 << 20) == 11


def test_what_adapters_may_take_is_kept_free() -> None:
    room = Room(free=10_000_000, peak=2_000_000).beside(3_000_000)
    assert room.blocks(SPEC, 16, tokens=0, max_tokens=1 << 20) == int(0.9 * 5_000_000) // 8192
    with pytest.raises(ModelRefusedError, match=r"90% may be used of the -1\.0 MB"):
        Room(10_000_000, 2_000_000).beside(9_000_000).blocks(SPEC, 16, tokens=0, max_tokens=1 << 20)


def test_no_room_is_told_in_numbers() -> None:
    with pytest.raises(ModelRefusedError, match=r"1048576 tokens take 536.9 MB, and 90% may be used of the 8.0 MB"):
        Room(10_000_000, 2_000_000).blocks(SPEC, 16, tokens=1 << 20, max_tokens=1)
    with pytest.raises(ModelRefusedError, match=r"16 tokens take 0.0 MB"):
        Room(10, 2_000_000).blocks(SPEC, 16, tokens=0, max_tokens=1 << 20)


def test_a_model_whose_adapters_take_all_that_is_free_is_refused(folder: Path) -> None:
    device = HostDevice()
    with pytest.raises(ModelRefusedError, match="no room for its K/V"):
        build(model(folder, TorchOperators()), device, replace(SIZES, reserve=device.free))


def test_a_built_model_has_been_measured_and_captured(folder: Path) -> None:
    device = HostDevice()
    built = build(model(folder, TorchOperators()), device, SIZES)
    assert device.measured == 1
    assert built.cache.blocks == 40 * 2 // 16 + 1
    assert built.graphs == "captured for up to 2 rows"
    assert isinstance(run(built.runner)[0], int)


def test_what_cannot_be_captured_runs_without_graphs(folder: Path) -> None:
    built = build(model(folder, TorchOperators()), HostDevice(fails=RuntimeError("no capture")), SIZES)
    assert built.graphs == "none: no capture"
    assert isinstance(run(built.runner)[0], int)


@pytest.mark.parametrize("quantization", first(["w8a8", "", "int4"]))
def test_no_kernel_is_used_first_by_a_stream(folder: Path, monkeypatch: pytest.MonkeyPatch, quantization: str) -> None:
    """Compiling one takes seconds, in the thread of all streams."""
    launched: set[tuple[object, ...]] = set()
    run_kernel = GridExecutor.__call__

    def noted(kernel: GridExecutor, *args: object, **options: object) -> None:
        launched.add((kernel.fn.__name__, *sorted((name, str(value)) for name, value in options.items())))
        run_kernel(kernel, *args, **options)

    monkeypatch.setattr(GridExecutor, "__call__", noted)
    sizes = Sizes(limit=96, rows=8, tokens=80, block_size=16)
    runner = build(model(folder, TritonOperators(torch.device("cpu"), quantization)), HostDevice(), sizes).runner
    built = set(launched)
    launched.clear()

    def row(slot: int, count: int, start: int = 0, drafts: int = 0) -> Row:
        sampling = SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1)
        return Row(slot, str(slot), (1,) * count, start, (1, 2, 3, 4, 5), True, 0, sampling, 0, drafts=drafts)

    for rows in ([row(0, n)] for n in (1, 2, 17, 66)):
        runner.launch(StepPlan(0, tuple(rows))).wait()
    for rows in ([row(0, 1, 30), row(1, 9), row(2, 33)], [row(0, 3, 5, drafts=2), row(1, 1, 9)]):
        runner.launch(StepPlan(0, tuple(rows))).wait()
    assert launched
    assert launched - built == set()


def test_float8_keys_and_values_take_half_of_sixteen_bits(folder: Path) -> None:
    sizes = Sizes(limit=40, rows=2, tokens=24, block_size=16, kv_dtype="fp8")
    decoder = model(folder, TritonOperators(torch.device("cpu")))
    built = build(decoder, HostDevice(), sizes)
    assert built.cache.spec.dtype is torch.float8_e4m3fn
    assert isinstance(run(built.runner)[0], int)
    with pytest.raises(ModelRefusedError, match="fp8 K/V need the Triton kernels, and attention is by torch reference"):
        build(model(folder, TorchOperators()), HostDevice(), sizes)


@pytest.mark.parametrize(
    ("capability", "is_refused"),
    first([((8, 6), True), ((7, 5), True), ((8, 9), False), ((12, 0), False)], of=lambda case: case[1]),
)
def test_float8_keys_and_values_need_a_gpu_that_has_float8(folder: Path, capability, is_refused) -> None:
    """Triton would fail in its compiler while the model is loaded, which names neither the setting nor the way out."""
    sizes = replace(SIZES, kv_dtype="fp8")
    decoder, device = model(folder, TritonOperators(torch.device("cpu"))), HostDevice(capability=capability)
    if is_refused:
        reason = (
            rf"kv_dtype fp8 needs .* 8\.9 or above, and this one has {capability[0]}\.{capability[1]}: set kv_dtype"
        )
        with pytest.raises(ModelRefusedError, match=reason):
            build(decoder, device, sizes)
        assert device.measured == 0
    else:
        assert build(decoder, device, sizes).cache.spec.dtype is torch.float8_e4m3fn
    assert build(decoder, device, SIZES).cache.spec.dtype is torch.float32


def test_loading_on_a_gpu_builds_by_the_deployments_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = HostDevice()
    monkeypatch.setattr("inference.cuda.device.Cuda", lambda _: device)
    decoder = model(folder, TorchOperators())
    config = EngineConfig("d", "x", max_rows=2, max_step_tokens=16, kv_tokens=64)
    runner, attention, graphs, _ = load._on_gpu(decoder, config, config.sizes(ON_GPU), 40, 0)
    assert (attention.cache.blocks, attention.max_rows, graphs) == (5, 3, "captured for up to 2 rows")
    assert isinstance(run(runner)[0], int)

    def broken(batch) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(decoder, "forward", broken)
    with pytest.raises(ModelRefusedError, match="a step of 16 tokens doesn't fit on cpu: CUDA out of memory"):
        load._on_gpu(decoder, config, config.sizes(ON_GPU), 40, 0)


def test_steps_of_a_gpu_are_as_large_as_fit_unless_the_deployment_says_how_large(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.cuda.device.Cuda", lambda _: HostDevice())
    decoder = model(folder, TorchOperators())
    forward = decoder.forward

    def small(batch):
        if batch.ids.shape[0] > 1024:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return forward(batch)

    monkeypatch.setattr(decoder, "forward", small)
    config = EngineConfig("d", "x", max_rows=2, kv_tokens=64)
    *_, sizes = load._on_gpu(decoder, config, config.sizes(ON_GPU), 40, 0)
    assert sizes == (2, 8192, 2048), "the largest step has no more tokens than its rows"
    config = EngineConfig("d", "x", max_rows=40, kv_tokens=64)
    *_, sizes = load._on_gpu(decoder, config, config.sizes(ON_GPU), 40, 0)
    assert sizes == (40, 1024, 2048)


@pytest.mark.parametrize("lacking", ["the cache of the largest step", "the cache beside it"])
def test_smaller_steps_leave_room_for_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    device, tried = HostDevice(), []
    monkeypatch.setattr("inference.cuda.device.Cuda", lambda _: device)

    def room(work):
        work()
        return Room(device.free, 0 if tried[-1].tokens <= 2048 else device.free)

    def largest(model, device, spec, sizes):
        tried.append(sizes)
        if lacking == "the cache of the largest step" and sizes.tokens > 2048:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(device, "room", room)
    monkeypatch.setattr("inference.cuda.build._largest_step", largest)
    config = EngineConfig("d", "x", max_rows=2, kv_tokens=64)
    *_, sizes = load._on_gpu(model(folder, TorchOperators()), config, config.sizes(ON_GPU), 40, 0)
    assert [one.tokens for one in tried] == [8192, 4096, 2048]
    assert (sizes.tokens, device.released) == (2048, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_dtype": "fp8"}, "kv_dtype fp8 needs a GPU.* C kernels have int8"),
        ({"quantization": "fp8"}, "quantization fp8 needs a GPU"),
    ],
)
def test_what_a_gpu_alone_does_is_refused_without_one(folder: Path, settings, message) -> None:
    with pytest.raises(ModelRefusedError, match=message):
        load.load_model(EngineConfig("d", str(folder), device="cpu", kv_tokens=64, **settings), threads=1)
