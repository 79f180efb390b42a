"""Embeddings."""

from __future__ import annotations

import base64
import struct
from dataclasses import replace

import pytest

from inference.types import FinishReason, Kind, Vector
from tests.gateway.apis.client import Exchange, ask, assert_error

PATH = "/v1/embeddings"


@pytest.fixture
def engine(world):
    return world.stand.engine_of("embedder")


@pytest.fixture
def vectors(engine, monkeypatch):
    """The vectors that the engine made, the last one first: the order in which it yields them."""
    made, generate = [], engine.generate

    async def backwards(*arguments):
        events = [event async for event in generate(*arguments)]
        made.extend(event for event in reversed(events) if isinstance(event, Vector))
        for event in (events[0], *made, events[-1]):
            yield event

    monkeypatch.setattr(engine, "generate", backwards)
    return made


async def test_vectors_come_in_the_order_of_the_inputs(app, world, vectors):
    answer = await ask(app, PATH, {"model": "embedder", "input": ["a", "bcdefg"]})
    assert answer.status == 200
    body = answer.json()
    assert [vector.index for vector in vectors] == [1, 0]
    expected = [list(struct.unpack("<2f", vector.data)) for vector in reversed(vectors)]
    assert [item["embedding"] for item in body["data"]] == expected
    assert [item["index"] for item in body["data"]] == [0, 1]
    assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3, "credits": "0.00001", "credits_micro": 7 + 3}
    assert answer.headers["x-sluice-credits"] == "0.00001"
    assert world.intent.kind is Kind.EMBEDDING
    assert world.intent.inputs == ("a", "bcdefg")


async def test_base64_is_little_endian_float32(app, vectors):
    body = (await ask(app, PATH, {"model": "embedder", "input": "a", "encoding_format": "base64"})).json()
    assert base64.b64decode(body["data"][0]["embedding"]) == vectors[0].data


@pytest.mark.parametrize(
    ("given", "inputs"),
    [("a", ("a",)), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3))), (["a"], ("a",))],
)
async def test_inputs_of_each_form_are_taken(app, world, given, inputs):
    assert (await ask(app, PATH, {"model": "embedder", "input": given})).status == 200
    assert world.intent.inputs == inputs


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"input": []}, "invalid_value", "input"),
        ({"input": ["a", 1]}, "invalid_value", "input"),
        ({"input": [[]]}, "invalid_value", "input[0]"),
        ({"input": [[-1]]}, "invalid_value", "input[0][0]"),
        ({"input": [2**40]}, "invalid_value", "input[0]"),
        ({"input": ""}, "invalid_value", "input[0]"),
        ({"input": {"a": 1}}, "invalid_type", "input"),
        ({"input": ["a"] * 2049}, "invalid_value", "input"),
        ({"encoding_format": "hex"}, "invalid_value", "encoding_format"),
        ({"dimensions": 0}, "invalid_value", "dimensions"),
        ({"n": 1}, "unknown_parameter", "n"),
    ],
)
async def test_wrong_field_is_named(app, world, change, code, param):
    assert_error(await ask(app, PATH, {"model": "embedder", "input": "a", **change}), 400, code, param=param)
    assert world.generations == []


async def test_dimensions_are_part_of_what_is_wanted(app, world):
    assert (await ask(app, PATH, {"model": "embedder", "input": "a", "dimensions": 2})).status == 200
    assert world.intent.dimensions == 2


async def test_vectors_that_nest_are_cut_to_fewer_dimensions(app, world, engine, monkeypatch):
    width = 8
    engine.options = replace(engine.options, vector_width=width)
    too_few = await ask(app, PATH, {"model": "embedder", "input": "a", "dimensions": 4})
    assert_error(too_few, 400, "unsupported_parameter", param="dimensions")
    info = replace(engine.info, nests_vectors=True)
    monkeypatch.setattr(type(engine), "info", property(lambda _: info))
    whole, cut = [
        (await ask(app, PATH, {"model": "embedder", "input": "a", "dimensions": count})).json()["data"][0]["embedding"]
        for count in (width, 4)
    ]
    length = sum(number**2 for number in whole[:4]) ** 0.5
    assert cut == pytest.approx([number / length for number in whole[:4]])
    too_many = await ask(app, PATH, {"model": "embedder", "input": "a", "dimensions": width + 1})
    assert_error(too_many, 400, "unsupported_parameter", param="dimensions")


async def test_failure_is_an_error(app, engine):
    engine.options = replace(engine.options, lose_at=1)
    assert_error(await ask(app, PATH, {"model": "embedder", "input": "a"}), 503, "worker_lost")


async def test_client_that_leaves_stops_the_work(app, world, engine):
    engine.options = replace(engine.options, hang_at=1)
    exchange = Exchange(app, "POST", PATH, body={"model": "embedder", "input": "a"})
    generation = await world.generation()
    await engine.hanging()
    exchange.leave()
    await exchange.finished()
    assert await world.reason_of(generation) is FinishReason.CANCELLED
