"""Wishes are taken and told, in the header and in a response; demands that can't be held are refused."""

from __future__ import annotations

import json

import pytest

from gateway.wire.demands import NOT_ENFORCED
from inference.messages import Message, ToolCall
from inference.tools import ToolMode
from inference.types import Asked
from tests.gateway.apis.client import ask, assert_error

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
HI = [{"role": "user", "content": "Hi"}]
SAY = {
    CHAT: {"model": "small", "messages": HI},
    COMPLETIONS: {"model": "small", "prompt": "Hi"},
    RESPONSES: {"model": "small", "input": "Hi"},
    MESSAGES: {"model": "small", "messages": HI, "max_tokens": 9},
}
CACHE = {"cache_control": {"type": "ephemeral"}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "name": "weather", "parameters": SCHEMA}
CHAT_WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
MESSAGE_WEATHER = {"name": "weather", "input_schema": SCHEMA}
CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "The shop's customers.",
    "tools": [{**WEATHER, "name": "find"}],
}
HOSTED = {"type": "web_search_2025_08_26"}
MESSAGE_HOSTED = {"type": "web_search_20260209", "name": "web_search"}


def parts(**more):
    return [{"role": "user", "content": [{"type": "text", "text": "Hi", **more}]}]


@pytest.mark.parametrize(
    ("path", "fields", "told"),
    [
        (CHAT, {}, None),
        (CHAT, {"verbosity": "medium", "prompt_cache_retention": "in_memory"}, None),
        (CHAT, {"verbosity": "low", "prompt_cache_key": "k"}, "prompt_cache_key, verbosity"),
        (CHAT, {"messages": parts(**CACHE)}, "messages[].content[].cache_control"),
        (CHAT, {"messages": parts(**CACHE) * 2}, "messages[].content[].cache_control"),
        (CHAT, {"messages": [{**HI[0], "name": "Ada", **CACHE}]}, "messages[].name, messages[].cache_control"),
        (CHAT, {"tools": [{**CHAT_WEATHER, **CACHE}]}, "tools[].cache_control"),
        (CHAT, {"prediction": {"type": "content", "content": "x"}}, "prediction"),
        (CHAT, {"reasoning_effort": "low"}, "reasoning_effort"),
        (CHAT, {"reasoning_effort": "xhigh"}, "reasoning_effort"),
        (CHAT, {"reasoning_effort": "none"}, None),
        (COMPLETIONS, {"guided_decoding_backend": "xgrammar"}, "guided_decoding_backend"),
        (RESPONSES, {"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        (RESPONSES, {"reasoning": {"effort": "high", "summary": "detailed"}}, "reasoning.summary, reasoning.effort"),
        (RESPONSES, {"include": ["reasoning.encrypted_content"]}, "include[].reasoning.encrypted_content"),
        (RESPONSES, {"tools": [{**WEATHER, "defer_loading": True}]}, "tools[].defer_loading"),
        (MESSAGES, {"system": [{"type": "text", "text": "Be", **CACHE}]}, "system[].cache_control"),
        (MESSAGES, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "thinking"),
        (MESSAGES, {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, "output_config.effort"),
        (MESSAGES, {"tools": [{**MESSAGE_WEATHER, **CACHE}], "speed": "fast"}, "speed, tools[].cache_control"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_wishes_are_taken_and_told(app, path, fields, told, streamed):
    answer = await ask(app, path, {**SAY[path], **fields, "stream": streamed})
    assert answer.status == 200, answer.body
    assert answer.headers.get(NOT_ENFORCED) == told
    if path == RESPONSES:
        bodies = (
            [data["response"] for _, data in answer.events() if "response" in data] if streamed else [answer.json()]
        )
        assert {", ".join(body.get("sluice_not_enforced", ())) or None for body in bodies} == {told}


@pytest.mark.parametrize(
    ("path", "fields", "param", "names"),
    [
        (CHAT, {"guided_json": SCHEMA}, "guided_json", "'structured_outputs', as 'json'"),
        (COMPLETIONS, {"guided_regex": "a"}, "guided_regex", "'structured_outputs', as 'regex'"),
        (RESPONSES, {"guided_choice": ["a"]}, "guided_choice", "'structured_outputs', as 'choice'"),
        (CHAT, {"web_search_options": {}}, "web_search_options", "hosted tools are left out"),
        (RESPONSES, {"tools": [HOSTED]}, "tools[0].type", "hosted tools are left out"),
        (MESSAGES, {"tools": [MESSAGE_HOSTED]}, "tools[0].type", "hosted tools are left out"),
    ],
)
async def test_what_is_refused_says_what_to_do(app, world, path, fields, param, names):  # noqa: PLR0917  a case's parts
    answer = await ask(app, path, {**SAY[path], **fields})
    assert answer.status == 400
    error = answer.json()["error"]
    assert error.get("details", error)["param"] == param
    assert names in error["message"]
    assert not world.generations


@pytest.mark.parametrize(
    ("path", "fields", "told"),
    [
        (CHAT, {"web_search_options": {}, "tools": [CHAT_WEATHER]}, "web_search_options"),
        (
            RESPONSES,
            {"tools": [HOSTED, WEATHER, {"type": "mcp", "server_label": "x"}]},
            "tools[].web_search, tools[].mcp",
        ),
        (MESSAGES, {"tools": [MESSAGE_HOSTED, MESSAGE_WEATHER]}, "tools[].web_search"),
    ],
)
async def test_hosted_tools_are_left_out_where_the_tenant_says_so(app, world, path, fields, told):
    world.set_principal(leaves_out_hosted=True)
    answer = await ask(app, path, {**SAY[path], **fields})
    assert (answer.status, answer.headers[NOT_ENFORCED]) == (200, told)
    assert [function.name for function in world.intent.tools.functions] == ["weather"]
    required = {"tool_choice": {"type": "any"} if path == MESSAGES else "required"}
    answer = await ask(app, path, {**SAY[path], **fields, **required})
    if "web_search_options" not in fields:  # what has to be called may have been one of those
        assert answer.headers[NOT_ENFORCED] == f"{told}, tool_choice"
        assert world.intent.tools.mode is ToolMode.AUTO
    unknown = {"tools": [{"type": "mcpx" if path == RESPONSES else "advisory", "name": "x"}]}
    assert (await ask(app, path, {**SAY[path], **unknown})).status == 400
    custom = {"tools": [{"type": "custom", "name": "x"}]}  # it isn't hosted: its client waits for calls of it
    if path == RESPONSES:
        assert_error(await ask(app, path, {**SAY[path], **custom}), 400, "unsupported_parameter", param="tools[0].type")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"tools": [CHAT_WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}}),
        (RESPONSES, {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"}}),
        (MESSAGES, {"tools": [MESSAGE_WEATHER], "tool_choice": {"type": "tool", "name": "weather"}}),
    ],
)
async def test_a_function_that_is_named_is_called_once(app, world, path, fields):
    world.set_options(guides=True)
    assert (await ask(app, path, {**SAY[path], **fields})).status == 200
    tools = world.intent.tools
    assert (tools.mode, tools.allowed, tools.parallel) == (ToolMode.REQUIRED, ("weather",), False)
    any_of_them = {"type": "any"} if path == MESSAGES else "required"
    assert (await ask(app, path, {**SAY[path], **fields, "tool_choice": any_of_them})).status == 200
    assert (world.intent.tools.mode, world.intent.tools.parallel) == (ToolMode.REQUIRED, True)


@pytest.mark.parametrize("streamed", [False, True])
async def test_functions_of_a_namespace_are_called_by_both_names(app, world, streamed):
    world.set_options(text='<tool_call>{"name": "crm__find", "arguments": {}}</tool_call>', guides=True)
    choice = {"type": "function", "name": "find"}
    body = {**SAY[RESPONSES], "tools": [CRM, WEATHER], "tool_choice": choice, "stream": streamed}
    answer = await ask(app, RESPONSES, body)
    assert answer.status == 200, answer.body
    functions = world.intent.tools.functions
    assert [(function.name, function.description) for function in functions] == [
        ("crm__find", "The shop's customers."),
        ("weather", ""),
    ]
    assert world.intent.tools.allowed == ("crm__find",)
    events = answer.events() if streamed else []
    response = events[-1][1]["response"] if streamed else answer.json()
    [item] = response["output"]
    assert (item["namespace"], item["name"], item["arguments"]) == ("crm", "find", "{}")
    told = [data["item"] for _, data in events if "item" in data] + [data for _, data in events if "arguments" in data]
    assert {data["name"] for data in told} == ({"find"} if streamed else set())
    back = [*HI, item, {"type": "function_call_output", "call_id": item["call_id"], "output": "none"}]
    assert (await ask(app, RESPONSES, {**body, "input": back})).status == 200
    assert world.intent.messages[1] == Message("assistant", (ToolCall(item["call_id"], "crm__find", "{}"),))


async def test_what_changes_with_each_request_of_claude_code_is_no_part_of_the_prompt(app, world):
    def system(number):
        billing = f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={number};"
        return [{"type": "text", "text": billing}, {"type": "text", "text": "Be brief."}]

    prompts = []
    for number in ("1f3", "a07"):
        answer = await ask(app, MESSAGES, {**SAY[MESSAGES], "system": system(number)})
        assert (answer.status, answer.headers[NOT_ENFORCED]) == (200, "system[].x-anthropic-billing-header")
        prompts.append(world.intent.messages)
    assert prompts[0] == prompts[1] == (Message("system", ("Be brief.",)), Message("user", ("Hi",)))
    counted = await ask(app, f"{MESSAGES}/count_tokens", {"model": "small", "messages": HI, "system": system("0")})
    assert (
        counted.json()["input_tokens"]
        == answer.json()["usage"]["input_tokens"] + (answer.json()["usage"]["cache_read_input_tokens"])
    )


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "It rains."}},
            "It rains.",
        ),
        (
            {
                "type": "document",
                "title": "Weather",
                "context": "Of today.",
                "citations": {"enabled": False},
                "source": {
                    "type": "content",
                    "content": [{"type": "text", "text": "It"}, {"type": "text", "text": "rains."}],
                },
            },
            "Weather\nOf today.\nIt\nrains.",
        ),
        (
            {
                "type": "search_result",
                "title": "Weather",
                "source": "https://example.com",
                "content": [{"type": "text", "text": "It rains."}],
            },
            "Weather\nhttps://example.com\nIt rains.",
        ),
    ],
)
async def test_documents_of_text_are_text(app, world, block, said):
    content = [block, {"type": "text", "text": "Does it?"}]
    answer = await ask(app, MESSAGES, {**SAY[MESSAGES], "messages": [{"role": "user", "content": content}]})
    assert answer.status == 200, answer.body
    assert NOT_ENFORCED not in answer.headers
    assert world.intent.messages == (Message("user", (f"{said}\nDoes it?",)),)


async def test_a_document_that_is_a_file_is_refused_and_citations_are_a_wish(app):
    def body(**more):
        block = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}, **more}
        return {**SAY[MESSAGES], "messages": [{"role": "user", "content": [block]}]}

    cited = await ask(app, MESSAGES, body(citations={"enabled": True}))
    assert (cited.status, cited.headers[NOT_ENFORCED]) == (200, "messages[].content[].citations")
    refused = await ask(app, MESSAGES, body(source={"type": "base64", "media_type": "application/pdf", "data": "eA=="}))
    assert refused.status == 400
    assert refused.json()["error"]["details"]["param"] == "messages[0].content[0].source.type"


@pytest.mark.parametrize(
    ("path", "fields", "asked", "tokens", "effort"),
    [
        (CHAT, {}, Asked.NOT, None, ""),
        (CHAT, {"reasoning_effort": "low"}, Asked.WISH, 1024, "low"),
        (CHAT, {"reasoning_effort": "low", "thinking_token_budget": 9}, Asked.DEMAND, 9, "low"),
        (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}, Asked.WISH, 0, ""),
        (RESPONSES, {"reasoning": {"effort": "none"}}, Asked.WISH, 0, "none"),
        (MESSAGES, {}, Asked.NOT, 0, ""),
        (MESSAGES, {"thinking": {"type": "disabled"}}, Asked.WISH, 0, ""),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, Asked.WISH, 1024, ""),
        (MESSAGES, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, Asked.WISH, None, "max"),
    ],
)
async def test_how_long_to_think_is_a_wish_but_for_a_budget(app, world, path, fields, asked, tokens, effort):  # noqa: PLR0917  a case's parts
    world.set_options(thinks=True)
    assert (await ask(app, path, {**SAY[path], **fields})).status == 200
    sampling = world.intent.sampling
    assert (sampling.thinking_asked, sampling.thinking_tokens, sampling.effort) == (asked, tokens, effort)


@pytest.mark.parametrize("strict", [None, False, True])
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_schema_says_whether_it_is_strict(app, world, path, strict):
    world.set_options(guides=True, text="{}")
    named = {"name": "a", "schema": SCHEMA, "strict": strict}
    fields = {
        CHAT: {"response_format": {"type": "json_schema", "json_schema": named}},
        RESPONSES: {"text": {"format": {"type": "json_schema", **named}}},
    }
    assert (await ask(app, path, {**SAY[path], **fields[path]})).status == 200
    guidance = world.intent.sampling.guidance
    assert (guidance.strict, json.loads(guidance.source)) == (bool(strict), SCHEMA)


MANY = [{**WEATHER, "name": f"f{number}"} for number in range(65)]


def named(*names):
    return [{**CRM, "name": name} for name in names]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": named("a", "b"), "tool_choice": {"type": "function", "name": "find"}}, "tool_choice"),
        ({"tools": [{**CRM, "tools": named("a")}]}, "tools[0].tools[0]"),
        ({"tools": [{**CRM, "name": name, "tools": MANY} for name in ("a", "b")]}, "tools"),
    ],
    ids=["one name in two namespaces", "a namespace in a namespace", "too many"],
)
async def test_namespaces_that_cannot_be_meant_are_refused(app, fields, param):
    assert_error(await ask(app, RESPONSES, {**SAY[RESPONSES], **fields}), 400, "invalid_value", param=param)
