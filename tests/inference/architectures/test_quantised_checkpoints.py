"""Quantised checkpoints: those that are read give the model of their numbers, all others are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.architectures.load import load_model
from inference.architectures.proof import distances, paged_logits, plain_logits, random_sequences
from inference.config import EngineConfig
from inference.errors import ModelRefusedError
from inference.execution.backend import LoadedModel
from tests.inference import quantising
from tests.inference.drive import reference_model
from tests.inference.quantising import compressed, in_blocks, quantise
from tests.inference.sweeps import first
from tests.inference.tiny import save_tiny

# Sizes that end in the midst of a block of 128.
WIDE = {"hidden_size": 160, "intermediate_size": 200, "num_hidden_layers": 2, "head_dim": 40}
READ: dict[str, tuple[dict[str, Any], quantising.Form]] = {
    "int8": (compressed("int"), quantising.int8),
    "int8, whole": (compressed("int", "tensor"), quantising.int8_whole),
    "int8, rows as they are": (compressed("int", activations=None), quantising.int8),
    "float8": (compressed("float"), quantising.float8),
    "float8 blocks": (in_blocks(), quantising.float8_blocks),
    "float8 blocks, compressed": (
        compressed("float", "block"),
        lambda weight: quantising.float8_blocks(weight, "weight_scale"),
    ),
}


def load(folder: Path, tier: str = "reference", cache: str = "", **config: Any) -> LoadedModel:
    options = {"tier": tier} | ({"cache": cache} if cache else {})
    return load_model(EngineConfig("test", str(folder), dtype="float32", kv_tokens=1024, options=options, **config))


def refusal(folder: Path, **config: Any) -> str:
    with pytest.raises(ModelRefusedError) as caught:
        load(folder, **config)
    return caught.value.message


def worst(loaded: LoadedModel, plain: Path) -> float:
    """Return the greatest distance of the logits from those of transformers on the plain model, in their spread."""
    sequences = random_sequences(211, (60, 37))
    with torch.inference_mode():
        paged = paged_logits(loaded.runner._causal, sequences, 16)
        return float(distances(paged, plain_logits(reference_model(plain), sequences)).max())


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


INT8 = "int8 with a scale for each output"
CASES = [("llama", form) for form in READ] + [
    ("qwen3", "int8"),
    ("phi3", "int8"),
    ("qwen3_moe", "int8"),
    ("qwen3_moe", "float8 blocks"),
    ("qwen2_moe", "float8 blocks"),
]


@pytest.mark.parametrize(("kind", "form"), first(CASES, of=lambda case: case[1] if case[0] != "qwen3_moe" else case))
def test_logits_are_those_of_the_numbers_that_are_stored(folder: Path, kind: str, form: str) -> None:
    """On torch's operators, which round nothing: with fused projections, a tied head, experts."""
    config, make = READ[form]
    plain = quantise(save_tiny(kind, folder, **WIDE), config, make, but="lm_head|gate$")
    loaded = load(folder)
    assert loaded.details["architecture"] == f"own decoder ({kind})"
    assert loaded.details["quantization"].startswith("none, after ")
    assert worst(loaded, plain) < 1e-4


@pytest.mark.usefixtures("c_kernels")
@pytest.mark.parametrize(
    ("form", "quantization", "details", "bound"),
    [
        ("int8", "", f"{INT8}, computed as the checkpoint stores it", 0.05),
        ("int8", "w8a8", f"{INT8}, computed as the checkpoint stores it, the rest in w8a8", 0.05),
        ("int8", "int4", f"int4, after {INT8} of the checkpoint is multiplied out", 1e-6),
        ("float8", "", "none, after float8 with a scale for each output of the checkpoint is multiplied out", 1e-6),
        ("float8 blocks", "w8a8", "w8a8, after float8 with a scale for each block of 128 × 128 of the", 1e-6),
    ],
)
def test_what_runs_is_told_and_as_a_deployment_of_the_plain_numbers(
    folder: Path, form: str, quantization: str, details: str, bound: float
) -> None:
    """To the bit where they are multiplied out; as they are stored, within what eight bits of activations change."""
    plain = quantise(save_tiny("qwen3", folder, **WIDE), *READ[form])
    logits = []
    for each in (folder, plain):
        loaded = load(each, "c", quantization=quantization)
        with torch.inference_mode():
            logits.append(torch.cat(paged_logits(loaded.runner._causal, random_sequences(211, (60, 37)), 16)))
        if each is folder:
            assert loaded.details["quantization"].startswith(details)
    error = float((logits[0] - logits[1]).norm() / logits[1].norm())
    assert error < bound


def test_a_layer_of_which_only_a_part_is_quantised(folder: Path) -> None:
    """One of three fused projections is left out by a pattern, another by its name."""
    names = ["re:.*layers\\.0\\..*k_proj$", "model.layers.1.mlp.up_proj", "lm_head"]
    config = compressed("int", ignore=names)
    plain = quantise(save_tiny("llama", folder, **WIDE), config, quantising.int8, but="lm_head|0.*k_proj|1.*up_proj")
    assert worst(load(folder), plain) < 1e-4


def test_a_head_of_its_own_may_be_quantised(folder: Path) -> None:
    config = compressed("int", ignore=[])
    plain = quantise(save_tiny("qwen3", folder, tie_word_embeddings=False, **WIDE), config, quantising.int8, but="none")
    assert "lm_head.weight_scale" in load_file(folder / "model.safetensors")
    assert worst(load(folder), plain) < 1e-4


def test_weights_and_their_scales_in_different_files(folder: Path) -> None:
    plain = quantise(save_tiny("llama", folder, **WIDE), in_blocks(), quantising.float8_blocks)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    file_of = {name: "scales.safetensors" if "scale" in name else "weights.safetensors" for name in tensors}
    for file in set(file_of.values()):
        save_file({name: tensors[name] for name in tensors if file_of[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": file_of}))
    assert worst(load(folder), plain) < 1e-4


def test_a_proof_is_that_of_the_original(folder: Path) -> None:
    plain = quantise(save_tiny("llama", folder, **WIDE), *READ["int8"])
    names = []
    for each in (folder, plain):
        load(each, cache=str(each / "cache"))
        names.append([file.name for file in (each / "cache" / "proofs").iterdir()])
    assert names[0] == names[1]


NAME = "model.layers.0.mlp.up_proj.weight"


def edited(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({name: make(tensors[name]).contiguous()})


@pytest.mark.parametrize(
    ("form", "edit", "says"),
    [
        ("int8", lambda tensors: tensors.pop(f"{NAME}_scale"), f"the checkpoint lacks the tensor {NAME}_scale"),
        ("int8", edited(f"{NAME}_scale", lambda scales: scales[:7]), "is [7, 1], and by the config it is [200, 1]"),
        ("int8", edited(f"{NAME}_scale", lambda scales: scales * torch.nan), f"{NAME}_scale has values that are not"),
        ("int8", edited(NAME, lambda numbers: numbers[:7]), "is [7, 160], and by the config it is [200, 160]"),
        ("int8", edited(NAME, lambda numbers: numbers.bfloat16()), f"the checkpoint has {NAME}_scale, which a model"),
        (
            "int8",
            lambda tensors: tensors.update({NAME: tensors[NAME].float()}) or tensors.pop(f"{NAME}_scale"),
            f"{NAME} is F32, and by the config's quantization_config it is quantised",
        ),
        ("int8", edited(NAME, lambda numbers: numbers.to(torch.float8_e4m3fn)), "is F8_E4M3, where only"),
        ("int8", edited("model.norm.weight", lambda norm: norm.to(torch.int8)), "isn't quantised"),
        ("int8", edited("model.embed_tokens.weight", lambda norm: norm.to(torch.int8)), "lacks the tensor model.embed"),
        (
            "int8",
            lambda tensors: tensors.update({f"{NAME}_zero_point": torch.zeros(200, 1, dtype=torch.int8)}),
            f"{NAME}_zero_point is I8, where only",
        ),
        (
            "float8",
            lambda tensors: tensors.update({NAME.replace("weight", "input_scale"): torch.ones(1)}),
            "the checkpoint has model.layers.0.mlp.up_proj.input_scale, which a model of its config doesn't read",
        ),
        (
            "float8",
            edited(NAME, lambda numbers: torch.full_like(numbers.float(), torch.nan).to(numbers.dtype)),
            f"{NAME} has values that are not finite",
        ),
        (
            "float8 blocks",
            edited(f"{NAME}_scale_inv", lambda scales: scales[:1]),
            "is [1, 2], and by the config it is [2, 2]",
        ),
        (
            "float8 blocks",
            edited(f"{NAME}_scale_inv", lambda scales: scales.to(torch.float8_e8m0fnu)),
            f"{NAME}_scale_inv is F8_E8M0, where only",
        ),
    ],
)
def test_tensors_that_are_not_what_the_config_says(
    folder: Path, form: str, edit: Callable[[dict[str, torch.Tensor]], None], says: str
) -> None:
    quantise(save_tiny("llama", folder, **WIDE), *READ[form])
    change(folder, edit)
    assert says in refusal(folder)


def test_a_module_that_the_config_leaves_out_and_the_file_has_quantised(folder: Path) -> None:
    config = in_blocks(modules_to_not_convert=["lm_head", "model.layers.0.mlp.up_proj"])
    quantise(save_tiny("llama", folder, **WIDE), config, quantising.float8_blocks)
    assert f"{NAME} is F8_E4M3, and by the config's quantization_config it isn't quantised" in refusal(folder)


def group(**changes: Any) -> dict[str, Any]:
    """A config of compressed-tensors whose only group has `changes`, of weights and rows within them."""
    config = compressed("int")
    (own,) = config["config_groups"].values()
    for name, value in changes.items():
        own[name] = own[name] | value if isinstance(value, dict) and own[name] else value
    return config


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (compressed("pack"), "format is 'pack-quantized', and only 'int-quantized' or 'float-quantized' is"),
        (compressed("int", format="marlin-24"), "quantization_config.format is 'marlin-24'"),
        (compressed("int", kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme is {'num_bits': 8}"),
        (compressed("int", sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config.format is 'sparse-24"),
        (compressed("int", transform_config={"config_groups": {"R1": {}}}), "transform_config.config_groups is"),
        (compressed("int", spinning=True), "quantization_config.spinning is True, and it isn't known"),
        (compressed("int", config_groups={}), "config_groups is {}, and only one group is read"),
        (compressed("int", ignore="lm_head"), "ignore is 'lm_head', and not a list"),
        (compressed("int", ignore=["re:("]), "ignore is 're:(', and no pattern"),
        (group(weights={"num_bits": 4}), "config_groups.group_0.weights.num_bits is 4, and only 8 is read"),
        (group(weights={"symmetric": False}), "weights.symmetric is False, and only True is read (zero points aren't"),
        (group(weights={"strategy": "group"}), "weights.strategy is 'group'"),
        (group(weights={"type": "float"}), "weights.type is 'float'"),
        (group(weights={"strategy": "block"}), "weights.block_structure is None, and only two sizes"),
        (group(input_activations={"dynamic": False}), "input_activations.dynamic is False, and only True is read (sca"),
        (group(input_activations={"symmetric": False}), "input_activations.symmetric is False"),
        (group(output_activations={"num_bits": 8}), "output_activations is {'num_bits': 8}"),
        (group(weights=None), "weights.num_bits is None"),
        (in_blocks(activation_scheme="static"), "activation_scheme is 'static', and only 'dynamic' is read (scales"),
        (in_blocks(weight_block_size=None), "weight_block_size is None, and only two sizes above 0 are read"),
        (in_blocks(weight_block_size=[128, 0]), "weight_block_size is [128, 0]"),
        (in_blocks(fmt="e5m2"), "fmt is 'e5m2'"),
        (in_blocks(expert_dtype="fp4"), "expert_dtype is 'fp4'"),
        (in_blocks(modules_to_convert=["embed"]), "modules_to_convert is ['embed'], and it isn't known"),
        ("gptq", "says that the checkpoint is quantised by gptq, which isn't read: take the original"),
        ({"bits": 4}, "says that the checkpoint is quantised by None"),
    ],
)
def test_a_form_that_is_not_read_is_named_with_its_setting(folder: Path, config: Any, says: str) -> None:
    folder = save_tiny("llama", folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": config}))
    message = refusal(folder)
    assert says in message
    assert "in a form that docs/models.md names" in message


GPTQ = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 32,
    "desc_act": False,
    "sym": True,
    "checkpoint_format": "gptq",
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


@pytest.mark.parametrize(
    ("config", "beside", "says", "left"),
    [
        (GPTQ, "quantize_config.json", "by gptq", "g_idx is I32, where only"),
        (AWQ, "quant_config.json", "by awq", "qweight is I32, where only"),
        (compressed("pack"), "", "format is 'pack-quantized'", "weight_packed is I32, where only"),
    ],
)
def test_checkpoints_in_four_bits_are_refused_by_name(
    folder: Path, config: dict[str, Any], beside: str, says: str, left: str
) -> None:
    """By what the config says, by the tool's file beside it, and by the tensors alone."""
    quantise(save_tiny("llama", folder), config, quantising.packed(32, config["quant_method"]))
    assert says in refusal(folder)
    path = folder / "config.json"
    stated = json.loads(path.read_text())
    del stated["quantization_config"]
    path.write_text(json.dumps(stated))
    if beside:
        (folder / beside).write_text(json.dumps(config))
        assert f"the file {beside} says that the checkpoint is quantised" in refusal(folder)
        (folder / beside).unlink()
    for architecture in ("auto", "transformers"):
        assert left in refusal(folder, architecture=architecture)


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        ("llama", {"architecture": "transformers"}, "read by the own decoder alone, and architecture is transformers"),
        ("cohere", {}, "read by the own decoder alone, and model type cohere is not one of"),
        ("llama", {"architecture": "encoder"}, "which is read of models that generate alone"),
    ],
)
def test_what_only_the_own_decoder_reads(folder: Path, kind: str, settings: dict[str, Any], says: str) -> None:
    quantise(save_tiny(kind, folder), *READ["int8"])
    assert says in refusal(folder, **settings)
