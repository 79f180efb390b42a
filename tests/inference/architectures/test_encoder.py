"""Embeddings equal a plain BertModel with its pooling written out."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.architectures import encoder as module
from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.core.step import EncodeRow, Row, RowFailure, StepPlan
from inference.errors import ModelRefusedError
from inference.execution.backend import LoadedModel
from inference.types import Kind, SamplingParams
from tests.inference.tiny import save_tiny

POOL = {
    "mean_tokens": lambda h: h.mean(0),
    "cls_token": lambda h: h[0],
    "max_tokens": lambda h: h.amax(0),
    "lasttoken": lambda h: h[-1],
    "mean_sqrt_len_tokens": lambda h: h.sum(0) / len(h) ** 0.5,
}


def save_encoder(folder: Path, *modes: str, normalise: bool = True, extra: str = "") -> Path:
    """Write a tiny random BERT in a sentence-transformers folder."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=101, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        max_position_embeddings=64, initializer_range=0.4,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 24} | {f"pooling_mode_{mode}": mode in modes for mode in POOL})
    )
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalise else []), *([extra] if extra else [])]
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"idx": i, "path": "1_Pooling" if kind == "Pooling" else "", "type": f"sentence_transformers.{kind}"}
                for i, kind in enumerate(kinds)
            ]
        )
    )
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 48}')
    return folder


def load(folder: Path, **config: Any) -> LoadedModel:
    return load_model(EngineConfig("test", str(folder), dtype="float32", **config), threads=1)


def vectors(loaded: LoadedModel, inputs: list[tuple[int, ...]]) -> list[Any]:
    plan = StepPlan(0, encodes=tuple(EncodeRow("a", i, ids) for i, ids in enumerate(inputs)))
    result = loaded.runner.launch(plan).wait().vectors
    return [v if isinstance(v, RowFailure) else np.frombuffer(v, "<f4") for v in result]


def reference(folder: Path, ids: tuple[int, ...], modes: tuple[str, ...], *, normalise: bool) -> Any:
    from transformers import BertModel

    with torch.no_grad():
        model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
        hidden = model(torch.tensor([ids])).last_hidden_state[0]
    vector = torch.cat([POOL[mode](hidden) for mode in modes])
    return (vector / vector.norm() if normalise else vector).numpy()


INPUTS = [(1, 2, 3), tuple(range(48)), (7,), (9, 9, 8, 7), (1, 2, 3)]


@pytest.mark.parametrize(
    ("modes", "normalise"),
    [(("mean_tokens",), True), (("cls_token",), False), (("max_tokens",), True), (("lasttoken",), True),
     (("mean_sqrt_len_tokens",), False), (("cls_token", "mean_tokens"), True)],
)  # fmt: skip
def test_pooling(tmp_path: Path, modes: tuple[str, ...], normalise: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_encoder(tmp_path, *modes, normalise=normalise)
    loaded = load(folder)
    assert loaded.kinds == {Kind.EMBEDDING}
    assert (loaded.max_input, loaded.vocab_size, loaded.kv_blocks) == (48, 101, 0)
    assert loaded.vector_width == 24 * len(modes)
    monkeypatch.setattr(module, "STEP_TOKENS", 60)  # several batches
    for ids, vector in zip(INPUTS, vectors(loaded, INPUTS), strict=True):
        assert np.abs(vector - reference(folder, ids, modes, normalise=normalise)).max() < 1e-5


def test_bad_inputs_fail_alone(tmp_path: Path) -> None:
    loaded = load(save_encoder(tmp_path, "mean_tokens"), max_context=10)
    got = vectors(loaded, [(1, 2), (1, 101), (), tuple(range(11)), (3,)])
    codes = [entry.code if isinstance(entry, RowFailure) else len(entry) for entry in got]
    assert codes == [24, "bad_token_id", "bad_row", "too_long", 24]


def test_tokens_asked_of_an_encoder_fail_the_step(tmp_path: Path) -> None:
    loaded = load(save_encoder(tmp_path, "mean_tokens"))
    with pytest.raises(TypeError, match="makes embeddings"):
        loaded.runner.launch(StepPlan(0, (Row(0, "a", (1,), 0, (1,), True, 0, SamplingParams(), 0),))).wait()


def test_tensors_that_no_encoder_has(tmp_path: Path) -> None:
    """Heads of the tasks that it was trained for do no harm, and what is left of a quantised model does."""
    folder = save_encoder(tmp_path, "mean_tokens")
    tensors = load_file(folder / "model.safetensors")
    name = "encoder.layer.1.output.dense.weight"
    for changed, message in (
        ({"cls.predictions.bias": torch.zeros(101), "embeddings.position_ids": torch.arange(64)[None]}, None),
        ({f"{name}_scale": torch.ones(1)}, f"the checkpoint has {name}_scale, which a model of its config doesn't"),
        ({name: tensors[name].to(torch.float8_e4m3fn)}, f"tensor {name} is F8_E4M3"),
        ({name: tensors[name] / 0}, f"tensor {name} has values that are not finite"),
    ):
        save_file(tensors | changed, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelRefusedError, match=message) if message else nullcontext():
            load(folder)


def test_modules_that_we_do_not_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefusedError, match="module Dense is not supported"):
        load(save_encoder(tmp_path / "a", "mean_tokens", extra="Dense"))
    folder = save_encoder(tmp_path / "b", "mean_tokens")
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_weightedmean_tokens": true}')
    with pytest.raises(ModelRefusedError, match="weightedmean"):
        load(folder)


def test_an_encoder_without_modules_is_pooled_by_the_mean(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path, "cls_token")
    (folder / "modules.json").unlink()
    loaded = load(folder)
    assert loaded.details["pooling"] == "mean_tokens, normalised"
    expected = reference(folder, (1, 2, 3), ("mean_tokens",), normalise=True)
    assert np.abs(vectors(loaded, [(1, 2, 3)])[0] - expected).max() < 1e-5


class OnMeta:
    """A model without numbers, on a device that is not the CPU: enough to see where tensors lie."""

    device = torch.device("meta")
    config = SimpleNamespace(vocab_size=9, hidden_size=4)

    def __call__(self, *, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        assert {input_ids.device, attention_mask.device} == {self.device}
        return SimpleNamespace(last_hidden_state=torch.empty(*input_ids.shape, 4, device=self.device))


@pytest.mark.parametrize("mode", module.POOLING)
def test_inputs_are_encoded_on_the_model_s_device(mode: str) -> None:
    """Only the copy of the finished vectors back to the CPU is impossible from there."""
    encoder = module.Encoder(OnMeta(), (mode,), normalise=True, max_input=48)
    with torch.inference_mode(), pytest.raises(NotImplementedError, match="copy out of meta"):
        encoder.encode([(1, 2, 3), (4, 5)])


@pytest.mark.parametrize(
    ("options", "mode", "normalise"),
    [
        ({}, "lasttoken", True),
        ({"pooling": "mean"}, "mean_tokens", True),
        ({"pooling": "lasttoken", "normalize": False}, "lasttoken", False),
    ],
)
def test_a_decoder_makes_embeddings_as_its_deployment_says(
    options: dict[str, Any], mode: str, normalise: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModel

    folder = save_tiny("qwen3", tmp_path)
    loaded = load(folder, architecture="encoder", options=options)
    assert loaded.kinds == {Kind.EMBEDDING}
    assert not loaded.nests_vectors
    monkeypatch.setattr(module, "STEP_TOKENS", 120)  # several batches, with padding behind the shorter ones
    model = AutoModel.from_pretrained(folder).eval()
    for ids, vector in zip(INPUTS, vectors(loaded, INPUTS), strict=True):
        with torch.no_grad():
            pooled = POOL[mode](model(torch.tensor([ids])).last_hidden_state[0])
        expected = (pooled / pooled.norm() if normalise else pooled).numpy()
        assert np.abs(vector - expected).max() < 1e-5


def test_a_decoder_in_a_sentence_transformers_folder_makes_embeddings(tmp_path: Path) -> None:
    """As the embedding models on top of Qwen3 come: pooled by the last token, with nested dimensions."""
    folder = save_tiny("qwen3", tmp_path, is_matryoshka=True)
    save_encoder(tmp_path / "other", "lasttoken")
    for name in ("modules.json", "1_Pooling"):
        (tmp_path / "other" / name).rename(folder / name)
    loaded = load(folder)
    assert loaded.kinds == {Kind.EMBEDDING}
    assert loaded.nests_vectors
    assert loaded.details["pooling"] == "lasttoken, normalised"


def test_a_pooling_for_a_model_that_generates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefusedError, match="architecture=encoder"):
        load(save_tiny("llama", tmp_path), options={"pooling": "mean"})
