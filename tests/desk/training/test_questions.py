"""The table's questions: what each way may answer, and how leniently its answers are judged."""

from __future__ import annotations

import json

import pytest

from benchmarks.desk.questions import WAYS, is_right, request_of
from desk.training import corpus, texts

WAY = {way.slug: way for way in WAYS}


@pytest.fixture(scope="module")
def asked():
    """A question for a label, and one for fields."""
    return {example.task: example for example in corpus.examples("held_out", 5, 2)}


@pytest.mark.parametrize(
    ("written", "is_so"),
    [
        ("{}", True),
        (' "{}".\n', True),
        ("**{}**", False),
        ("The label is {}", False),
        ("{}, sales", False),
        ("", False),
    ],
)
def test_a_label_is_judged_by_the_whole_text(asked, written, is_so):
    example = asked["classify"]
    assert is_right(example, written.replace("{}", example.answer)) is is_so
    assert is_right(example, written.replace("{}", example.answer.upper())) is is_so


@pytest.mark.parametrize(
    ("written", "is_so"),
    [
        ("{}", True),
        ("Sure:\n```json\n{}\n``` I hope this helps {you}.", True),
        ("I think {that}: {}", False),
        ("[]", False),
        ("", False),
    ],
)
def test_json_is_judged_by_its_first_object(asked, written, is_so):
    example = asked["extract"]
    assert is_right(example, written.replace("{}", example.answer)) is is_so


def test_a_field_too_many_or_too_few_or_another_value_is_wrong(asked):
    example = asked["extract"]
    right = json.loads(example.answer)
    name = next(iter(right))
    rest = {other: value for other, value in right.items() if other != name}
    for wrong in (right | {"more": None}, rest, right | {name: "another"}):
        assert not is_right(example, json.dumps(wrong))
    assert not is_right(example, example.answer[:-1])


def test_each_way_asks_the_same_question(asked):
    for example in asked.values():
        free, guided, adapter = (request_of(WAY[slug], example)[1] for slug in ("free", "guided", "adapter"))
        assert free["messages"][0]["content"] == example.prompt
        assert free.items() <= guided.items()
        assert adapter == guided | {"model": "sluice-desk"}
        assert len(guided) == len(free) + 1
    path, body = request_of(WAY["head"], asked["classify"])
    assert path == "/v1/classify"
    assert body["input"] == asked["classify"].ticket.text
    assert {*body["labels"], texts.OTHER} == set(asked["classify"].choices)
