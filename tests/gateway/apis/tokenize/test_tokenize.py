"""Tokenize and detokenize in vLLM's shape."""

from __future__ import annotations

import pytest

from billing.limits.types import Bucket
from tests.gateway.apis.client import ask, assert_error

TOKENIZE, DETOKENIZE, CHAT = "/v1/tokenize", "/v1/detokenize", "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather."}}]


@pytest.mark.parametrize("model", ["small", "embedder"])
async def test_a_prompt_is_told_in_tokens_and_back(world, app, model):
    answer = await ask(app, TOKENIZE, {"model": model, "prompt": "one two three", "return_token_strs": True})
    assert answer.status == 200, answer.body
    told = answer.json()
    assert told["token_strs"] == ["one ", "two ", "thre", "e"]
    assert told["count"] == len(told["tokens"]) == 4
    assert told["max_model_len"] > 0
    assert answer.headers["x-ratelimit-remaining-requests"] == "59"
    back = await ask(app, DETOKENIZE, {"model": model, "tokens": told["tokens"]})
    assert back.json() == {"prompt": "one two three"}
    assert world.stand.writer.operations == []


async def test_messages_have_the_tokens_that_they_cost(app):
    body = {"model": "small", "messages": HI, "tools": TOOLS}
    told = (await ask(app, TOKENIZE, body)).json()
    assert told["token_strs"] is None
    ran = (await ask(app, CHAT, {**body, "max_tokens": 1})).json()
    assert told["count"] == ran["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "invalid_value", "prompt"),
        ({"prompt": "x", "messages": HI}, "invalid_value", "prompt"),
        ({"prompt": "x", "tools": TOOLS}, "invalid_value", "tools"),
        ({"messages": HI, "add_special_tokens": True}, "invalid_value", "add_special_tokens"),
        ({"prompt": "x", "chat_template_kwargs": {"a": 1}}, "invalid_value", "chat_template_kwargs"),
        ({"prompt": "x", "continue_final_message": True}, "invalid_value", "continue_final_message"),
        ({"messages": HI, "continue_final_message": True}, "invalid_value", "continue_final_message"),
        ({"messages": HI, "add_generation_prompt": False}, "invalid_value", "add_generation_prompt"),
        ({"prompt": "x" * 9000}, "context_length_exceeded", "messages"),
    ],
)
async def test_what_can_not_be_tokenised_is_refused(app, body, code, param):
    assert_error(await ask(app, TOKENIZE, {"model": "small", **body}), 400, code, param=param)


async def test_tokens_that_there_are_not_are_refused(app):
    assert_error(
        await ask(app, DETOKENIZE, {"model": "small", "tokens": [9999]}), 400, "invalid_request", param="tokens"
    )
    assert_error(await ask(app, DETOKENIZE, {"model": "small", "tokens": [-1]}), 400, "invalid_value")
    assert_error(await ask(app, DETOKENIZE, {"model": "none", "tokens": [1]}), 404, "model_not_found", param="model")


async def test_both_need_a_key_and_count_as_requests(world, app):
    for path, body in ((TOKENIZE, {"model": "small", "prompt": "x"}), (DETOKENIZE, {"model": "small", "tokens": [0]})):
        assert_error(await ask(app, path, body, key=None), 401, "missing_api_key")
        world.set_principal(scopes=frozenset({"chat"}))
        assert_error(await ask(app, path, body), 403, "insufficient_scope")
        world.set_principal(request_bucket=Bucket(path, "requests", 1, 60_000_000, 1))
        await ask(app, path, body)
        assert_error(await ask(app, path, body), 429, "rate_limit_exceeded")
