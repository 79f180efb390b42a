"""The corpus: the same from the same seed, right by construction, and nothing that is held out is ever trained on."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator

import pytest

from desk.training import corpus, fillers, texts
from desk.training.corpus import Example
from desk.training.fillers import FILLERS

COUNT = 1500


def sentences(split: str) -> Iterator[str]:
    """Everything that tickets and instructions of `split` are made from."""
    for label in (*texts.labels(), texts.OTHER):
        yield from texts.situations(label, split)
    yield from texts.details(split)
    for kind in ("greetings", "closings", "chatter", "anger"):
        yield from texts.talk(kind, split)
    yield from texts.asides(split)
    for task in ("classify", "extract"):
        yield from texts.instructions(task, split)
    for label in texts.labels():
        yield from texts.names_of(label, split)


def shared(ours: Iterable[str], theirs: Iterable[str]) -> set[str]:
    """What both contain, however it is written."""
    return {text.casefold().strip(" .!,") for text in ours} & {text.casefold().strip(" .!,") for text in theirs}


def values(examples: Iterable[Example], kind: str) -> set[str]:
    return {example.ticket.fields[kind] for example in examples if kind in example.ticket.fields}


@pytest.fixture(scope="module")
def drawn():
    return {split: list(corpus.examples(split, 7, COUNT)) for split in ("train", "held_out")}


def test_a_seed_decides_all(drawn):
    again = list(corpus.examples("train", 7, 50))
    assert again == drawn["train"][:50]
    assert again != list(corpus.examples("train", 8, 50))


def test_no_sentence_is_in_both_splits():
    assert not shared(sentences("train"), sentences("held_out"))


def leak(monkeypatch, file: str, *place: str) -> str:
    """Put the first held-out text at that place of the data among training's, written a little differently."""
    real = texts.read
    data = copy.deepcopy(dict(real(file)))
    there = data
    for name in place:
        there = there[name]
    leaked = there["held_out"][0]
    there["train"].append(f" {leaked.upper()}!")
    monkeypatch.setattr(texts, "read", lambda name: data if name == file else real(name))
    return leaked


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("situations", ("refund",)),
        ("situations", (texts.OTHER,)),
        ("details", ()),
        ("instructions", ("classify",)),
        ("instructions", ("extract",)),
        ("talk", ("greetings",)),
        ("talk", ("asides", "billing")),
        ("fillers", ("labels", "refund")),
    ],
)
def test_a_held_out_sentence_that_leaks_is_found(monkeypatch, file, place):
    leaked = leak(monkeypatch, file, *place)
    with pytest.raises(AssertionError, match=re.escape(leaked.casefold().strip(" .!,")[:20])):
        test_no_sentence_is_in_both_splits()


@pytest.mark.parametrize("kind", FILLERS)
def test_no_value_is_in_both_splits(drawn, kind):
    ours, theirs = values(drawn["train"], kind), values(drawn["held_out"], kind)
    assert len(ours) > 5 or kind == "plan"
    assert not ours & theirs


def test_a_held_out_value_that_leaks_is_found(monkeypatch):
    real = texts.words
    monkeypatch.setattr(texts, "words", lambda kind, split: real(kind, "held_out" if kind == "products" else split))
    monkeypatch.setattr(fillers, "words", texts.words)
    leaked = {split: list(corpus.examples(split, 7, 200)) for split in ("train", "held_out")}
    with pytest.raises(AssertionError, match="&"):
        test_no_value_is_in_both_splits(leaked, "product")


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_answers_are_right_by_construction(drawn, split):
    for example in drawn[split]:
        if example.task == "classify":
            assert example.answer in example.choices
            assert example.choices[-1] == texts.OTHER
            assert example.ticket.label != texts.OTHER or example.answer == texts.OTHER
        else:
            answer = json.loads(example.answer)
            assert tuple(answer) == example.choices
            for name, value in answer.items():
                assert value == example.ticket.fields.get(name)
                assert value is None or value in example.ticket.text
        assert all(choice in example.instruction for choice in example.choices)
        assert "{" not in example.ticket.text


def test_all_labels_registers_and_fields_come(drawn):
    examples = drawn["train"]
    assert {example.ticket.label for example in examples} == {*texts.labels(), texts.OTHER}
    assert len({example.ticket.register for example in examples}) == 6
    others = [example.answer == texts.OTHER for example in examples if example.task == "classify"]
    assert 0.05 < sum(others) / len(others) < 0.25
    nulls = [value is None for e in examples if e.task == "extract" for value in json.loads(e.answer).values()]
    assert 0.3 < sum(nulls) / len(nulls) < 0.9
