"""What clients send wrong: one 400 that names the field, and nothing started."""

from __future__ import annotations

import asyncio
import codecs
import json
import time

import pytest

from gateway.errors.refusal import Refusal
from gateway.http.request import uploads
from gateway.wire import decode as decoding
from gateway.wire.decode import MAX_JSON_DEPTH
from tests.gateway.apis.client import Exchange, ask, assert_error

CHAT = "/v1/chat/completions"
SAY = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
FUNCTION = {"type": "function", "function": {"name": "f"}}
DEEP = b'{"model":"small","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def called(name, **more):
    return {"type": "function", "function": {"name": name, **more}}


@pytest.fixture(autouse=True)
def nothing_started(world):
    yield
    assert world.generations == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b'{"model": "\\ud800"}',
        json.dumps(SAY).encode() + b"}",
        b'{"model":"small","temperature":NaN}',
        b'{"model":"\xff"}',
    ],
)
async def test_broken_json_is_refused(app, body):
    assert_error(await ask(app, CHAT, body), 400, "invalid_json")


async def test_deep_json_is_refused(app):
    assert_error(await ask(app, CHAT, DEEP), 400, "json_too_deep")
    assert_error(await ask(app, "/v1/responses", DEEP.replace(b"messages", b"input")), 400, "json_too_deep")


async def test_json_as_deep_as_allowed_is_looked_at(app):
    nested: object = 1
    for _ in range(MAX_JSON_DEPTH - 2):
        nested = [nested]
    assert_error(await ask(app, CHAT, {**SAY, "documents": nested}), 400, "unsupported_parameter", param="documents")
    assert_error(await ask(app, CHAT, {**SAY, "documents": [[nested]]}), 400, "json_too_deep")


def test_a_body_of_nothing_but_brackets_is_refused_without_decoding_it():
    body = b'{"input":[' + b"[1]," * decoding.MAX_JSON_CONTAINERS + b"1]}"
    with pytest.raises(Refusal) as refused:
        decoding.check_depth(body)
    assert (refused.value.status, refused.value.code) == (400, "json_too_large")
    decoding.check_depth(body.replace(b"[1],", b"", 2))


@pytest.mark.parametrize("between", [":", " :", "\n:"])
def test_a_body_of_nothing_but_names_is_refused_without_decoding_it(between):
    names = decoding.MAX_JSON_MEMBERS + 1
    body = ('{"metadata":{' + ",".join(f'"{number}"{between}""' for number in range(names - 2)) + "}}").encode()
    decoding.check_depth(body)  # with its first, as many as may be
    with pytest.raises(Refusal) as refused:
        decoding.check_depth(body.replace(b"{", b'{"a":1,', 1))
    assert (refused.value.status, refused.value.code) == (400, "json_too_large")
    decoding.check_depth(json.dumps({"input": '{"a": 1}' * names}).encode())


def test_depth_of_escapes_and_of_what_is_never_closed():
    quoted = json.dumps(['\\\\"' + "[" * 70, "a\\", "[" * 70] + [[]] * 70).encode()
    decoding.check_depth(quoted)
    for deep in (b'["\\\\",' + b"[" * 64 + b"]" * 65, b"[" * 65, b'{"a":' * 65 + b"1" + b"}" * 65):
        with pytest.raises(Refusal):
            decoding.check_depth(deep)
    decoding.check_depth(b"[" * 64 + b"]" * 64 + b"[]" * 10)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"metadata": {"sluice_task": "a\x00b"}}, "metadata.sluice_task"),
        ({"metadata": {"sluice_task": "x" * 41}}, "metadata.sluice_task"),
        ({"model": "auto:" + "x" * 41}, "model"),
        ({"model": "auto:a\x00"}, "model"),
        ({"model": "small\x00"}, "model"),
    ],
)
async def test_task_that_no_database_takes_is_refused(app, change, param):
    assert_error(await ask(app, CHAT, {**SAY, **change}), 400, "invalid_value", param=param)
    say = {"model": "small", "input": "Hi", **change}
    assert_error(await ask(app, "/v1/responses", say), 400, "invalid_value", param=param)


def test_depth_ignores_brackets_in_strings():
    decoding.check_depth(json.dumps(['"[[[{' * 100, "\\", "["]).encode())
    with pytest.raises(Refusal):
        decoding.check_depth(b'["\\\\"' + b", [" * 70)


def test_depth_takes_linear_time():
    started = time.process_time()
    decoding.check_depth(b"[" * 10 + b"{}" * 60 + b'"' + b'\\"' * 2_000_000)
    assert time.process_time() - started < 10  # quadratic would take hours


def test_recursion_is_a_refusal(monkeypatch):
    monkeypatch.setattr(decoding, "check_depth", lambda _: None)
    with pytest.raises(Refusal) as caught:
        decoding.decode(dict, b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}")
    assert caught.value.code == "json_too_deep"


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"model": None}, "invalid_type", "model"),
        ({"model": ""}, "invalid_value", "model"),
        ({"model": 3}, "invalid_type", "model"),
        ({"messages": "Hi"}, "invalid_type", "messages"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": [{"content": "Hi"}]}, "missing_required_parameter", "messages[0].role"),
        ({"messages": [{"role": "king", "content": "Hi"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "invalid_type", "messages[0].content"),
        ({"messages": [{"role": "user", "content": "", "x": 1}]}, "unknown_parameter", "messages[0].x"),
        ({"messages": [{"role": "function", "content": "x"}]}, "unsupported_parameter", "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "name": 1}]}, "invalid_type", "messages[0].name"),
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
            "missing_required_parameter",
            "messages[0].tool_calls[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "invalid_value",
            "messages[0].content[0].image_url.url",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
            "invalid_value",
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "user", "content": "x"}] * 2049}, "invalid_value", "messages"),
        ({"temperature": "hot"}, "invalid_type", "temperature"),
        ({"temperature": 2.1}, "invalid_value", "temperature"),
        ({"top_p": -0.1}, "invalid_value", "top_p"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": 10**30}, "invalid_value", "max_tokens"),
        ({"max_tokens": True}, "invalid_type", "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "invalid_value", "max_tokens"),
        ({"seed": 2**63}, "invalid_value", "seed"),
        ({"stop": ["a", ""]}, "invalid_value", "stop[1]"),
        ({"stop_token_ids": [-1]}, "invalid_value", "stop_token_ids[0]"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"metadata": {"a": 1}}, "invalid_type", "metadata"),
        ({"metadata": {"sluice_task": "x" * 41}}, "invalid_value", "metadata.sluice_task"),
        ({"colour": "blue"}, "unknown_parameter", "colour"),
        ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty"),
        ({"min_tokens": -1}, "invalid_value", "min_tokens"),
        ({"n": 17}, "invalid_value", "n"),
        ({"n": True}, "invalid_type", "n"),
        ({"n": 2, "best_of": 1}, "invalid_value", "best_of"),
        ({"best_of": 2, "stream": True}, "invalid_value", "best_of"),
        ({"prompt_logprobs": 1, "stream": True}, "invalid_value", "prompt_logprobs"),
        ({"logprobs": 1}, "invalid_type", "logprobs"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"logit_bias": {"x": 1}}, "invalid_type", "logit_bias"),
        ({"logit_bias": {"07": 1}}, "invalid_type", "logit_bias"),
        ({"logit_bias": {str(2**31): 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"7": 101}}, "invalid_value", "logit_bias"),
        ({"presence_penalty": 2.1}, "invalid_value", "presence_penalty"),
        ({"frequency_penalty": "x"}, "invalid_type", "frequency_penalty"),
        ({"allowed_token_ids": [-1]}, "invalid_value", "allowed_token_ids[0]"),
        ({"guided_json": {}}, "unsupported_parameter", "guided_json"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
        ({"tools": [FUNCTION, {"type": "mcp"}]}, "unsupported_parameter", "tools[1].type"),
        ({"tools": [FUNCTION, FUNCTION]}, "invalid_value", "tools[1]"),
        ({"tools": [called("a b")]}, "invalid_value", "tools[0].function.name"),
        ({"tools": [called("f", parameters={"type": "array"})]}, "invalid_value", "tools[0].function.parameters"),
        (
            {"tools": [called("f", parameters={"title": "x" * 2**18})]},
            "invalid_value",
            "tools[0].function.parameters",
        ),
        ({"tools": [called("f", parameters=[])]}, "invalid_type", "tools[0].function.parameters"),
        ({"tools": [FUNCTION], "tool_choice": called("g")}, "invalid_value", "tool_choice"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"tool_choice": "often"}, "invalid_value", "tool_choice"),
        ({"functions": [{"name": "f"}]}, "unsupported_parameter", "functions"),
        ({"response_format": {"type": "json_object"}}, "guidance_unavailable", "response_format"),
        ({"store": True}, "unsupported_parameter", "store"),
        ({"audio": {"voice": "x"}}, "unsupported_parameter", "audio"),
        ({"modalities": ["text", "audio"]}, "unsupported_parameter", "modalities"),
        ({"thinking_token_budget": 9}, "reasoning_not_supported", "thinking_token_budget"),
        ({"service_tier": "scale"}, "invalid_value", "service_tier"),
        ({"web_search_options": {}}, "unsupported_parameter", "web_search_options"),
    ],
)
async def test_wrong_chat_field_is_named(app, change, code, param):
    assert_error(await ask(app, CHAT, {**SAY, **change}), 400, code, param=param)


async def test_task_in_the_header_that_no_database_takes_is_refused(app):
    answer = await ask(app, CHAT, SAY, headers={"x-sluice-task": "x" * 41})
    assert_error(answer, 400, "invalid_value", param="x-sluice-task")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"model": "\\ud800"}', "half a character"),
        (b'{"model": "a \\ude00 b"}', "half a character"),
        (b'{"model": "\xff"}', "not UTF-8"),
        (codecs.BOM_UTF8 + json.dumps(SAY).encode(), "byte order mark"),
        (json.dumps(SAY).encode("utf-16"), "UTF-16"),
        (json.dumps(SAY).encode("utf-16-le"), "UTF-16"),
        (b'{"model": "small"', "truncated"),
    ],
)
async def test_a_body_that_is_no_json_says_why(app, body, says):
    assert says in assert_error(await ask(app, CHAT, body), 400, "invalid_json")["message"]


async def test_a_whole_number_with_a_point_says_so(app):
    error = assert_error(await ask(app, CHAT, {**SAY, "max_tokens": 8.0}), 400, "invalid_type", param="max_tokens")
    assert "8, not 8.0" in error["message"]


@pytest.mark.parametrize("missing", ["model", "messages"])
async def test_missing_field_is_named(app, missing):
    body = {name: value for name, value in SAY.items() if name != missing}
    assert_error(await ask(app, CHAT, body), 400, "missing_required_parameter", param=missing)


@pytest.mark.parametrize("body", [[], "x", 1, None])
async def test_body_that_is_no_object_is_refused(app, body):
    assert_error(await ask(app, CHAT, json.dumps(body).encode()), 400, "invalid_type")


async def test_announced_oversized_body_is_refused_unread(app, settings):
    headers = {"content-length": str(settings.SLUICE_MAX_BODY_BYTES + 1)}
    answer = await ask(app, CHAT, b"{", headers=headers)
    assert_error(answer, 413, "request_too_large")
    assert answer.headers["connection"] == "close"


async def test_oversized_body_is_refused_when_it_gets_too_large(app, settings):
    exchange = Exchange(app, "POST", CHAT, body=None)
    exchange.feed(b"x" * settings.SLUICE_MAX_BODY_BYTES)
    exchange.feed(b"x")
    assert_error(await exchange.finished(), 413, "request_too_large")


async def test_bodies_on_their_way_are_bounded_for_each_tenant(app, monkeypatch):
    monkeypatch.setattr(uploads, "most", 1000)
    first, second = (Exchange(app, "POST", CHAT, body=None) for _ in range(2))
    first.feed(b"{" + b" " * 600)
    await until(lambda: len(uploads) == 601)
    second.feed(b"{" + b" " * 600)
    answer = await second.finished()
    assert_error(answer, 429, "too_many_uploads")
    assert answer.headers["retry-after"] == "1"
    first.feed(b"x", more=False)
    assert_error(await first.finished(), 400, "invalid_json")
    assert len(uploads) == 0


async def until(is_so):
    async with asyncio.timeout(120):
        while not is_so():  # noqa: ASYNC110 - the application has no event for it
            await asyncio.sleep(0)


async def test_slow_body_is_refused(app, settings):
    settings.SLUICE_BODY_SECONDS = 0.01
    exchange = Exchange(app, "POST", CHAT, body=None)
    exchange.feed(b"{")
    assert_error(await exchange.finished(), 408, "request_timeout")


async def test_compressed_body_is_refused(app):
    answer = await ask(app, CHAT, b"x", headers={"content-encoding": "gzip"})
    assert_error(answer, 415, "unsupported_content_encoding")


async def test_client_that_leaves_in_mid_body_gets_nothing(app):
    exchange = Exchange(app, "POST", CHAT, body=None)
    exchange.feed(b"{")
    exchange.leave()
    assert (await exchange.finished()).status == 0


@pytest.mark.parametrize("headers", [{}, {"authorization": "Basic eDp5"}, {"authorization": "Bearer "}])
async def test_request_without_key_is_refused(app, headers):
    answer = await ask(app, CHAT, SAY, key=None, headers=headers)
    assert_error(answer, 401, "missing_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("code", ["invalid_api_key", "api_key_revoked", "api_key_expired"])
async def test_bad_key_is_refused(app, world, code):
    world.runtime.principals.keys["sk-bad"] = Refusal(401, code, "Not any more.")
    assert assert_error(await ask(app, CHAT, SAY, key="sk-bad"), 401, code)["type"] == "authentication_error"


async def test_key_without_the_scope_is_refused(app, world):
    world.set_principal(scopes=frozenset({"management"}))
    assert_error(await ask(app, CHAT, SAY), 403, "insufficient_scope")


async def test_key_is_judged_before_the_body_is_read(app):
    exchange = Exchange(app, "POST", CHAT, body=None, key="sk-bad")
    assert_error(await exchange.finished(), 401, "invalid_api_key")


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/", "/v1", "/v1/chat/completions/"])
async def test_unknown_path_is_the_apis_own_404(app, path):
    assert_error(await ask(app, path), 404, "unknown_endpoint")


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/api/chat/completions", "/v1/chat/completions"),
        ("/openai/v1/responses", "/v1/responses"),
        ("/openai/deployments/small/embeddings", "/v1/embeddings"),
        ("/models", "/v1/models"),
        ("/v2/models/small", "/v1/models"),
        ("//embeddings", "/v1/embeddings"),
        ("/completions", "/v1/completions"),
        ("/messages", "/v1/messages"),
    ],
)
async def test_path_near_the_api_is_told_where_it_is(app, path, hint):
    error = assert_error(await ask(app, path, method="POST"), 404, "unknown_endpoint")
    assert error["message"].endswith((f"Did you mean {hint}?", f"begin with {hint}."))


@pytest.mark.parametrize("path", ["/chat/account/", "/usage/", "/keys/new/", "/admin/", "/docs/api/", "/api/v1/keys/"])
async def test_pages_near_those_paths_stay_djangos(app, path):
    assert b"unknown_endpoint" not in (await ask(app, path, key=None)).body


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", CHAT),
        ("DELETE", "/v1/responses"),
        ("PUT", "/v1/embeddings"),
        ("POST", "/v1/models"),
        ("POST", "/v1/models/small"),
        ("POST", "/v1/usage/x"),
        ("POST", "/healthz"),
    ],
)
async def test_wrong_method_is_405(app, method, path):
    answer = await ask(app, path, method=method)
    assert_error(answer, 405, "method_not_allowed")
    assert answer.headers["allow"]
