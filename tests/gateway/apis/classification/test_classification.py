"""Classify: labels that the request names or the model has, the probabilities of each, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.types import FinishReason, Kind
from tests.gateway.apis.client import ask, assert_error

PATH = "/v1/classify"
BODY = {"model": "sorter", "input": ["a red car", "a blue car"], "labels": ["red", "blue"]}


async def test_each_text_gets_its_label(app, world):
    answer = await ask(app, PATH, BODY)
    assert answer.status == 200
    body = answer.json()
    assert (body["object"], body["model"]) == ("list", "sorter")
    assert body["id"].startswith("classify-")
    assert body["labels"] == ["red", "blue", "other"]
    assert body["data"] == [
        {"index": 0, "label": "red", "probs": [0.5, 0.0, 0.5], "num_classes": 3},
        {"index": 1, "label": "blue", "probs": [0.0, 0.5, 0.5], "num_classes": 3},
    ]
    # Two texts of three tokens, and each label's one once.
    assert body["usage"] == {"prompt_tokens": 8, "total_tokens": 8, "credits": "0.000015", "credits_micro": 7 + 8}
    assert answer.headers["x-sluice-credits"] == "0.000015"
    assert (world.intent.kind, world.intent.labels) == (Kind.CLASSIFICATION, ("red", "blue"))
    assert world.intent.characters == 9 + 10 + 7


async def test_a_single_text_and_the_models_own_labels(app, world):
    body = (await ask(app, PATH, {"model": "sorter", "input": "good news"})).json()
    assert body["labels"] == ["good", "bad", "other"]
    assert [item["label"] for item in body["data"]] == ["good"]
    assert world.intent.labels == ()


async def test_auto_goes_to_a_model_that_classifies(app, world):
    assert_error(await ask(app, PATH, BODY | {"model": "small"}), 400, "model_wrong_kind", param="model")
    assert world.generations == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"labels": []}, ("invalid_value", "labels")),
        ({"labels": ["a", ""]}, ("invalid_value", "labels[1]")),
        ({"labels": ["a", "b", "a"]}, ("invalid_value", "labels[2]")),
        ({"labels": ["x" * 201]}, ("invalid_value", "labels[0]")),
        ({"labels": [str(number) for number in range(257)]}, ("invalid_value", "labels")),
        ({"labels": [str(number) for number in range(256)], "input": ["a"] * 257}, ("invalid_value", "input")),
        ({"input": []}, ("invalid_value", "input")),
        ({"input": ["a", ""]}, ("invalid_value", "input[1]")),
        ({"input": [[1, 2]]}, ("invalid_type", "input[0]")),
        ({"activation": False}, ("unsupported_parameter", "activation")),
        ({"softmax": True}, ("unknown_parameter", "softmax")),
    ],
)
async def test_wrong_field_is_named(app, world, change, fault):
    code, param = fault
    assert_error(await ask(app, PATH, BODY | change), 400, code, param=param)
    assert world.generations == []


async def test_a_failed_text_fails_the_request_and_costs_nothing(app, world):
    engine = world.stand.engine_of("sorter")
    engine.options = replace(engine.options, error_at=2)
    answer = await ask(app, PATH, BODY)
    assert answer.status == 500
    assert await world.reason_of(world.generations[0]) is FinishReason.ERROR
