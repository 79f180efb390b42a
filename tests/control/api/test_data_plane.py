"""The data plane's part of the document: what its structs say, and examples that run."""

from __future__ import annotations

import json
import re

import pytest
from django.test import Client
from drf_spectacular.generators import SchemaGenerator
from jsonschema import Draft202012Validator

from control.api.data_plane import BASE, merged
from gateway.apis.endpoints import ENDPOINTS
from tests.gateway.apis.client import ask
from tests.gateway.apis.conftest import app, world  # noqa: F401 - fixtures

CHAT, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/completions"


RUN_ALONE = [
    one for one in ENDPOINTS if one.example and one.path not in {"/v1/batches", "/v1/adapters"}
]  # they need a file
MODELS = {
    "embeddings": "embedder",
    "embeddings_quote": "embedder",
    "rerank": "embedder",
    "score": "ranker",
    "classify": "sorter",
}


@pytest.fixture(scope="module")
def document():
    return SchemaGenerator().get_schema(request=None, public=True)


def validator(document, path, method="post", *, answer=False, media="application/json"):
    operation = document["paths"][path][method]
    content = (operation["responses"]["200"] if answer else operation["requestBody"])["content"][media]
    return Draft202012Validator({**content["schema"], "components": document["components"]})


def test_every_reference_leads_somewhere(document):
    found = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document, default=str)))
    assert found <= document["components"]["schemas"].keys()
    assert {"ChatRequest", "Completion", "FunctionCallItem", "OutputMessage", "Error"} <= found


OF_HTTP = {"content-type", "content-length", "cache-control", "x-accel-buffering"}


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("endpoint", RUN_ALONE, ids=lambda one: one.name)
async def test_every_header_of_an_answer_is_documented(document, app, endpoint, status):  # noqa: F811 - a fixture
    operation = document["paths"][endpoint.path]["post"]
    body = {**endpoint.example, "model": MODELS.get(endpoint.name, "small")}
    body |= {"colour": 1} if status == 400 else {}
    answer = await ask(app, endpoint.path, body)
    documented = operation["responses"]["200" if status == 200 else "default"]["headers"]
    assert answer.status == status
    assert {name.lower() for name in answer.headers} - OF_HTTP <= {name.lower() for name in documented}
    assert {each["$ref"].rpartition("/")[2] for each in documented.values()} <= set(document["components"]["headers"])


def test_a_name_of_both_planes_is_refused(document):
    both = {"components": {"schemas": {"ChatRequest": {}}}, "paths": {}}
    with pytest.raises(ValueError, match="ChatRequest"):
        merged(result=both)


@pytest.mark.parametrize(
    ("path", "body", "fits"),
    [
        (CHAT, {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}, True),
        (CHAT, {"model": "m", "messages": []}, False),
        (CHAT, {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 3}, False),
        (CHAT, {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "store": False}, True),
        (CHAT, {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "store": True}, False),
        (CHAT, {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "colour": 1}, False),
        (RESPONSES, {"model": "m", "input": [{"role": "user", "content": "Hi"}]}, True),
        (RESPONSES, {"model": "m", "input": [{"type": "function_call_output", "call_id": "c"}]}, False),
        (RESPONSES, {"model": "m", "input": "Hi", "text": {"verbosity": "high"}}, True),
        (RESPONSES, {"model": "m", "input": "Hi", "text": {"verbosity": "long"}}, False),
        (CHAT, {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"a": 1}}, True),
        (
            CHAT,
            {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"a": []}},
            False,
        ),
        (COMPLETIONS, {"model": "m", "prompt": [[1, 2], [3]]}, True),
        (COMPLETIONS, {"model": "m"}, False),
    ],
)
def test_requests_fit_as_the_structs_decode_them(document, path, body, fits):
    assert validator(document, path).is_valid(body) is fits


@pytest.mark.parametrize("endpoint", RUN_ALONE, ids=lambda one: one.name)
async def test_examples_run_and_their_answers_fit(document, app, world, endpoint):  # noqa: F811
    body = {**endpoint.example, "model": MODELS.get(endpoint.name, "small")}
    assert validator(document, endpoint.path).is_valid(body)
    answer = await ask(app, endpoint.path, body)
    assert answer.status == 200
    validator(document, endpoint.path, answer=True).validate(answer.json())
    if endpoint.streams and endpoint.path != RESPONSES:
        events = (await ask(app, endpoint.path, {**body, "stream": True})).events()
        check = validator(document, endpoint.path, answer=True, media="text/event-stream")
        for _, data in events[:-1]:
            check.validate(data)


@pytest.mark.parametrize("is_ready", [True, False])
async def test_health_is_described_as_it_answers_anybody(document, app, world, is_ready):  # noqa: F811
    async def readiness():
        return {"database": "" if is_ready else "gone"}

    world.runtime.readiness = readiness
    operation = document["paths"]["/health"]["get"]
    answer = await ask(app, "/health", method="GET", key=None)
    assert (operation["security"], answer.body) == ([], b"")
    assert str(answer.status) in operation["responses"]
    assert answer.status == (200 if is_ready else 503)


@pytest.mark.parametrize(("path", "schema"), [(CHAT, "Error"), ("/v1/messages", "MessagesError")])
async def test_errors_fit(document, app, world, path, schema):  # noqa: F811
    error = (await ask(app, path, {"model": "small"})).json()
    told = document["paths"][path]["post"]["responses"]["default"]["content"]["application/json"]["schema"]
    assert told == {"$ref": f"#/components/schemas/{schema}"}
    Draft202012Validator(document["components"]["schemas"][schema]).validate(error)


@pytest.mark.django_db
def test_readers_see_their_own_base_url(settings):
    settings.ALLOWED_HOSTS = ["sluice.example.com"]
    schema = Client(headers={"host": "sluice.example.com"}).get("/api/schema/?format=json").content.decode()
    assert BASE not in schema
    assert json.loads(schema)["servers"] == [{"url": "http://sluice.example.com"}]
