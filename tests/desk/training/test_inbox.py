"""The second generator: right by construction, apart from the first, and its halves apart from each other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from desk.reader import EnglishReader
from desk.training import corpus, fillers, inbox, texts
from desk.training.generators import GENERATORS
from inference.messages import Message
from tests.desk.training.test_corpus import sentences, shared

COUNT = 1500
FILES = (*inbox.LANGUAGES, "values")
WORDS = ("products", "first_names", "last_names", "cities", "plans", "domains")
ALIKE = {"months", "weekdays"}  # of one calendar


def told(data: Any, split: str) -> Iterator[str]:
    """Every text of `split` in a file's data."""
    for name, value in data.items():
        if name == split:
            yield from value
        elif isinstance(value, dict):
            yield from told(value, split)


def of_inbox(split: str) -> set[str]:
    return {text for file in FILES for text in told(texts.read(f"inbox/{file}"), split)}


def of_corpus() -> set[str]:
    both = ("train", "held_out")
    words = (text for split in both for kind in WORDS for text in texts.words(kind, split))
    return {*words, *fillers.FILLERS, *texts.labels(), *(text for split in both for text in sentences(split))}


@pytest.fixture(scope="module")
def drawn():
    return {split: list(inbox.examples(split, 7, COUNT)) for split in ("train", "held_out")}


def test_a_seed_decides_all(drawn):
    assert list(inbox.examples("train", 7, 50)) == drawn["train"][:50] != list(inbox.examples("train", 8, 50))


def test_the_halves_share_no_text():
    assert shared(of_inbox("train"), of_inbox("held_out")) == set()


def test_the_generators_share_no_text():
    assert shared(of_corpus(), of_inbox("train") | of_inbox("held_out")) == set()


@pytest.mark.parametrize("place", [("frames", "mail"), ("matters", "refund"), ("keys", "order"), ("values", "names")])
def test_a_text_that_leaks_is_found(monkeypatch, place):
    leak = texts.read("inbox/de")[place[0]][place[1]]
    monkeypatch.setitem(leak, "train", [*leak["train"], f"{leak['held_out'][0]}!"])
    with pytest.raises(AssertionError):
        test_the_halves_share_no_text()


def test_a_text_of_the_first_generator_is_found(monkeypatch):
    talk = texts.read("inbox/en")["talk"]["greeting"]
    monkeypatch.setitem(talk, "train", [texts.talk("greetings", "held_out")[0]])
    with pytest.raises(AssertionError):
        test_the_generators_share_no_text()


def values(examples: Iterable[corpus.Example]) -> set[str]:
    return {value for example in examples for value in example.ticket.fields.values()}


def test_no_value_is_in_two_halves(drawn):
    halves = [values(corpus.examples(split, 7, COUNT)) for split in ("train", "held_out")]
    halves += [values(drawn[split]) for split in ("train", "held_out")]
    assert len(set.union(*halves)) == sum(map(len, halves))


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_answers_are_right_by_construction(drawn, split):
    for example in drawn[split]:
        text, prompt = example.ticket.text, example.prompt
        assert "{" not in text
        assert prompt.endswith(example.instruction) if example.is_behind else prompt.startswith(example.instruction)
        assert all(choice in example.instruction for choice in example.choices)
        if example.task == "classify":
            assert example.answer in example.choices
            assert example.choices[-1] == texts.OTHER
            continue
        answer = json.loads(example.answer)
        assert tuple(answer) == example.choices
        assert {value for value in answer.values() if value is not None} <= set(example.ticket.fields.values())
        assert all(value in text for value in answer.values() if value is not None)


def test_every_way_comes(drawn):
    for examples in drawn.values():
        assert {example.ticket.language for example in examples} == set(inbox.LANGUAGES)
        assert {example.ticket.register for example in examples} == set(inbox.FRAMES)
        assert {example.ticket.label for example in examples} == {*texts.labels(), texts.OTHER}
        assert {example.is_behind for example in examples} == {False, True}
        assert set.union(*(set(example.ticket.fields) for example in examples)) == set(inbox.KINDS)
        others = [example.answer == texts.OTHER for example in examples if example.task == "classify"]
        assert 0.03 < sum(others) / len(others) < 0.25
        nulls = [value is None for e in examples if e.task == "extract" for value in json.loads(e.answer).values()]
        assert 0.3 < sum(nulls) / len(nulls) < 0.8


@pytest.mark.parametrize("language", inbox.LANGUAGES)
def test_the_languages_say_the_same_kinds_of_things(language):
    data = texts.read(f"inbox/{language}")
    for table, names in (("keys", inbox.KINDS), ("details", inbox.KINDS), ("frames", inbox.FRAMES)):
        assert set(data[table]) == set(names)
    assert set(data["matters"]) == {*texts.labels(), texts.OTHER} == {*data["labels"], texts.OTHER}
    for kind, halves in data["details"].items():
        assert all(f"{{{kind}}}" in text for half in halves.values() for text in half)
    keys = [key for halves in data["keys"].values() for half in halves.values() for key in half]
    assert len(set(keys)) == len(keys)
    slots = {
        slot for split in ("train", "held_out") for text in told(data, split) for slot in re.findall(r"{(\w+)}", text)
    }
    parts = {"matter", "aside", "more", "some", "greeting", "closing", "agent", "case", "time"}
    assert slots == {*inbox.KINDS, *parts, "labels", "fields", "lines", "pattern"}


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("is_known", [True, False], ids=["task known", "task found"])
def test_names_are_read_exactly_or_not_at_all(generator, is_known):
    """In whichever way an instruction lists labels or keys, before or behind the ticket; and no other language."""
    read, abroad, sure = 0, 0, 0
    for split in ("train", "held_out"):
        for example in GENERATORS[generator](split, 5, 600):
            found = EnglishReader().read([Message("user", (example.prompt,))], example.task if is_known else "")
            names = () if found is None or found.unsure else (found.labels or found.fields)
            assert names in ((), example.choices)
            assert found is None or found.task == example.task
            read += bool(names) and example.ticket.language == "en"
            sure += bool(names) and example.ticket.language != "en"
            abroad += example.ticket.language != "en"
    english = 2 * 600 - abroad
    assert read > (0.8 if is_known else 0.3) * english
    assert sure <= 0.03 * abroad
