"""Training: what is interrupted goes on to the same end, and what comes out is what our own engine serves."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from desk.training import course, evaluate, inbox, lora, train_fields, train_labels
from desk.training.conversations import batches
from desk.training.corpus import Example
from desk.training.course import Course, rate
from desk.training.generators import GENERATORS
from inference.local.engine import LocalEngine
from inference.messages import Message
from inference.sources.label_head import merge
from inference.types import GenerationRequest, Kind, SamplingParams
from tests.inference.text.folders import save_tokenizer
from tests.inference.tiny import COMMON, save_tiny

HELD_OUT = {
    "corpus": "16e89f43bf88e6dac3fcece0de8ab5d3b7c97a8f8799277c4df67a80280148e5",
    "inbox": "d04cc2d3b12eda98a0d25c57fa9a59fd074fde984d11350ae220e1c8865b1355",
}


class SwitchedOffError(Exception):
    """Stands for a machine that is switched off."""


def interrupt(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, after: int) -> None:
    """Let only the first `after` calls of a module's function or a class' method be answered."""
    real, calls = getattr(module, name), []

    def called(*given: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) > after:
            raise SwitchedOffError
        return real(*given, **more)

    monkeypatch.setattr(module, name, called)


def assert_same(one: Path, other: Path) -> None:
    ours, theirs = load_file(one), load_file(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


# -- pairs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("whole", [False, True], ids=["first layer", "with a gradient of its input"])
def test_a_pair_and_its_gradients_are_those_of_the_plain_expression(bias, whole):
    torch.manual_seed(0)
    pair = lora.LowRank(nn.Linear(6, 5, bias=bias).double().requires_grad_(False), rank=3, alpha=6.0).double()
    nn.init.normal_(pair.lora_B)
    given = torch.randn(2, 4, 6, dtype=torch.double, requires_grad=whole)
    asked = [pair.lora_A, pair.lora_B, *([given] if whole else [])]
    plain = pair.base(given) + 2.0 * (given @ pair.lora_A.T @ pair.lora_B.T)
    torch.testing.assert_close(pair(given), plain)
    weight = torch.randn_like(plain)
    ours = torch.autograd.grad((pair(given) * weight).sum(), asked)
    theirs = torch.autograd.grad((plain * weight).sum(), asked)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


# -- fields -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """A small chat model."""
    folder = tmp_path_factory.mktemp("chat")
    size = save_tokenizer(folder)
    return save_tiny("llama", folder, vocab_size=size, max_position_embeddings=4096)


def fields(chat: Path, out: Path, **changes: Any) -> Namespace:
    given = {"model": str(chat), "name": "tiny", "out": str(out), "steps": [4], "batch": 2, "rank": 2, "processes": 1}
    given |= {"seconds": None, "begin": None, "workers": 0, "compile": False}
    return Namespace(**{**given, "rate": 1e-2, "seed": 3, "generators": ["corpus", "inbox"], **changes})


@pytest.mark.slow
def test_an_adapter_goes_on_where_it_was_and_is_served(chat, tmp_path, monkeypatch):
    monkeypatch.setattr(course, "SAVED", 0.0)
    train_fields.train(fields(chat, tmp_path / "whole"))
    with monkeypatch.context() as cut:
        interrupt(cut, train_fields, "loss_of", 2)
        with pytest.raises(SwitchedOffError):
            train_fields.train(fields(chat, tmp_path / "cut"))
    train_fields.train(fields(chat, tmp_path / "cut"))
    weights = "adapter/adapter_model.safetensors"
    assert_same(tmp_path / "whole" / weights, tmp_path / "cut" / weights)
    assert any(tensor.abs().max() > 0 for name, tensor in load_file(tmp_path / "cut" / weights).items() if "_B" in name)

    engine = LocalEngine.load(str(chat), dtype="float32", kv_tokens=2048)
    engine.offer({"desk": tmp_path / "cut/adapter"})
    sampling = SamplingParams(temperature=0.0, max_tokens=2)
    messages = (Message("user", ("where is it",)),)
    request = GenerationRequest("r", "t", "t", messages=messages, sampling=sampling, adapter="desk")
    engine.submit(engine.prepare(request))
    ends = [output.finished for output in iter_outputs(engine) if output.finished is not None]
    assert [end.error for end in ends] == [None]


@pytest.mark.slow
def test_the_adapter_is_the_mean_of_the_ends_that_are_named(chat, tmp_path):
    """Float32 numbers are averaged and then written in bfloat16; going on from an end is the same as passing it."""
    weights = "adapter/adapter_model.safetensors"
    for steps in ([2], [2, 5]):
        train_fields.train(fields(chat, tmp_path / "on", steps=steps))
    train_fields.train(fields(chat, tmp_path / "passed", steps=[2, 5]))
    assert_same(tmp_path / "on" / weights, tmp_path / "passed" / weights)
    reached = torch.load(tmp_path / "on/state.pt", weights_only=True)["ends"]
    assert list(reached) == [2, 5]
    mean = load_file(tmp_path / "on" / weights)
    for name in reached[2]:
        for part in ("A", "B"):
            expected = ((reached[2][name][part] + reached[5][name][part]) / 2).bfloat16()
            assert torch.equal(mean[f"{lora.PREFIX}{name}.lora_{part}.weight"], expected)
            assert part == "A" or not torch.equal(reached[2][name][part], reached[5][name][part])
    with pytest.raises(SystemExit, match="no end at \\[4\\]"):
        train_fields.train(fields(chat, tmp_path / "on", steps=[4, 6]))


@pytest.mark.slow
def test_an_adapter_begins_with_another(chat, tmp_path):
    """Without a step it is that one again, in bfloat16 as it was written."""
    train_fields.train(fields(chat, tmp_path / "first"))
    train_fields.train(fields(chat, tmp_path / "next", steps=[], begin=tmp_path / "first/adapter"))
    weights = "adapter/adapter_model.safetensors"
    assert_same(tmp_path / "first" / weights, tmp_path / "next" / weights)


class Clock:
    """A clock that tells a second more each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.slow
def test_an_adapter_of_so_many_seconds_goes_on_with_what_is_left_of_them(chat, tmp_path, monkeypatch):
    """Whatever `--steps` says; its time is up whenever it is run once more."""
    monkeypatch.setattr(course, "time", Clock())
    monkeypatch.setattr(course, "SAVED", 0.0)
    given = fields(chat, tmp_path, steps=[1], seconds=30.0)
    with monkeypatch.context() as cut:
        interrupt(cut, train_fields, "loss_of", 2)
        with pytest.raises(SwitchedOffError):
            train_fields.train(given)
    assert not (tmp_path / "adapter").exists()
    train_fields.train(given)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["step"] > 2
    assert state["seconds"] >= 30.0
    reached = load_file(tmp_path / "adapter/adapter_model.safetensors")
    for name, pair in state["pairs"].items():
        assert torch.equal(reached[f"{lora.PREFIX}{name}.lora_B.weight"], pair["B"].bfloat16())
    train_fields.train(given)
    assert torch.load(tmp_path / "state.pt", weights_only=True)["step"] == state["step"]


def test_the_rate_rises_and_falls_to_nothing_at_each_end(tmp_path, monkeypatch):
    way = Course(tmp_path, 0, 0.0, [2, 10], None)
    told = []
    while (share := way.share) < 1.0:
        told.append(round(rate(way.step, share, 1.0, rise=2, fall=0.5), 3))
        way.step += 1
    assert told == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]
    monkeypatch.setattr(course, "time", Clock())
    way = Course(tmp_path, 40, 6.0, [2, 10], 10.0)
    shares = [way.share for _ in range(5)]
    assert shares == pytest.approx([0.7, 0.8, 0.9, 1.0, 1.0])
    assert [round(rate(40, share, 1.0, rise=2, fall=0.5), 3) for share in shares] == [0.6, 0.4, 0.2, 0.0, 0.0]


def iter_outputs(engine: LocalEngine) -> list[Any]:
    outputs: list[Any] = []
    while engine.unfinished:
        outputs += engine.step()
    return outputs


def test_batches_are_a_function_of_their_number_whoever_makes_them(chat):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(chat)
    whole = list(islice(batches("train", 1, 2, tokenizer), 20))
    for workers in (0, 2):
        assert list(islice(batches("train", 1, 2, tokenizer, first=11, workers=workers), 9)) == whole[11:]
    for one in (one for batch in whole for one in batch):
        assert tokenizer.decode(one.ids[: one.begin]).endswith("<|im_start|>assistant\n")
        assert one.ids[-1] == tokenizer.eos_token_id
    answers = {tokenizer.decode(one.ids[one.begin : -1]) for batch in whole for one in batch}
    assert any(answer.startswith("{") for answer in answers)


@pytest.mark.slow
def test_processes_that_share_batches_learn_what_one_does(chat, tmp_path):
    """Two of them take each batch of three in unequal parts; what differs is the order of summation in bfloat16."""
    for count in (1, 2):
        train_fields.train(fields(chat, tmp_path / str(count), batch=3, processes=count, rate=1e-4))
    curves = [json.loads((tmp_path / str(count) / "curve.jsonl").read_text().splitlines()[-1]) for count in (1, 2)]
    assert curves[0]["loss"] == pytest.approx(curves[1]["loss"], rel=1e-3)
    one, two = (load_file(tmp_path / str(count) / "adapter/adapter_model.safetensors") for count in (1, 2))
    moved = {
        name: (one[name].float() - two[name].float()).norm() / one[name].float().norm() for name in one if "_B" in name
    }
    assert max(moved.values()) < 0.2, moved


# -- labels -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A small encoder."""
    from transformers import AutoConfig, AutoModel

    folder = tmp_path_factory.mktemp("encoder")
    size = save_tokenizer(folder, None)
    torch.manual_seed(5)
    given = {**COMMON, "vocab_size": size, "pad_token_id": 1, "max_position_embeddings": 512}
    AutoModel.from_config(AutoConfig.for_model("bert", **given)).float().save_pretrained(folder)
    return folder


def labels(encoder: Path, out: Path, **changes: Any) -> Namespace:
    given = {"model": str(encoder), "name": "tiny", "out": str(out), "split": "train", "steps": 4, "batch": 4}
    given |= {"rank": 2, "width": 8, "rate": 1e-2, "seed": 3, "generators": ["corpus", "inbox"]}
    given |= {"seconds": None, "workers": 0}
    return Namespace(**{**given, **changes})


def test_a_head_goes_on_where_it_was_and_is_served(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(course, "SAVED", 0.0)
    train_labels.train(labels(encoder, tmp_path / "whole"))
    with monkeypatch.context() as cut:
        interrupt(cut, train_labels.Labeller, "forward", 2)
        with pytest.raises(SwitchedOffError):
            train_labels.train(labels(encoder, tmp_path / "cut"))
    train_labels.train(labels(encoder, tmp_path / "cut"))
    for file in ("head/adapter_model.safetensors", "head/label_head.safetensors"):
        assert_same(tmp_path / "whole" / file, tmp_path / "cut" / file)

    served = tmp_path / "served"
    merge(encoder, tmp_path / "cut/head", served)
    engine = LocalEngine.load(str(served), dtype="float32")
    model = train_labels.Labeller(str(encoder), 2, 8, torch.device("cpu"))
    optimizer = torch.optim.AdamW([*model.head.parameters()])
    state = torch.load(tmp_path / "cut/state.pt", weights_only=True)
    monkeypatch.setattr(optimizer, "load_state_dict", lambda _: None)
    assert train_labels._resume(tmp_path / "cut", model, optimizer)[0] == state["step"] == 4
    for example in islice(train_labels.classified("train", 9), 6):
        names = tuple(name for name in example.choices if name != "other")
        request = GenerationRequest(
            "r", "t", "t", kind=Kind.CLASSIFICATION, inputs=(example.ticket.text,), labels=names, truncate=True
        )
        engine.submit(engine.prepare(request))
        [vector] = [vector for output in iter_outputs(engine) for vector in output.vectors]
        with torch.no_grad():
            text, given = model.pooled([example.ticket.text]), model.pooled(names)
            expected = model.head(text, model.head.project(given))[0].softmax(-1).tolist()
        assert vector.labels == (*names, "other")
        assert np.frombuffer(vector.data, "<f4").tolist() == pytest.approx(expected, abs=0.05)  # bfloat16 there


@pytest.mark.slow
def test_a_head_on_an_encoder_that_stays_as_it_is(encoder, tmp_path):
    train_labels.train(labels(encoder, tmp_path / "out", steps=2, rank=0, split="fit"))
    assert {file.name for file in (tmp_path / "out/head").iterdir()} == {"label_head.json", "label_head.safetensors"}
    merge(encoder, tmp_path / "out/head", tmp_path / "served")
    assert_same(encoder / "model.safetensors", tmp_path / "served/model.safetensors")


# -- what is measured -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generator", HELD_OUT)
def test_the_held_out_file_is_fixed(generator):
    examples = evaluate.held_out(generator=generator)
    assert evaluate.digest(examples) == HELD_OUT[generator]
    assert sum(example.task == "classify" for example in examples) == 400


def test_training_reads_both_generators_in_turn(chat):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(chat)

    def told(*names):
        drawn = islice(batches("train", 1, 4, tokenizer, generators=names), 8)
        return {tokenizer.decode(one.ids) for batch in drawn for one in batch}

    one, two, both = told("corpus"), told("inbox"), told(*GENERATORS)
    assert one & two == set()
    assert both not in (one, two)
    for split in ("train", "held_out", "dev"):
        drawn = [example.ticket.register in inbox.FRAMES for example in islice(train_labels.classified(split, 1), 40)]
        assert sum(drawn) == 20


def test_dev_and_fit_divide_what_is_trained_on():
    from desk.training import texts

    for label in texts.labels():
        fit, dev = set(texts.situations(label, "fit")), set(texts.situations(label, "dev"))
        assert fit | dev == set(texts.situations(label, "train"))
        assert not fit & dev
        assert len(dev) >= len(fit) // 5


def asked(generator: str, task: str) -> Example:
    """The first question of that task whose answer has a value and a null, or is a label."""
    drawn = GENERATORS[generator]("dev", 1, 100)
    return next(one for one in drawn if one.task == task and (task == "classify" or '": "' in one.answer))


@pytest.mark.parametrize("generator", GENERATORS)
def test_what_counts_as_right(generator):
    examples = list(GENERATORS[generator]("dev", 1, 40))
    answers = [evaluate.Answer(example.answer, 0.8) for example in examples]
    lines = evaluate.table(examples, answers)
    assert {line["right"] for line in lines.values()} == {1.0}
    assert {(line["given from 0.7"], line["given from 0.9"]) for line in lines.values()} == {(1.0, 0.0)}
    assert {(line["missing"], line["wrong"]) for kind, line in lines.items() if "fields" in kind} == {(0.0, 0.0)}
    extract = asked(generator, "extract")
    assert not evaluate.is_right(extract, extract.answer[:-1])
    assert not evaluate.is_right(extract, extract.answer.replace("null", '"x"', 1))
    assert evaluate.is_right(extract, extract.answer.replace(", ", ","))


def test_values_are_missing_or_wrong():
    example = asked("corpus", "extract")
    right = json.loads(example.answer)
    has, lacks = (next(name for name, value in right.items() if (value is None) is none) for none in (False, True))
    assert evaluate.faults(example, json.dumps(right)) == (0, 0)
    assert evaluate.faults(example, json.dumps(right | {has: None})) == (1, 0)
    assert evaluate.faults(example, json.dumps(right | {has: "x", lacks: "y"})) == (0, 2)
    assert evaluate.faults(example, example.answer[:-1]) == (0, len(right))


def test_an_answer_is_as_sure_as_its_least_probable_token_of_a_value():
    fields, label = (asked("corpus", task) for task in ("extract", "classify"))
    tokens = [
        ('{"na', -9.0),
        ('me":', -9.0),
        (' "A', -0.1),
        ('nna"', -0.7),
        (', "x', -9.0),
        ('": null', -0.2),
        ("}", -9.0),
    ]
    assert evaluate._answer(fields, tokens[:5]) == evaluate.Answer('{"name": "Anna", "x', pytest.approx(math.exp(-0.7)))
    assert evaluate._answer(fields, tokens).confidence == pytest.approx(math.exp(-0.7))
    assert evaluate._answer(label, [("bil", -0.2), ("ling", -0.1)]) == evaluate.Answer(
        "billing", pytest.approx(math.exp(-0.2))
    )
