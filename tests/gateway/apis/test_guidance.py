"""What an answer has to be, as each API says it: what reaches the engine, what is refused, and what is given back."""

from __future__ import annotations

import json

import pytest

from inference.types import Guidance, GuidanceKind
from tests.gateway.apis.client import ask, assert_error

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
SAY = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
SAY_RESPONSES = {"model": "small", "input": "Hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
NAMED = {"name": "answer", "schema": SCHEMA, "strict": True}


pytestmark = pytest.mark.usefixtures("guides")


@pytest.fixture
def guides(world):
    world.set_options(guides=True, text='{"a":1}')


@pytest.mark.parametrize(
    ("path", "fields", "kind", "param"),
    [
        (CHAT, {"response_format": {"type": "json_object"}}, GuidanceKind.JSON_OBJECT, "response_format"),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": NAMED}},
            GuidanceKind.JSON_SCHEMA,
            "response_format",
        ),
        (RESPONSES, {"text": {"format": {"type": "json_object"}}}, GuidanceKind.JSON_OBJECT, "text.format"),
        (
            RESPONSES,
            {"text": {"format": {"type": "json_schema", "description": "d", **NAMED}}},
            GuidanceKind.JSON_SCHEMA,
            "text.format",
        ),
        (CHAT, {"structured_outputs": {"json": SCHEMA}}, GuidanceKind.JSON_SCHEMA, "structured_outputs.json"),
        (
            RESPONSES,
            {"structured_outputs": {"json": json.dumps(SCHEMA)}},
            GuidanceKind.JSON_SCHEMA,
            "structured_outputs.json",
        ),
    ],
)
async def test_json_is_asked_for_in_each_apis_way(app, world, path, fields, kind, param):  # noqa: PLR0917  a case's parts
    answer = await ask(app, path, {**(SAY if path == CHAT else SAY_RESPONSES), **fields})
    assert answer.status == 200
    guidance = world.intent.sampling.guidance
    assert (guidance.kind, guidance.param, guidance.whitespace) == (kind, param, None)
    if kind is GuidanceKind.JSON_SCHEMA:
        assert json.loads(guidance.source) == SCHEMA
    else:
        assert guidance.source == ""


@pytest.mark.parametrize(
    ("structured", "guidance"),
    [
        ({"regex": "[a-z]+"}, Guidance(GuidanceKind.REGEX, "[a-z]+")),
        ({"choice": ["a", "b"]}, Guidance(GuidanceKind.CHOICE, choices=("a", "b"))),
        ({"grammar": "start: /a/", "disable_fallback": True}, Guidance(GuidanceKind.LARK, "start: /a/")),
        ({"json_object": True, "disable_any_whitespace": True}, Guidance(GuidanceKind.JSON_OBJECT, whitespace="")),
        (
            {"json": "{}", "regex": None, "whitespace_pattern": "[ ]?"},
            Guidance(GuidanceKind.JSON_SCHEMA, "{}", whitespace="[ ]?"),
        ),
    ],
)
async def test_structured_outputs_of_vllms_clients(app, world, structured, guidance):
    assert (await ask(app, CHAT, {**SAY, "structured_outputs": structured})).status == 200
    assert world.intent.sampling.guidance == guidance
    assert world.intent.sampling.guidance.param.startswith("structured_outputs.")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "text"}, "structured_outputs": None},
    ],
)
async def test_any_text_needs_no_guidance(app, world, fields):
    assert (await ask(app, CHAT, {**SAY, **fields})).status == 200
    assert world.intent.sampling.guidance is None


@pytest.mark.parametrize(
    ("path", "fields", "code", "param"),
    [
        (CHAT, {"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        (
            CHAT,
            {"response_format": {"type": "json_schema"}},
            "missing_required_parameter",
            "response_format.json_schema",
        ),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            "invalid_value",
            "response_format.json_schema.name",
        ),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": []}}},
            "invalid_type",
            "response_format.json_schema.schema",
        ),
        (
            RESPONSES,
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {}, "colour": 1}}},
            "unknown_parameter",
            "text.format.colour",
        ),
        (CHAT, {"structured_outputs": {}}, "invalid_value", "structured_outputs"),
        (CHAT, {"structured_outputs": {"regex": "a", "choice": ["a"]}}, "invalid_value", "structured_outputs"),
        (
            CHAT,
            {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
            "invalid_value",
            "structured_outputs",
        ),
        (
            CHAT,
            {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
            "invalid_value",
            "structured_outputs.disable_additional_properties",
        ),
        (
            CHAT,
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "invalid_value",
            "structured_outputs",
        ),
        (
            CHAT,
            {"structured_outputs": {"structural_tag": "x"}},
            "unknown_parameter",
            "structured_outputs.structural_tag",
        ),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(app, path, fields, code, param):
    answer = await ask(app, path, {**(SAY if path == CHAT else SAY_RESPONSES), **fields})
    assert_error(answer, 400, code, param=param)


async def test_what_the_engine_cannot_enforce_is_a_400_that_names_the_clients_field(app, world):
    world.set_options(guides=False)
    body = {**SAY_RESPONSES, "text": {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}}
    assert_error(await ask(app, RESPONSES, body), 400, "guidance_unavailable", param="text.format")
    assert world.stand.writer.wallet.held == 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_gives_its_format_back(app, streamed):
    wanted = {"type": "json_schema", **NAMED}
    answer = await ask(app, RESPONSES, {**SAY_RESPONSES, "text": {"format": wanted}, "stream": streamed})
    bodies = [data["response"] for _, data in answer.events() if "response" in data] if streamed else [answer.json()]
    assert bodies
    for body in bodies:
        assert body["text"]["format"] == wanted
    plain = (await ask(app, RESPONSES, SAY_RESPONSES)).json()
    assert plain["text"]["format"] == {"type": "text"}
