"""Which operators a model is computed with, and that each tier gives the reference's answers."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import pytest
import torch

from inference.architectures import tiers
from inference.architectures.load import load_model
from inference.architectures.proof import paged_logits
from inference.architectures.tiers import check_kv_dtype, choose
from inference.config import EngineConfig
from inference.errors import ModelRefusedError
from inference.execution.processor import compute_device
from inference.kernels import sampler as sampler_kernels
from inference.kernels.build import BuildError
from inference.types import SamplingParams
from tests.inference.drive import Drive
from tests.inference.tiny import save_tiny

needs_c = pytest.mark.usefixtures("c_kernels")
PROMPTS = [[5, 6, 7], list(range(3, 60)), [9] * 20]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("qwen3", tmp_path_factory.mktemp("model"))


def drive(folder: Path, tier: str, **config: object) -> Drive:
    options = {"tier": tier}
    return Drive(load_model(EngineConfig("test", str(folder), kv_tokens=1024, options=options, **config), threads=1))


@needs_c
@pytest.mark.parametrize("tier", ["torch", "c"])
@pytest.mark.parametrize("architecture", ["decoder", "transformers"])
def test_each_tier_gives_the_references_answers(folder: Path, tier: str, architecture: str) -> None:
    expected = drive(folder, "reference").run(PROMPTS, 12)
    assert drive(folder, tier, architecture=architecture).run(PROMPTS, 12) == expected


@needs_c
def test_the_tier_of_kernels_also_samples_with_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    draw = sampler_kernels.gumbel_argmax

    def counting(library, logits, *more):  # type: ignore[no-untyped-def]
        drawn.append(len(logits))
        return draw(library, logits, *more)

    monkeypatch.setattr(sampler_kernels, "gumbel_argmax", counting)
    sampling = SamplingParams(temperature=1.0)
    expected = drive(folder, "reference").run(PROMPTS, 12, sampling, seeds=[3, 4, 5])
    assert not drawn
    assert drive(folder, "c").run(PROMPTS, 12, sampling, seeds=[3, 4, 5]) == expected
    assert sum(drawn) == 36


@needs_c
@pytest.mark.parametrize("quantization", ["w8a8", "int4"])
def test_quantised_logits_are_near_the_references(folder: Path, quantization: str) -> None:
    logits = []
    for config in (
        EngineConfig("test", str(folder), kv_tokens=256, options={"tier": "reference"}),
        EngineConfig("test", str(folder), kv_tokens=256, quantization=quantization),
    ):
        model = load_model(config, threads=1).runner._causal
        with torch.inference_mode():
            logits.append(model.logits(torch.eye(64)[:32] * 8))
    error = (logits[1] - logits[0]).norm() / logits[0].norm()
    assert 1e-4 < error < 0.05


@needs_c
@pytest.mark.parametrize(
    "settings", [{}, {"dtype": "bfloat16"}, {"quantization": "int4"}, {"architecture": "transformers"}], ids=str
)
def test_answers_over_keys_and_values_in_eight_bits_are_near_the_others(folder: Path, settings: dict[str, str]) -> None:
    logits = []
    for kv_dtype in ("auto", "int8"):
        loaded = load_model(EngineConfig("test", str(folder), kv_tokens=1024, kv_dtype=kv_dtype, **settings), threads=1)
        runner = loaded.runner
        with torch.inference_mode():
            logits.append(paged_logits(runner._causal, PROMPTS[1:], 16, runner._packer.attention.cache.spec))
    assert "in int8" in loaded.details["kv"]
    for wide, narrow in zip(*logits, strict=True):
        assert 1e-5 < (narrow - wide).norm() / wide.norm() < 0.05


@needs_c
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"options": {"tier": "torch"}}, "the tier is torch operators"),
        ({"options": {"tier": "reference"}}, "the tier is torch reference"),
        ({"dtype": "float16"}, "no C kernels for float16"),
        ({"block_size": 4}, "a block of 4 is no multiple of 16"),
    ],
    ids=str,
)
def test_keys_and_values_in_eight_bits_need_the_kernels(folder: Path, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelRefusedError, match=f"kv_dtype int8 needs the C kernels.*{reason}"):
        load_model(EngineConfig("test", str(folder), kv_tokens=64, kv_dtype="int8", **settings), threads=1)


def test_without_a_compiler_torch_serves_and_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        raise BuildError("there is no C compiler (cc)")

    monkeypatch.setattr(tiers, "load", fail)
    monkeypatch.setattr(tiers, "best_level", lambda: "avx2")
    assert "no C kernels: there is no C compiler (cc)" in choose(torch.float32, tmp_path).tier
    with pytest.raises(ModelRefusedError, match="there is no C compiler"):
        choose(torch.float32, tmp_path, tier="c")
    with pytest.raises(ModelRefusedError, match=r"quantization w8a8 needs the C kernels: .* no C compiler"):
        choose(torch.float32, tmp_path, quantization="w8a8")


def test_what_the_kernels_cannot_do_is_torchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no C kernels for float16" in choose(torch.float16, tmp_path).tier
    monkeypatch.setattr(tiers, "best_level", lambda: "plain")
    assert "slow without AVX2" in choose(torch.float32, tmp_path).tier
    with pytest.raises(ModelRefusedError, match="tier 'fast' is not one of"):
        choose(torch.float32, tmp_path, tier="fast")


@needs_c
def test_the_details_tell_tier_and_exactness(folder: Path) -> None:
    details = load_model(EngineConfig("test", str(folder), kv_tokens=64, quantization="w8a8")).details
    assert details["tier"].startswith("C kernels (")
    assert details["quantization"] == "w8a8"
    assert details["exact"].startswith("to the bit")
    details = load_model(EngineConfig("test", str(folder), kv_tokens=64, block_size=4)).details
    assert details["exact"] == "not promised: attention by torch reference may round differently in another batch"
    details = load_model(EngineConfig("test", str(folder), kv_tokens=64, architecture="transformers")).details
    assert details["exact"].startswith("not promised: the model's own operators")


def test_a_gpu_that_is_not_here_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert compute_device("auto").type == "cpu"
    with pytest.raises(ModelRefusedError, match=r"no device cuda:1: this process sees 0 GPUs"):
        compute_device("cuda:1")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    found = [str(compute_device(name)) for name in ("auto", "cuda", "cuda:1", "cpu")]
    assert found == ["cuda:0", "cuda:0", "cuda:1", "cpu"]
    with pytest.raises(ModelRefusedError, match="no device cuda:2"):
        compute_device("cuda:2")


def test_what_only_a_gpu_or_only_the_cpu_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefusedError, match="fp8 needs a GPU"):
        choose(torch.float32, tmp_path, quantization="fp8")
    gpu = torch.device("meta")  # any device but the CPU
    with pytest.raises(ModelRefusedError, match="tier c is for the CPU"):
        choose(torch.float32, tmp_path, tier="c", device=gpu)
    with pytest.raises(ModelRefusedError, match="w8a8 needs the Triton kernels: tier is torch"):
        choose(torch.float32, tmp_path, tier="torch", quantization="w8a8", device=gpu)
    assert choose(torch.float32, tmp_path, tier="torch", device=gpu).device == gpu
    assert choose(torch.float32, tmp_path, device=gpu).tier == "Triton kernels"
    for tier in ("torch", "auto"):
        with pytest.raises(ModelRefusedError, match="kv_dtype int8 needs the C kernels: this model runs on meta"):
            check_kv_dtype("int8", choose(torch.float32, tmp_path, tier=tier, device=gpu))


def test_without_triton_a_gpu_has_torchs_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "inference.cuda.operators", None)
    assert "no Triton kernels: " in choose(torch.float32, tmp_path, device=torch.device("meta")).tier


@pytest.mark.parametrize(
    "failure",
    [RuntimeError("Failed to find C compiler."), CalledProcessError(1, ["gcc"]), FileNotFoundError("no such compiler")],
)
def test_a_gpu_whose_kernels_cannot_be_launched_has_torchs_operators_and_says_why(
    failure: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithoutCompiler:
        @property
        def active(self) -> object:
            raise failure

    monkeypatch.setattr("inference.cuda.operators.driver", WithoutCompiler())
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "a GPU")
    gpu = torch.device("cuda:0")
    assert f"no Triton kernels: {failure}" in choose(torch.float32, tmp_path, device=gpu).tier
    with pytest.raises(ModelRefusedError, match="w8a8 needs the Triton kernels: no Triton kernels: "):
        choose(torch.float32, tmp_path, quantization="w8a8", device=gpu)
