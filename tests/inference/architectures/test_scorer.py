"""Scores of pairs equal transformers' own model, one pair at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inference.architectures import encoder
from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.errors import InvalidRequestError, ModelRefusedError
from inference.execution.backend import LoadedModel
from inference.local.engine import LocalEngine
from inference.text.byte_tokenizer import END_OF_TURN, VOCABULARY, ByteTokenizer
from inference.types import FinishReason, GenerationRequest, Kind
from tests.inference.tiny import COMMON, SPECIAL

KINDS = {
    "bert": {"type_vocab_size": 2, "pad_token_id": 0},
    "roberta": {"type_vocab_size": 1, "pad_token_id": 1},
    "qwen3": SPECIAL["qwen3"],
    "llama": SPECIAL["llama"],
}


def save_scorer(kind: str, folder: Path, **changes: Any) -> Path:
    """Write a random model with one label."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    torch.manual_seed(5)
    given = {**COMMON, "vocab_size": VOCABULARY, "num_labels": 1, **KINDS[kind], **changes}
    config = AutoConfig.for_model(kind, **given)
    model = AutoModelForSequenceClassification.from_config(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.2 / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    return folder


def load(folder: Path, **config: Any) -> LoadedModel:
    return load_model(EngineConfig("test", str(folder), dtype="float32", **config), threads=1)


def engine_of(loaded: LoadedModel) -> LocalEngine:
    return LocalEngine(EngineConfig("test", "-", block_size=loaded.block_size), loaded, ByteTokenizer())


def scored(
    engine: LocalEngine, queries: tuple[str, ...], texts: tuple[str, ...], **more: Any
) -> tuple[list[float], Any]:
    request = GenerationRequest("r", "t", "t", kind=Kind.SCORE, queries=queries, inputs=texts, **more)
    engine.submit(engine.prepare(request))
    scores: dict[int, float] = {}
    while engine.unfinished:
        for output in engine.step():
            for vector in output.vectors:
                (scores[vector.index],) = np.frombuffer(vector.data, "<f4").tolist()
            end = output.finished
    return [scores[index] for index in range(len(texts))], end


def expected(folder: Path, query: str, text: str, *, kinds: bool, sigmoid: bool = True) -> float:
    from transformers import AutoModelForSequenceClassification

    pair = ByteTokenizer().pair(query, text)
    assert pair is not None
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    model.config.pad_token_id = None
    more = {"token_type_ids": torch.tensor([[0] * pair.second + [1] * (len(pair.ids) - pair.second)])} if kinds else {}
    with torch.no_grad():
        logit = model(torch.tensor([pair.ids]), **more).logits[0, 0]
    return float(torch.sigmoid(logit) if sigmoid else logit)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_transformers(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_scorer(kind, tmp_path)
    loaded = load(folder)
    assert loaded.kinds == {Kind.SCORE}
    assert loaded.vector_width == 1
    monkeypatch.setattr(encoder, "STEP_TOKENS", 80)  # several batches, with padding
    # A byte 0 or 1 in the text is the padding's id: only what stands behind the text is padding.
    texts = ("a short one", "one that is rather longer than the others are", "x\0\x01\0" if kind != "roberta" else "x")
    scores, end = scored(engine_of(loaded), ("what?",), texts)
    wanted = [expected(folder, "what?", text, kinds=kind == "bert") for text in texts]
    assert np.abs(np.array(scores) - wanted).max() < 1e-5
    assert np.ptp(wanted) > 1e-3, "the model tells them apart"
    assert end.reason is FinishReason.STOP
    assert end.usage.input == sum(len("what?") + len(text.encode()) + 2 for text in texts)
    assert end.usage.completion == 0


def test_each_text_may_have_a_query_of_its_own(tmp_path: Path) -> None:
    engine = engine_of(load(save_scorer("bert", tmp_path)))
    both, _ = scored(engine, ("one", "two"), ("x", "y"))
    (first,), _ = scored(engine, ("one",), ("x",))
    (second,), _ = scored(engine, ("two",), ("y",))
    assert np.allclose(both, [first, second], atol=1e-6)
    with pytest.raises(InvalidRequestError, match="one query"):
        scored(engine, ("one", "two"), ("x",))


@pytest.mark.parametrize(
    ("stated", "sigmoid"),
    [
        ({}, True),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, False),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, True),
    ],
)
def test_the_activation_is_the_one_in_the_config(stated: dict[str, Any], sigmoid: bool, tmp_path: Path) -> None:
    folder = save_scorer("bert", tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | stated))
    (score,), _ = scored(engine_of(load(folder)), ("what?",), ("that",))
    assert score == pytest.approx(expected(folder, "what?", "that", kinds=True, sigmoid=sigmoid), abs=1e-5)


def test_pairs_that_are_too_long_are_refused_or_cut(tmp_path: Path) -> None:
    engine = engine_of(load(save_scorer("bert", tmp_path), max_context=32))
    with pytest.raises(InvalidRequestError, match="pair 1 has") as refused:
        scored(engine, ("what?",), ("x", "y" * 40))
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    scores, end = scored(engine, ("what?",), ("x", "y" * 40), truncate=True)
    assert np.allclose(scores[1], scored(engine, ("what?",), ("y" * 25,))[0])
    assert end.usage.input == 8 + 32
    with pytest.raises(InvalidRequestError, match="pair 0 has"):  # nothing of the query is cut
        scored(engine, ("what?" * 10,), ("x",), truncate=True)
    with pytest.raises(InvalidRequestError, match="characters"):
        scored(engine, ("what?" * 10_000,), ("x",), truncate=True)


def test_what_gives_no_score_is_refused(tmp_path: Path) -> None:
    assert load(save_scorer("bert", tmp_path / "labels", num_labels=3)).kinds == {Kind.CLASSIFICATION}
    folder = save_scorer("bert", tmp_path / "activation")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sbert_ce_default_activation_function": "my.Own"}))
    with pytest.raises(ModelRefusedError, match=r"my\.Own"):
        load(folder)
    with pytest.raises(InvalidRequestError) as refused:
        engine_of(load(save_scorer("bert", tmp_path / "kind"))).prepare(
            GenerationRequest("r", "t", "t", kind=Kind.EMBEDDING, inputs=("x",))
        )
    assert refused.value.code == "unsupported_task"


def test_a_pair_begins_its_second_text_where_the_tokenizer_says(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    from inference.text.tokenizer import FolderTokenizer

    words = Tokenizer(models.WordLevel({"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "a": 3, "b": 4}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    made = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    made.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    made.save_pretrained(tmp_path)
    tokenizer = FolderTokenizer(tmp_path)
    assert tokenizer.pair("a a", "b") == ((0, 3, 3, 1, 4, 1), 4)
    assert tokenizer.pair("a a", "b b b b", 7) == ((0, 3, 3, 1, 4, 4, 1), 4)
    assert tokenizer.pair("a a a a", "b", 6) is None
    found = tokenizer.pair("a [SEP] a", "b")  # a control token's text is text
    assert found is not None
    assert found.ids.count(1) == 2
    assert END_OF_TURN not in found.ids
