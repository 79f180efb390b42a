"""Rerank and score: by a model that scores pairs, and by the angle of embeddings."""

from __future__ import annotations

import math
import struct

import pytest

from inference.types import Kind, Vector
from tests.gateway.apis.client import ask, assert_error

RERANK, SCORE = "/v1/rerank", "/v1/score"
QUERY = {"model": "ranker", "query": "red apple pie", "documents": ["a blue car", "an apple pie", "red apple pie"]}
PAIRS = {"model": "ranker", "text_1": "red apple", "text_2": ["red", "red apple"]}


async def test_documents_come_by_relevance_with_what_they_cost(app, world):
    answer = await ask(app, RERANK, QUERY)
    body = answer.json()
    assert [(item["index"], item["document"]["text"]) for item in body["results"]] == [
        (2, "red apple pie"),
        (1, "an apple pie"),
        (0, "a blue car"),
    ]
    assert [item["relevance_score"] for item in body["results"]] == pytest.approx([1, 2 / 3, 0])
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == 3 * 4 + 3 + 3 + 4
    assert body["usage"]["credits_micro"] == 7 + 22
    assert (body["model"], body["object"]) == ("ranker", "rerank")
    assert world.intent.kind is Kind.SCORE
    assert (world.intent.queries, len(world.intent.inputs)) == (("red apple pie",), 3)
    assert world.intent.characters == 3 * 13 + 10 + 12 + 13


async def test_the_best_alone_without_their_texts(app):
    documents = [{"text": "x"}, "red", {"text": "red apple"}]
    change = {"documents": documents, "top_n": 2, "return_documents": False}
    results = (await ask(app, RERANK, QUERY | change)).json()["results"]
    assert [item["index"] for item in results] == [2, 1]
    assert all("document" not in item for item in results)
    assert len((await ask(app, RERANK, QUERY | {"top_n": 99})).json()["results"]) == 3


async def test_equal_documents_stay_in_their_order(app):
    results = (await ask(app, RERANK, QUERY | {"documents": ["red", "car", "red", "red"]})).json()["results"]
    assert [item["index"] for item in results] == [0, 2, 3, 1]


@pytest.mark.parametrize(
    ("first", "second", "scores"),
    [
        ("red apple", ["red", "red apple"], [0.5, 1.0]),
        (["red apple", "a car"], ["red", "no"], [0.5, 0.0]),
        ("red", "red", [1.0]),
        (["red"], "red", [1.0]),
    ],
)
async def test_pairs_are_scored_in_their_order(app, first, second, scores):
    body = (await ask(app, SCORE, {"model": "ranker", "text_1": first, "text_2": second})).json()
    assert [(item["index"], item["score"]) for item in body["data"]] == list(enumerate(scores))
    assert (body["object"], body["data"][0]["object"]) == ("list", "score")


@pytest.fixture
def vectors(world, monkeypatch):
    """What the model `embedder` answers to each text."""
    known = {"east": (2.0, 0.0), "north": (0.0, 0.5), "north-east": (1.0, 1.0), "west": (-1.0, 0.0), "none": (0.0, 0.0)}
    engine = world.stand.engine_of("embedder")
    generate = engine.generate

    async def looked_up(prepared, *rest):
        async for event in generate(prepared, *rest):
            if isinstance(event, Vector):
                yield Vector(event.index, struct.pack("<2f", *known[prepared.request.inputs[event.index]]))
            else:
                yield event

    monkeypatch.setattr(engine, "generate", looked_up)
    return known


async def test_embeddings_are_compared_by_their_angle(app, world, vectors):
    body = {"model": "embedder", "query": "east", "documents": ["north", "none", "west", "north-east", "east"]}
    results = (await ask(app, RERANK, body)).json()["results"]
    assert [item["index"] for item in results] == [4, 3, 0, 1, 2]
    assert [item["relevance_score"] for item in results] == pytest.approx([1, math.sqrt(0.5), 0, 0, -1])
    assert world.intent.kind is Kind.EMBEDDING
    assert world.intent.inputs == (*body["documents"], "east")  # each text is encoded once
    pairs = {"model": "embedder", "text_1": ["east", "north"], "text_2": ["north-east", "north-east"]}
    scores = [item["score"] for item in (await ask(app, SCORE, pairs)).json()["data"]]
    assert scores == pytest.approx([math.sqrt(0.5)] * 2)


async def test_a_model_that_can_do_neither_is_refused_by_name(app, world):
    error = assert_error(await ask(app, RERANK, QUERY | {"model": "small"}), 400, "model_wrong_kind", param="model")
    assert "serves chat, not score" in error["message"]
    assert_error(await ask(app, SCORE, PAIRS | {"model": "nothing"}), 404, "model_not_found", param="model")
    assert world.generations == []


@pytest.mark.parametrize(
    ("path", "change", "fault"),
    [
        (RERANK, {"query": ""}, ("invalid_value", "query")),
        (RERANK, {"documents": []}, ("invalid_value", "documents")),
        (RERANK, {"documents": ["a", ""]}, ("invalid_value", "documents[1]")),
        (RERANK, {"documents": [{"text": "a", "title": "b"}]}, ("unknown_parameter", "documents[0].title")),
        (RERANK, {"documents": ["a", 1]}, ("invalid_type", "documents[1]")),
        (RERANK, {"documents": ["a"] * 2049}, ("invalid_value", "documents")),
        (RERANK, {"query": "x" * 9000, "documents": ["a"] * 1000}, ("invalid_value", "query")),
        (RERANK, {"top_n": 0}, ("invalid_value", "top_n")),
        (RERANK, {"max_tokens_per_doc": 100}, ("unsupported_parameter", "max_tokens_per_doc")),
        (RERANK, {"truncate_prompt_tokens": 5}, ("invalid_value", "truncate_prompt_tokens")),
        (RERANK, {"n": 1}, ("unknown_parameter", "n")),
        (SCORE, {"text_1": ["a", "b", "c"]}, ("invalid_value", "text_1")),
        (SCORE, {"text_2": []}, ("invalid_value", "text_2")),
        (SCORE, {"text_1": 7}, ("invalid_type", "text_1")),
    ],
)
async def test_wrong_field_is_named(app, world, path, change, fault):
    body = (QUERY if path == RERANK else PAIRS) | change
    assert_error(await ask(app, path, body), 400, fault[0], param=fault[1])
    assert world.generations == []


@pytest.mark.parametrize(("path", "param"), [(RERANK, "documents"), (SCORE, "text_2")])
async def test_what_the_engine_refuses_names_the_field_of_the_api(app, world, path, param, monkeypatch):
    from inference.errors import InvalidRequestError

    async def refusing(request):
        raise InvalidRequestError("pair 1 is too long", code="context_length_exceeded", param="input")

    monkeypatch.setattr(world.stand.engine_of("ranker"), "prepare", refusing)
    body = QUERY if path == RERANK else PAIRS
    assert_error(await ask(app, path, body), 400, "context_length_exceeded", param=param)


async def test_what_is_too_long_is_cut_where_the_client_says_so(app, world):
    assert (await ask(app, RERANK, QUERY | {"truncate_prompt_tokens": -1})).status == 200
    assert world.intent.truncate
