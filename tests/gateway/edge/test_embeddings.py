"""Embeddings."""

from __future__ import annotations

import asyncio
import base64
import struct

import pytest

from inference.types import EngineFault, FinishReason, Kind, Started, Usage, Vector
from tests.gateway.edge.client import Exchange, ask, assert_error
from tests.gateway.edge.fakes import done

PATH = "/v1/embeddings"
FIRST, SECOND = struct.pack("<2f", 1.0, -0.5), struct.pack("<2f", 0.25, 2.0)


@pytest.fixture(autouse=True)
def vectors(world):
    world.script = [Started(0), Vector(1, SECOND), Vector(0, FIRST), done(usage=Usage(input=6))]


async def test_vectors_come_in_the_order_of_the_inputs(app, world):
    answer = await ask(app, PATH, {"model": "embedder", "input": ["a", "b"]})
    assert answer.status == 200
    body = answer.json()
    assert [item["embedding"] for item in body["data"]] == [[1.0, -0.5], [0.25, 2.0]]
    assert [item["index"] for item in body["data"]] == [0, 1]
    assert body["usage"] == {"prompt_tokens": 6, "total_tokens": 6, "credits": "1.5", "credits_micro": 1_500_000}
    assert answer.headers["x-sluice-credits"] == "1.5"
    assert world.intent.kind is Kind.EMBEDDING
    assert world.intent.inputs == ("a", "b")


async def test_base64_is_little_endian_float32(app):
    body = (await ask(app, PATH, {"model": "embedder", "input": "a", "encoding_format": "base64"})).json()
    assert base64.b64decode(body["data"][0]["embedding"]) == FIRST


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


async def test_failure_is_an_error(app, world):
    world.script = [Started(0), done(FinishReason.ERROR, error=EngineFault("worker_lost", "Gone.", retryable=True))]
    assert_error(await ask(app, PATH, {"model": "embedder", "input": "a"}), 503, "worker_lost")


async def test_client_that_leaves_stops_the_work(app, world):
    world.script = [Started(0), asyncio.Event(), done()]
    exchange = Exchange(app, "POST", PATH, body={"model": "embedder", "input": "a"})
    generation = await world.generation()
    exchange.leave()
    await generation.left.wait()
    await exchange.finished()
