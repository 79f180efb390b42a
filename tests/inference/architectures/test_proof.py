"""An architecture that we would run wrong past some bound is refused, or served no further than it was proved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inference.architectures import decoder, proof
from inference.architectures.load import load_model
from inference.architectures.small_model import bounds_of
from inference.config import EngineConfig
from inference.errors import ModelRefusedError
from inference.execution.backend import LoadedModel
from tests.inference.architectures.attending import change_attention
from tests.inference.tiny import save_tiny

YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 256,
}


def load(folder: Path, dtype: str = "float32", **config: Any) -> LoadedModel:
    options = {"cache": str(folder / "cache")}
    return load_model(
        EngineConfig("test", str(folder), dtype=dtype, kv_tokens=256, options=options, **config), threads=1
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_chunked_attention_is_served_up_to_its_first_chunk(tmp_path: Path, dtype: str) -> None:
    """The hook doesn't implement chunks, which a proof with 53 tokens alone wouldn't show."""
    layers = ["chunked_attention", "chunked_attention", "full_attention"]
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 64, "head_dim": 16}
    folder = save_tiny("llama4_text", tmp_path, attention_chunk_size=200, layer_types=layers, **experts)
    loaded = load(folder, dtype)
    assert loaded.max_context == 200
    assert "wrong past attention_chunk_size 200" in loaded.details["proof"]


@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_window_that_is_ignored_bounds_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, dtype: str
) -> None:
    folder = save_tiny(kind, tmp_path, sliding_window=200)
    assert load(folder, dtype).max_context == 512
    change_attention(monkeypatch, window=0)
    (folder / "cache").rename(folder / "proofs of the sound code")
    assert load(folder, dtype).max_context == 200


def test_a_rope_that_is_not_scaled_is_left_to_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_tiny("llama", tmp_path, rope_parameters=YARN)
    plain = 1.0 / 10_000 ** (torch.arange(8) / 8)
    monkeypatch.setattr(decoder, "frequencies", lambda *_, **__: (plain, 1.0))
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(ModelRefusedError, match="paged logits differ from its plain forward"):
            load(folder, dtype, architecture="decoder")
        details = load(folder, dtype).details
        assert details["architecture"] == "transformers (llama)"
        assert details["own decoder"].startswith("not taken: its paged logits differ from its plain forward by")


def test_a_rope_that_turns_otherwise_past_a_threshold_bounds_the_context(tmp_path: Path) -> None:
    """Longrope chooses its factors by the longest sequence of a batch, so that one sequence changes another."""
    folder = save_tiny("phi3", tmp_path, rope_parameters=LONGROPE, original_max_position_embeddings=256)
    assert load(folder).max_context == 256


def test_what_float32_refuses_is_not_let_in_by_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three per cent of the spread are an error in float32 and could be rounding in sixteen bits."""
    folder = save_tiny("cohere", tmp_path)
    change_attention(monkeypatch, lambda mixed: mixed * 1.01)
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(ModelRefusedError, match="paged logits differ from its plain forward"):
            load(folder, dtype)


def test_the_small_model_keeps_one_layer_of_each_kind_and_comes_past_every_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [*["sliding_attention"] * 3, "full_attention", *["sliding_attention"] * 3, "full_attention"]
    folder = save_tiny("mistral", tmp_path, layer_types=kinds, num_hidden_layers=8, sliding_window=300)
    proved: list[tuple[Any, int]] = []
    plain = proof.plain_logits

    def recorded(model: Any, sequences: Any) -> Any:
        proved.append((model.config, max(map(len, sequences))))
        return plain(model, sequences)

    monkeypatch.setattr(proof, "plain_logits", recorded)
    load(folder)
    [(small, longest)] = proved
    assert small.layer_types == kinds[:4]
    assert (small.num_hidden_layers, small.sliding_window) == (4, 21)
    assert longest > 2 * small.sliding_window


def test_a_proof_is_made_once_for_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    prove = proof.prove
    monkeypatch.setattr(proof, "prove", lambda *args: made.append(args) or prove(*args))
    folder = save_tiny("llama", tmp_path)
    first = load(folder)
    assert load(folder).details["proof"] == first.details["proof"]
    assert len(made) == 1
    load(folder, architecture="transformers")
    load(save_tiny("llama", tmp_path, hidden_size=128))
    assert len(made) == 3


def test_bounds_are_found_wherever_a_config_names_them() -> None:
    class Config:
        def __init__(self) -> None:
            self.sliding_window = 4096
            self.windows = [512, None, 4096]
            self.rope_parameters = {"full_attention": {"original_max_position_embeddings": 8192, "factor": 4.0}}
            self.num_local_experts = 16
            self.max_window_layers = 28
            self.use_sliding_window = True
            self.hidden_size = 4096
            self.attention_chunk_size = None

    rope = ("rope_parameters", "full_attention", "original_max_position_embeddings")
    assert [(bound.name, bound.value, bound.paths) for bound in bounds_of(Config())] == [
        ("windows", 512, (("windows", 0),)),
        ("sliding_window", 4096, (("sliding_window",),)),
        ("windows", 4096, (("windows", 2),)),
        ("original_max_position_embeddings", 8192, (rope,)),
    ]
