"""What can't be served right is refused with the reason, never served wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.errors import ModelRefusedError
from inference.sources.resolve import resolve
from tests.inference.architectures.attending import change_attention
from tests.inference.tiny import COMMON, SPECIAL, save_tiny

SIZES = (
    "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size", "intermediate_size", "num_hidden_layers",
    "vocab_size", "max_position_embeddings",
)  # fmt: skip


def refusal(source: Path | str, **config: Any) -> str:
    with pytest.raises(ModelRefusedError) as caught:
        load_model(EngineConfig("test", str(source), dtype="float32", kv_tokens=256, **config), threads=1)
    return caught.value.message


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@contextmanager
def changed_tensors(folder: Path) -> Iterator[dict[str, torch.Tensor]]:
    """Write the folder's tensors again as they are changed in the block."""
    tensors = load_file(folder / "model.safetensors")
    yield tensors
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("kind", "name"), [("gptj", "GPTJForCausalLM"), ("bloom", "BloomForCausalLM"), ("mamba", "MambaForCausalLM")]
)
def test_a_model_that_never_calls_the_hook(tmp_path: Path, kind: str, name: str) -> None:
    message = refusal(save_tiny(kind, tmp_path))
    assert message == f"{name} can't be served through the attention interface: none of its layers calls it"


def test_a_hybrid_whose_other_layers_keep_a_state(tmp_path: Path) -> None:
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    message = refusal(save_tiny("qwen3_next", tmp_path, layer_types=kinds, num_experts=4, num_experts_per_tok=2))
    assert message.endswith("only some of its layers call it")


def test_a_paged_run_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_tiny("cohere", tmp_path)
    change_attention(monkeypatch, window=20)
    assert "its paged logits differ from its plain forward" in refusal(folder)


def test_the_own_decoder_by_name_for_another_family(tmp_path: Path) -> None:
    assert "model type cohere is not one of" in refusal(save_tiny("cohere", tmp_path), architecture="decoder")


@pytest.mark.parametrize("kind", ["llama", "cohere"])
def test_a_checkpoint_without_one_of_its_tensors(tmp_path: Path, kind: str) -> None:
    folder = save_tiny(kind, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert "lacks" in (message := refusal(folder))
    assert "model.layers.1.mlp.down_proj.weight" in message


@pytest.mark.parametrize(
    ("kind", "setting"), [("llama", "num_hidden_layers"), ("cohere", "num_hidden_layers"), ("gpt2", "n_layer")]
)
def test_a_config_with_fewer_layers_than_its_checkpoint(tmp_path: Path, kind: str, setting: str) -> None:
    """It was another model, which answered as if it were right."""
    folder = save_tiny(kind, tmp_path)
    change_config(folder, **{setting: 1})
    assert "the checkpoint has " in (message := refusal(folder))
    assert ".1." in message


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "\ufeff{}", "[" * 100_000])
@pytest.mark.parametrize("architecture", ["auto", "decoder"])
def test_a_config_that_is_no_json_object(tmp_path: Path, text: str, architecture: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert str(tmp_path / "config.json") in refusal(tmp_path, architecture=architecture)


@pytest.mark.parametrize("file", ["generation_config.json", "model.safetensors.index.json"])
def test_another_file_of_a_model_that_is_no_json_object(tmp_path: Path, file: str) -> None:
    folder = save_tiny("llama", tmp_path)
    (folder / file).write_bytes(b"\xff{")
    assert refusal(folder).startswith(f"{folder / file} can't be read as JSON")


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *(("llama", name, value) for name in SIZES for value in (0, -1, 2.5, "8", True, 10**12)),
        *(("llama", name, value) for name in ("rms_norm_eps", "rope_theta") for value in (0, -1.0, float("nan"), [1])),
        ("llama", "num_key_value_heads", 3),
        ("llama", "rope_parameters", [1]),
        ("llama", "rope_scaling", {"rope_type": "linear", "factor": 0}),
        ("phi3", "rope_parameters", {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": ["x"]}),
        ("gemma2", "layer_types", ["full_attention"]),
        ("gemma2", "layer_types", "full"),
        ("gemma2", "query_pre_attn_scalar", 0),
        ("gemma2", "attn_logit_softcapping", float("inf")),
        ("gemma3", "num_attention_heads", 0),
        ("qwen2_moe", "decoder_sparse_step", 0),
        ("qwen2_moe", "num_experts_per_tok", 9),
        ("qwen2_moe", "mlp_only_layers", [None]),
        ("granite", "logits_scaling", 0.0),
    ],
)
def test_a_setting_that_cannot_be_meant_is_named(tmp_path: Path, kind: str, name: str, value: Any) -> None:
    """Else they end in a division by zero, a model of no layers or as much memory as there is."""
    part = AutoConfig.for_model(
        "gemma3_text" if kind == "gemma3" else kind, **{**COMMON, **SPECIAL.get(kind, {})}
    ).to_dict()
    part[name] = value
    stated = {"model_type": kind, "text_config": part} if kind == "gemma3" else part
    (tmp_path / "config.json").write_text(json.dumps(stated))
    assert refusal(tmp_path).startswith(f"the config's {name}")


def test_a_config_that_transformers_does_not_take_is_refused_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "cohere", "num_hidden_layers": None}))
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path}: the config can't be read: ")
    assert "num_hidden_layers" in message
    assert "int" in message


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pad_token_id": 10**6}, "pad_token_id is 1000000, beyond a vocabulary of"),
        ({"dtype": 5}, "dtype is 5"),
        ({"dtype": "x"}, "the config can't be read"),
        ({"dtype": "int8"}, "dtype is torch.int8, which no weights have"),
        ({"architectures": 5}, "architectures is 5, and not a list"),
        ({"model_type": []}, "the config can't be read"),
        ({"eos_token_id": ["x"]}, "eos_token_id"),
        ({"eos_token_id": [2, 211]}, "eos_token_id 211 is beyond the vocabulary of 211: correct it in"),
        ({"dtype": "float8_e4m3fn"}, "dtype is torch.float8_e4m3fn, which no weights have"),
        ({"quantization_config": {"quant_method": "modelopt"}}, "the config's quantization_config says that"),
        ({"quantization": {"bits": 4}}, "the config's quantization says that the checkpoint is quantised"),
    ],
)
def test_a_config_that_no_model_can_have(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    folder = save_tiny("llama", tmp_path)
    change_config(folder, **changes)
    assert says in refusal(folder)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [("gpt2", "n_layer", 0), ("gpt2", "n_positions", 10**12), ("cohere", "num_attention_heads", 0)],
)
def test_sizes_of_other_models(tmp_path: Path, kind: str, name: str, value: int) -> None:
    folder = save_tiny(kind, tmp_path)
    change_config(folder, **{name: value})
    assert f"is {value}, and not a whole number from 1 to" in refusal(folder)


@pytest.mark.parametrize(
    ("file", "text"),
    [("generation_config.json", '{"eos_token_id": "x"}'), ("model.safetensors.index.json", '{"weight_map": 5}')],
)
def test_values_of_another_form(tmp_path: Path, file: str, text: str) -> None:
    folder = save_tiny("llama", tmp_path)
    (folder / file).write_text(text)
    assert str(folder) in refusal(folder)


@pytest.mark.parametrize(("kind", "changes"), [("qwen2_moe", {"hidden_size": 7}), ("phi3", {"hidden_size": 7})])
def test_heads_that_are_no_pairs(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    folder = save_tiny(kind, tmp_path)
    change_config(folder, **changes)
    refusal(folder)


def test_sources_that_lead_nowhere(tmp_path: Path) -> None:
    assert "no config.json and no GGUF file" in refusal(tmp_path)
    assert "no folder, no GGUF file and no hub id" in refusal("nonsense")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model" * 100)
    assert "can't be read as GGUF" in refusal(broken, options={"cache": str(tmp_path / "cache")})


def test_a_hub_model_is_fetched_by_id_and_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    asked: list[tuple[str, str | None, Path]] = []

    def download(repo: str, *, revision: str | None, cache_dir: Path, allow_patterns: list[str]) -> str:
        assert "*.safetensors" in allow_patterns
        asked.append((repo, revision, cache_dir))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve("owner/name", tmp_path / "c") == resolve("owner/na.me-2@v1.0", tmp_path / "c") == tmp_path
    assert asked == [("owner/name", None, tmp_path / "c" / "hub"), ("owner/na.me-2", "v1.0", tmp_path / "c" / "hub")]
    (tmp_path / "config.json").unlink()
    assert "owner/name has no config.json" in refusal("owner/name")


def test_a_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: Any, **kwargs: Any) -> str:
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    message = refusal("owner/name", options={"cache": str(tmp_path)})
    assert message == "owner/name can't be had from the hub: no route to the hub"


def test_an_encoder_without_its_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 12, "num_attention_heads": 2})
    )
    save_file({"nothing": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert "the checkpoint lacks" in refusal(tmp_path)


def test_weights_that_do_not_fit_their_config_are_refused_at_load(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for change in ({"vocab_size": config["vocab_size"] + 1}, {"num_attention_heads": 8}):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        assert "and by the config it is" in refusal(folder)


@pytest.mark.parametrize("tier", ["auto", "torch", "reference"])
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("lm_head.weight", 240),
        ("lm_head.weight", 50),
        ("model.embed_tokens.weight", 240),
        ("model.layers.0.mlp.down_proj.weight", 1),
        ("model.norm.weight", 1),
        ("model.layers.0.self_attn.q_proj.bias", 1),
    ],
)
def test_a_tensor_of_another_shape_with_which_something_could_be_computed(
    tmp_path: Path, name: str, rows: int, tier: str
) -> None:
    folder = save_tiny("qwen2", tmp_path, tie_word_embeddings=False)
    tensors = load_file(folder / "model.safetensors")
    whole = tensors[name]
    tensors[name] = torch.cat([whole, whole])[:rows].contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    message = refusal(folder, options={"tier": tier, "cache": str(tmp_path / "cache")})
    wrong, right = [rows, *whole.shape[1:]], list(whole.shape)
    assert message == f"the checkpoint's tensor {name} is {wrong}, and by the config it is {right}"


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("llama", "model.norm.weight"),
        ("llama", "model.embed_tokens.weight"),
        ("llama", "model.layers.1.mlp.up_proj.weight"),
        ("cohere", "model.layers.1.mlp.up_proj.weight"),
    ],
)
def test_a_weight_that_is_not_finite(tmp_path: Path, kind: str, name: str, value: float) -> None:
    folder = save_tiny(kind, tmp_path)
    with changed_tensors(folder) as tensors:
        tensors[name].view(-1)[0] = value
    assert f"tensor {name} has values that are not finite" in refusal(folder)


@pytest.mark.parametrize("kind", ["llama", "cohere"])
def test_a_checkpoint_that_is_quantised(tmp_path: Path, kind: str) -> None:
    """As ModelOpt writes it: what the config doesn't say stands in a file beside it. It was served as noise."""
    folder = save_tiny(kind, tmp_path)
    name = "model.layers.0.mlp.up_proj.weight"
    with changed_tensors(folder) as tensors:
        scale = tensors[name].abs().max() / 448
        tensors |= {name: (tensors[name] / scale).to(torch.float8_e4m3fn), f"{name}_scale": scale}
    said = folder / "hf_quant_config.json"
    said.write_text('{"quantization": {"quant_algo": "FP8"}}')
    assert "the file hf_quant_config.json says that the checkpoint is quantised" in refusal(folder)
    said.unlink()
    message = f"the checkpoint's tensor {name} is F8_E4M3, where only F64, F32, F16, BF16 are read: "
    assert refusal(folder).startswith(message)
    with changed_tensors(folder) as tensors:
        tensors[name] = tensors[name].to(torch.bfloat16)
    assert f"the checkpoint has {name}_scale, which a model of its config doesn't read: take" in refusal(folder)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("llama", "model.norm.bias"),
        ("llama", "model.layers.0.self_attn.q_proj.bias"),
        ("qwen2", "model.layers.0.self_attn.o_proj.bias"),
        ("qwen3_moe", "model.layers.0.mlp.experts.8.up_proj.weight"),
        ("cohere", "lm_head.bias"),
    ],
)
def test_a_tensor_that_is_not_read(tmp_path: Path, kind: str, name: str) -> None:
    folder = save_tiny(kind, tmp_path)
    with changed_tensors(folder) as tensors:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)  # as old files have it, is no harm
        tensors[name] = torch.zeros(64)
    assert refusal(folder).startswith(f"the checkpoint has {name}, which a model of its config doesn't read: ")


def test_a_head_of_its_own_where_the_config_says_that_it_is_the_embedding(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path)
    with changed_tensors(folder) as tensors:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    load_model(EngineConfig("test", str(folder), dtype="float32", kv_tokens=256), threads=1)
    with changed_tensors(folder) as tensors:
        tensors["lm_head.weight"] += 1
    assert "tensor lm_head.weight isn't its embedding, as the config's tie_word_embeddings says" in refusal(folder)


def test_weights_in_one_file_and_in_several(tmp_path: Path) -> None:
    """Of these each loader would choose its own."""
    folder = save_tiny("llama", tmp_path)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"model.norm.weight": "model-1.safetensors"}}')
    assert "model.safetensors.index.json doesn't name model.safetensors beside it" in refusal(folder)


@pytest.mark.parametrize(("name", "value"), [("quantization", "w8a8"), ("kv_dtype", "fp8"), ("speculation", 4)])
def test_settings_of_generating_models_for_one_that_makes_embeddings(tmp_path: Path, name: str, value: Any) -> None:
    """Taken in silence they would be options that do nothing."""
    for file in ("modules.json", "config.json"):
        (tmp_path / file).write_text("{}")
    assert refusal(tmp_path, **{name: value}).startswith(f"{name} is for models that generate")


def test_a_quantization_that_fits_no_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.architectures.transformers.replace_linears", lambda *_: 0)
    message = refusal(save_tiny("gpt2", tmp_path), quantization="w8a8")
    assert message == "GPT2LMHeadModel: quantization w8a8 fits none of its layers"
