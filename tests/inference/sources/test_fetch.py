"""What a model that was brought here is called and can do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.errors import ModelRefusedError
from inference.sources.fetch import describe, name_of


def model(folder: Path, **config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model(tmp_path / "tiny-0.5b")
    (tmp_path / "Smol.Q4_1.gguf").touch()
    assert name_of(str(folder)) == name_of(f"{folder}/") == "tiny-0.5b"
    assert name_of(str(tmp_path / "Smol.Q4_1.gguf")) == "Smol.Q4_1"
    assert name_of("HuggingFaceTB/SmolLM2-1.7B@main") == name_of("HuggingFaceTB/SmolLM2-1.7B") == "SmolLM2-1.7B"
    monkeypatch.chdir(folder)
    assert name_of(".") == "tiny-0.5b"


def test_a_chat_model_and_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model(tmp_path / "abc123", architectures=["LlamaForCausalLM"], max_position_embeddings=77)
    monkeypatch.chdir(tmp_path)
    expected = {"name": "smol", "folder": str(folder), "kinds": ["chat"], "context_length": 77}
    assert describe(Path("abc123"), "smol") == expected
    assert describe(folder)["name"] == "abc123"


def test_an_embedding_model_has_its_own_length(tmp_path: Path) -> None:
    folder = model(tmp_path / "vec", architectures=["BertModel"], max_position_embeddings=512)
    (folder / "modules.json").write_text("[]")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    assert describe(folder) == {"name": "vec", "folder": str(folder), "kinds": ["embedding"], "context_length": 256}


def test_a_head_says_what_a_model_is_for(tmp_path: Path) -> None:
    head = {"architectures": ["BertForSequenceClassification"]}
    assert describe(model(tmp_path / "one", **head, id2label={"0": "LABEL_0"}))["kinds"] == ["score"]
    assert describe(model(tmp_path / "two", **head))["kinds"] == ["classification"]
    assert describe(model(tmp_path / "three", **head, id2label={"0": "a", "1": "b", "2": "c"}))["kinds"] == [
        "classification"
    ]
    folder = model(tmp_path / "any", architectures=["BertModel"])
    (folder / "modules.json").write_text("[]")
    (folder / "label_head.json").write_text("{}")
    assert describe(folder)["kinds"] == ["classification"]


def test_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefusedError, match="no causal language model: ViTModel"):
        describe(model(tmp_path / "vit", architectures=["ViTModel"]))
