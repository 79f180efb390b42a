"""What our own decoder computes of each family, and what of a config it leaves to transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.architectures import proof
from inference.architectures.families import FAMILIES, unsupported
from inference.architectures.load import load_model
from inference.architectures.proof import distances, paged_logits, plain_logits, random_sequences
from inference.config import EngineConfig
from inference.errors import ModelRefusedError
from inference.execution.backend import LoadedModel
from tests.inference.drive import Drive, Reference, assert_same, reference_model
from tests.inference.tiny import SPECIAL, save_tiny

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0 + 0.01 * i for i in range(6)],
    "long_factor": [1.0 + 0.5 * i for i in range(6)],
    "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.75,
}


def load(folder: Path, dtype: str = "float32", **config: Any) -> LoadedModel:
    options = {"cache": str(folder / "cache"), **config.pop("options", {})}
    return load_model(
        EngineConfig("test", str(folder), dtype=dtype, kv_tokens=1024, options=options, **config), threads=1
    )


EACH = [(kind, "auto") for kind in FAMILIES] + [(kind, "torch") for kind in ("gemma2", "phi3", "olmo2", "qwen2_moe")]


@pytest.mark.parametrize(("kind", "tier"), EACH)
def test_logits_are_those_of_transformers_past_every_window(tmp_path: Path, kind: str, tier: str) -> None:
    """Over paged K/V, in chunks and single tokens of two sequences, on each tier of operators."""
    folder = save_tiny(kind, tmp_path)
    loaded = load(folder, options={"tier": tier})
    assert loaded.details["architecture"] == f"own decoder ({kind})"
    assert loaded.max_context == 512
    sequences = random_sequences(211, (150, 37))
    with torch.inference_mode():
        paged = paged_logits(loaded.runner._causal, sequences, 16)
        assert float(distances(paged, plain_logits(reference_model(folder), sequences)).max()) < 1e-4


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("llama", {"hidden_act": "gelu"}, "activation gelu is not one of"),
        ("qwen3", {"layer_types": ["linear_attention"] * 3}, "layer types"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("gemma3_text", {"attn_logit_softcapping": 20.0}, "attn_logit_softcapping is 20.0"),
        ("olmoe", {"clip_qkv": 3.0}, "clip_qkv is 3.0"),
        ("granite", {"residual_multiplier": 0.0}, "not positive"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope type dynamic"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "only a part"),
        ("llama", {"is_causal": False}, "not causal"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "is not LlamaForCausalLM"),
        ("cohere", {}, "model type cohere is not one of"),
    ],
)
def test_what_the_table_does_not_know_is_left_to_transformers(kind: str, changes: dict[str, Any], reason: str) -> None:
    from transformers import AutoConfig

    config = AutoConfig.for_model(kind, **{"num_hidden_layers": 3, **SPECIAL.get(kind, {}), **changes})
    assert reason in (unsupported(config) or "")


def test_a_setting_of_a_later_transformers_is_unknown_unless_it_has_its_default() -> None:
    from dataclasses import dataclass

    from transformers import LlamaConfig

    @dataclass
    class LaterConfig(LlamaConfig):
        squares_keys: bool = False

    assert unsupported(LaterConfig()) is None
    assert unsupported(LaterConfig(squares_keys=True)) == "squares_keys is True, which the decoder doesn't know"


def test_short_and_long_factors_of_a_rope_that_turns_a_part_of_each_head(tmp_path: Path) -> None:
    """Up to the original length as transformers; a deployment that asks for more has the long factors throughout."""
    folder = save_tiny("phi3", tmp_path, rope_parameters=LONGROPE, original_max_position_embeddings=64)
    model = reference_model(folder)
    short, long = load(folder), load(folder, max_context=300)
    assert (short.max_context, long.max_context) == (64, 300)
    assert {loaded.details["architecture"] for loaded in (short, long)} == {"own decoder (phi3)"}
    for loaded, lengths in ((short, (64, 40)), (long, (200, 65))):
        sequences = random_sequences(211, lengths)
        with torch.inference_mode():
            paged = paged_logits(loaded.runner._causal, sequences, 16)
            assert float(distances(paged, plain_logits(model, sequences)).max()) < 1e-4


def test_the_language_model_of_a_checkpoint_that_also_sees(tmp_path: Path) -> None:
    """As Gemma 3 is published: a config within a config, and the tensors' names behind a prefix."""
    from transformers import AutoConfig

    folder = save_tiny("gemma3_text", tmp_path)
    text = AutoConfig.from_pretrained(folder)
    model = reference_model(folder)
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = AutoConfig.for_model("gemma3", text_config=text.to_dict(), vision_config=vision)
    config.architectures = ["Gemma3ForConditionalGeneration"]
    config.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    renamed = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    loaded = load(folder)
    assert loaded.details["architecture"] == "own decoder (gemma3)"
    prompts = [[5, 6, 7], list(range(3, 60))]
    assert_same(Drive(loaded).run(prompts, 12), [Reference.of(model, prompt, 12) for prompt in prompts])


def test_experts_in_one_tensor_and_each_in_its_own(tmp_path: Path) -> None:
    folder = save_tiny("qwen3_moe", tmp_path)
    expected = Drive(load(folder)).run([[5, 6, 7]], 8)
    tensors = load_file(folder / "model.safetensors")
    stacked = {name: tensor for name, tensor in tensors.items() if ".mlp.experts." not in name}
    assert len(stacked) < len(tensors)
    for layer in (0, 2):
        base = f"model.layers.{layer}.mlp.experts"
        single = {part: [tensors[f"{base}.{e}.{part}.weight"] for e in range(8)] for part in
                  ("gate_proj", "up_proj", "down_proj")}  # fmt: skip
        joint = [torch.cat(pair) for pair in zip(single["gate_proj"], single["up_proj"], strict=True)]
        stacked[f"{base}.gate_up_proj"] = torch.stack(joint)
        stacked[f"{base}.down_proj"] = torch.stack(single["down_proj"])
    save_file(stacked, folder / "model.safetensors", metadata={"format": "pt"})
    assert Drive(load(folder)).run([[5, 6, 7]], 8) == expected
    stacked[f"{base}.gate_up_proj"] = stacked[f"{base}.gate_up_proj"][:7].clone()
    save_file(stacked, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelRefusedError, match=r"is \[7, 64, 64\], and by the config it is \[8, 64, 64\]"):
        load(folder)


def test_the_proof_has_a_layer_of_each_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense layers come first, so that two alone would not prove the experts."""
    proved: list[Any] = []
    plain = proof.plain_logits
    monkeypatch.setattr(proof, "plain_logits", lambda model, ids: proved.append(model.config) or plain(model, ids))
    load(save_tiny("qwen3_moe", tmp_path, mlp_only_layers=[0, 1, 2], num_hidden_layers=6))
    load(save_tiny("qwen2_moe", tmp_path, decoder_sparse_step=3, num_hidden_layers=6))
    assert [small.num_hidden_layers for small in proved] == [4, 3]
