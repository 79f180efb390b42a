"""Classifiers: probabilities equal transformers' own model, and those of a head that compares texts with any labels."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from inference.architectures.label_head import LabelHead
from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.core.bounds import StepBounds
from inference.errors import InvalidRequestError, ModelRefusedError
from inference.local.engine import LocalEngine
from inference.text.byte_tokenizer import VOCABULARY, ByteTokenizer
from inference.types import GenerationRequest, Kind, Usage
from tests.inference.architectures.test_scorer import save_scorer
from tests.inference.tiny import COMMON

NAMES = {"id2label": {0: "praise", 1: "blame", 2: "question"}, "label2id": {"praise": 0, "blame": 1, "question": 2}}
TEXTS = ("a fine day", "why", "this will not do at all")


def engine_of(folder: Path) -> LocalEngine:
    loaded = load_model(EngineConfig("test", str(folder), dtype="float32"), threads=1)
    return LocalEngine(EngineConfig("test", "-", block_size=loaded.block_size), loaded, ByteTokenizer())


def classified(
    engine: LocalEngine, texts: tuple[str, ...], labels: tuple[str, ...] = (), *, domain: str = "t"
) -> tuple[Any, ...]:
    """Return the label names, the probabilities of each text's, and the usage."""
    request = GenerationRequest("r", "t", domain, kind=Kind.CLASSIFICATION, inputs=texts, labels=labels)
    prompt = engine.prepare(request)
    engine.submit(prompt)
    found: dict[int, list[float]] = {}
    names: set[tuple[str, ...]] = set()
    while engine.unfinished:
        for output in engine.step():
            for vector in output.vectors:
                found[vector.index] = np.frombuffer(vector.data, "<f4").tolist()
                names.add(vector.labels)
            end = output.finished
    assert end is not None
    assert end.usage == Usage(input=prompt.tokens)
    [labels] = names
    return labels, [found[index] for index in range(len(texts))], end.usage


# -- labels of its own ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["bert", "qwen3"])
def fixed(request, tmp_path_factory):
    return save_scorer(request.param, tmp_path_factory.mktemp(request.param), num_labels=3, **NAMES)


def expected(folder: Path, text: str) -> torch.Tensor:
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    model.config.pad_token_id = None
    with torch.no_grad():
        return model(torch.tensor([ByteTokenizer().encode(text)])).logits[0]


def test_the_models_own_labels(fixed):
    labels, probabilities, _ = classified(engine_of(fixed), TEXTS)
    assert labels == ("praise", "blame", "question")
    for text, given in zip(TEXTS, probabilities, strict=True):
        assert given == pytest.approx(expected(fixed, text).softmax(-1).tolist(), abs=1e-5)


def test_some_of_its_labels_share_the_probability(fixed):
    labels, [given], _ = classified(engine_of(fixed), TEXTS[:1], ("question", "praise"))
    assert labels == ("question", "praise")
    assert given == pytest.approx(expected(fixed, TEXTS[0])[[2, 0]].softmax(-1).tolist(), abs=1e-5)


def test_labels_of_which_several_may_be_true(tmp_path):
    folder = save_scorer("bert", tmp_path, num_labels=3, **NAMES, problem_type="multi_label_classification")
    _, [given], _ = classified(engine_of(folder), TEXTS[:1])
    assert given == pytest.approx(expected(folder, TEXTS[0]).sigmoid().tolist(), abs=1e-5)


def test_a_label_that_it_does_not_know_is_refused_by_name(fixed):
    with pytest.raises(InvalidRequestError, match="no label 'sorrow': it has praise, blame, question") as caught:
        classified(engine_of(fixed), TEXTS, ("praise", "sorrow"))
    assert (caught.value.code, caught.value.param) == ("unknown_label", "labels")


def test_an_answer_has_so_many_probabilities_whoever_names_the_labels(fixed, monkeypatch):
    monkeypatch.setattr("inference.text.prepare.MOST_PROBABILITIES", 6)
    engine = engine_of(fixed)
    assert len(classified(engine, TEXTS[:2])[1]) == 2
    with pytest.raises(InvalidRequestError, match="3 texts and 3 labels make more than 6 probabilities") as caught:
        classified(engine, TEXTS)
    assert caught.value.param == "input"


def test_labels_with_half_a_character_are_refused(tmp_path):
    names = {"id2label": {0: "good", 1: "\ud800"}, "label2id": {"good": 0, "\ud800": 1}}
    with pytest.raises(ModelRefusedError, match=r"config\.json can't be read as JSON: .* surrogates not allowed"):
        engine_of(save_scorer("bert", tmp_path, num_labels=2, **names))


def test_labels_of_one_name_are_refused(tmp_path):
    folder = save_scorer("bert", tmp_path, num_labels=2, id2label={0: "same", 1: "same"}, label2id={"same": 0})
    with pytest.raises(ModelRefusedError, match="two of the model's labels"):
        engine_of(folder)


# -- any labels -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An encoder of random weights with a head for labels."""
    from transformers import AutoConfig, AutoModel

    folder = tmp_path_factory.mktemp("open")
    torch.manual_seed(5)
    config = AutoConfig.for_model("bert", **{**COMMON, "vocab_size": VOCABULARY, "pad_token_id": 0})
    model = AutoModel.from_config(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.2 / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    head = LabelHead(config.hidden_size, 8)
    torch.nn.init.normal_(head.none.weight, 0, 0.3)
    save_file(
        {name: one.detach().bfloat16() for name, one in head.state_dict().items()}, folder / "label_head.safetensors"
    )
    stated = {"labels": ["billing", "refund", "delivery"], "none": "other"}
    (folder / "label_head.json").write_text(json.dumps(stated))
    return folder


def test_a_folders_labels_with_half_a_character_are_refused(tmp_path, folder):
    copied = Path(shutil.copytree(folder, tmp_path / "copied"))
    (copied / "label_head.json").write_text(json.dumps({"labels": ["billing", "\ud800"], "none": "other"}))
    with pytest.raises(ModelRefusedError, match=r"label_head\.json can't be read as JSON: .* surrogates not allowed"):
        engine_of(copied)


@pytest.fixture(scope="module")
def engine(folder):
    return engine_of(folder)


def test_labels_are_compared_with_each_text(engine, folder):
    from safetensors.torch import load_file
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder).eval()
    weights = {name: one.float() for name, one in load_file(folder / "label_head.safetensors").items()}

    def pooled(text: str) -> torch.Tensor:
        with torch.no_grad():
            return model(torch.tensor([ByteTokenizer().encode(text)])).last_hidden_state[0].mean(0)

    labels, probabilities, _ = classified(engine, TEXTS, ("red", "blue"))
    assert labels == ("red", "blue", "other")
    for text, given in zip(TEXTS, probabilities, strict=True):
        own = weights["text.weight"] @ pooled(text)
        compared = [
            torch.cosine_similarity(own, weights["label.weight"] @ pooled(label), dim=0) * weights["factor"].exp()
            for label in ("red", "blue")
        ]
        none = weights["none.weight"][0] @ pooled(text) + weights["none.bias"][0]
        assert given == pytest.approx(torch.stack([*compared, none]).softmax(0).tolist(), abs=1e-4)


def test_without_labels_those_of_the_folder(engine):
    labels, [given], usage = classified(engine, TEXTS[:1])
    assert labels == ("billing", "refund", "delivery", "other")
    assert sum(given) == pytest.approx(1.0)
    count = len(ByteTokenizer().encode(TEXTS[0])) + sum(len(ByteTokenizer().encode(name)) for name in labels[:-1])
    assert usage.input == count


def test_what_none_is_called_is_no_label_of_its_own(engine):
    names, probabilities, _ = classified(engine, TEXTS[:1], ("other", "red"))
    assert names == ("red", "other")
    assert probabilities[0] == pytest.approx(classified(engine, TEXTS[:1], ("red",))[1][0], abs=1e-5)
    with pytest.raises(InvalidRequestError, match="at least one label beside it"):
        classified(engine, TEXTS, ("other",))


def test_a_text_has_the_same_label_in_any_company(engine):
    _, together, _ = classified(engine, TEXTS, ("red", "blue"))
    for text, given in zip(TEXTS, together, strict=True):
        assert classified(engine, (text,), ("red", "blue"))[1][0] == pytest.approx(given, abs=1e-5)


@pytest.fixture
def seen(engine, monkeypatch):
    """How many texts, inputs or labels, each of the encoder's calls has had."""
    seen: list[int] = []
    encoder = engine.model.runner._classifier._encoder
    encode = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda inputs: seen.append(len(inputs)) or encode(inputs))
    return seen


def test_labels_that_were_seen_are_not_computed_again(engine, seen):
    classified(engine, TEXTS, ("green", "grey"))
    seen.clear()
    classified(engine, TEXTS[:1], ("grey", "green"))
    assert seen == [1]
    classified(engine, TEXTS[:1], ("grey", "pink"))
    assert seen == [1, 1, 1]


def test_what_another_domain_has_named_is_computed_anew(engine, seen):
    """Else how long an answer takes would tell which labels another tenant has."""
    first = classified(engine, TEXTS[:1], ("secret project",), domain="a")[1]
    assert classified(engine, TEXTS[:1], ("secret project",), domain="b")[1] == first
    assert seen == [1, 1, 1, 1]
    classified(engine, TEXTS[:1], ("secret project",), domain="a")
    assert seen == [1, 1, 1, 1, 1]


def test_labels_are_computed_once_for_a_request_whatever_others_name_meanwhile(engine, seen, monkeypatch):
    """They count once; with the inputs of many requests in turn nothing would be kept from one step to the next."""
    monkeypatch.setattr("inference.architectures.classifier.MOST_KNOWN", 1)
    monkeypatch.setattr(engine._encoding, "bounds", StepBounds(1, engine._encoding.bounds.tokens))
    for name in ("a", "b"):
        labels = (f"{name} one", f"{name} two")
        request = GenerationRequest(name, name, name, kind=Kind.CLASSIFICATION, inputs=TEXTS, labels=labels)
        engine.submit(engine.prepare(request))
    while engine.unfinished:
        engine.step()
    assert seen == [1, 2, 1, 2, 1, 1, 1, 1]
    assert not engine.model.runner._classifier._in_use


def test_as_many_labels_are_kept_as_fit(engine, monkeypatch):
    monkeypatch.setattr("inference.architectures.classifier.MOST_KNOWN", 2)
    first = classified(engine, TEXTS, ("one", "two", "three"))[1]
    again = classified(engine, TEXTS, ("one", "two", "three"))[1]
    for one, other in zip(first, again, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    assert len(engine.model.runner._classifier._known) == 2


@pytest.mark.parametrize(
    ("labels", "message"),
    [(("red", "red"), "stands twice"), (("x" * 80,), "label 0 has")],
)
def test_labels_that_can_not_be_used_are_refused(engine, labels, message):
    with pytest.raises(InvalidRequestError, match=message) as caught:
        classified(engine, TEXTS, labels)
    assert caught.value.param == "labels"


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"labels": [], "none": "other"}, "no list of labels"),
        ({"labels": ["a", ""], "none": "other"}, "no list of labels"),
        ({"labels": ["a"], "none": ""}, "`none`"),
        ({"labels": ["a"], "none": "a"}, "`none`"),
    ],
)
def test_a_head_that_says_too_little_is_refused(folder, tmp_path, stated, message):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "label_head.json").write_text(json.dumps(stated))
    with pytest.raises(ModelRefusedError, match=message):
        engine_of(tmp_path)


def test_a_head_of_another_width_is_refused(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(dict(LabelHead(5, 8).state_dict()), tmp_path / "label_head.safetensors")
    with pytest.raises(ModelRefusedError, match="doesn't fit"):
        engine_of(tmp_path)
