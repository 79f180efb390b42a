"""Chat Completions, whole and streamed."""

from __future__ import annotations

import asyncio

import pytest

from base import http
from billing.limits.types import Bucket
from gateway.generation import settlement
from gateway.generation.admission import request_of
from inference.messages import Message
from inference.types import Delta, EngineFault, Finished, FinishReason, Started, Usage
from tests.gateway.apis.client import Exchange, ask, assert_error
from tests.gateway.apis.world import CREDIT, PROMPT_COST

PATH = "/v1/chat/completions"
SAY = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = {**SAY, "stream": True}
COUNTED = {
    "prompt_tokens": 5,
    "completion_tokens": 2,
    "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 0},
    "credits": "0.000016",
    "credits_micro": 16,
}
PENDING = {**COUNTED, "credits": None, "credits_micro": None, "settlement": "pending"}


@pytest.fixture
def without_ledger(world, monkeypatch):
    """The database goes away between a hold and its settlement."""
    monkeypatch.setattr(settlement, "SETTLE_SECONDS", 0.01)
    world.is_ledger_away = True


async def test_answer_has_text_usage_and_cost(app, world):
    answer = await ask(app, PATH, SAY)
    assert answer.status == 200
    body = answer.json()
    assert body["choices"][0]["message"]["content"] == "Hello there"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert "sluice_reason" not in body["choices"][0]
    assert body["usage"] == COUNTED
    assert body["model"] == "small"
    generation = world.generations[0]
    assert body["id"] == f"chatcmpl-{generation.id.hex}"
    assert answer.headers["x-request-id"] == str(generation.id)
    assert answer.headers["x-sluice-credits"] == "0.000016"
    assert answer.headers["x-ratelimit-remaining-requests"] == "59"
    assert await world.reason_of(generation) is FinishReason.STOP
    assert world.stand.writer.wallet.posted == CREDIT - 16


async def test_stream_ends_with_usage_after_the_settle(app, world):
    world.settling = asyncio.Event()
    exchange = Exchange(app, "POST", PATH, body={**STREAM, "stream_options": {"include_usage": True}})
    await exchange.body_has(b"there")
    assert b'finish_reason":"stop' not in exchange.answer.body
    world.settling.set()
    answer = await exchange.finished()
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["cache-control"].startswith("no-cache")
    chunks = [data for _, data in answer.events()]
    assert chunks.pop() == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant"}  # an answer may be nothing but calls
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks[1:-1]] == ["Hello", " there", None]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == COUNTED
    assert await world.reason_of(world.generations[0]) is FinishReason.STOP


async def test_stream_without_include_usage_has_none(app, world):
    answer = await ask(app, PATH, STREAM)
    assert b"usage" not in answer.body
    assert answer.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
async def test_exhausted_credit_is_length_with_a_reason(app, world, stream):
    world.set_credit(PROMPT_COST + 3)  # one token of output costs two
    answer = await ask(app, PATH, {**SAY, "stream": stream})
    choice = answer.events()[-2][1]["choices"][0] if stream else answer.json()["choices"][0]
    assert (choice["finish_reason"], choice["sluice_reason"]) == ("length", "credit_exhausted")


async def test_complete_answer_whose_settlement_is_pending_is_delivered(app, without_ledger):
    answer = await ask(app, PATH, SAY)
    assert answer.status == 200
    assert answer.json()["choices"][0]["message"]["content"] == "Hello there"
    assert answer.json()["usage"] == PENDING
    assert "x-sluice-credits" not in answer.headers
    streamed = await ask(app, PATH, {**STREAM, "stream_options": {"include_usage": True}})
    assert streamed.events()[-2][1]["usage"] == PENDING
    assert streamed.body.endswith(b"data: [DONE]\n\n")


async def test_cut_stream_whose_settlement_is_pending_says_why_it_was_cut(app, world, without_ledger):
    world.set_options(text="Hello there Ada", lose_at=3)
    answer = await ask(app, PATH, STREAM)
    last = answer.events()[-1][1]
    assert last["error"]["code"] == "worker_lost"
    assert last["error"]["request_id"] == str(world.generations[0].id)
    assert last["usage"] == PENDING
    assert b"[DONE]" not in answer.body


async def test_lost_engine_ends_a_stream_with_its_charge(app, world):
    world.set_options(lose_at=2)
    last = (await ask(app, PATH, STREAM)).events()[-1][1]
    assert last["error"]["code"] == "worker_lost"
    assert last["usage"]["credits_micro"] == PROMPT_COST + 2


async def test_stream_that_fails_before_its_start_has_the_status_of_its_failure(app, world, monkeypatch):
    async def lost(*_):
        fault = EngineFault("worker_lost", "The worker went away.", retryable=True)
        yield Finished(FinishReason.ERROR, Usage(), fault, exact=False)

    monkeypatch.setattr(world.engine, "generate", lost)
    answer = await ask(app, PATH, STREAM)
    assert_error(answer, 503, "worker_lost")
    assert answer.headers["x-should-retry"] == "true"


@pytest.mark.parametrize("body", [SAY, STREAM])
async def test_a_failure_that_the_request_itself_made_is_its_400_and_tried_once(app, world, monkeypatch, body):
    runs = []

    async def failing(*_):
        runs.append(1)
        fault = EngineFault("guidance_failed", "'response_format': make it simpler.", param="response_format")
        yield Finished(FinishReason.ERROR, Usage(input=3, output=1), fault)

    monkeypatch.setattr(world.engine, "generate", failing)
    answer = await ask(app, PATH, body)
    error = assert_error(answer, 400, "guidance_failed")
    assert (error["type"], error["param"]) == ("invalid_request_error", "response_format")
    assert answer.headers["x-should-retry"] == "false"
    assert len(runs) == 1


async def test_a_stream_that_its_request_makes_fail_ends_with_the_field_at_fault(app, world, monkeypatch):
    async def failing(*_):
        yield Started(0)
        yield Delta("aa", Usage(input=3, output=1))
        fault = EngineFault("no_token_left", "'allowed_token_ids' leave no token.", param="allowed_token_ids")
        yield Finished(FinishReason.ERROR, Usage(input=3, output=1), fault)

    monkeypatch.setattr(world.engine, "generate", failing)
    last = (await ask(app, PATH, STREAM)).events()[-1][1]["error"]
    assert (last["type"], last["param"]) == ("invalid_request_error", "allowed_token_ids")


async def test_refusal_keeps_its_status_and_headers(app, world):
    world.set_principal(request_bucket=Bucket("requests", "requests", limit=1, period_us=7_000_000, burst=1))
    await ask(app, PATH, SAY)
    answer = await ask(app, PATH, SAY)
    assert assert_error(answer, 429, "rate_limit_exceeded")["type"] == "rate_limit_error"
    assert answer.headers["retry-after"] == "7"


async def test_crash_is_the_apis_own_500(app, world):
    world.error = RuntimeError("a secret")
    answer = await ask(app, PATH, SAY)
    assert_error(answer, 500, "internal_error")
    assert b"a secret" not in answer.body


@pytest.mark.parametrize("body", [SAY, STREAM])
async def test_client_that_leaves_stops_the_generation(app, world, body):
    world.set_options(hang_at=2)
    exchange = Exchange(app, "POST", PATH, body=body)
    await world.engine.hanging()
    exchange.leave()
    await exchange.finished()
    assert await world.reason_of(world.generations[0]) is FinishReason.CANCELLED


@pytest.mark.parametrize("body", [SAY, STREAM])
@pytest.mark.parametrize("hang_at", [1, 2])
async def test_client_that_leaves_is_not_counted_as_a_fault_of_ours(app, world, body, hang_at):
    world.set_options(hang_at=hang_at)
    exchange = Exchange(app, "POST", PATH, body=body)
    await world.engine.hanging()
    if hang_at == 2 and body is STREAM:
        await exchange.body_has(b"Hello")
    exchange.leave()
    await exchange.finished()
    assert await world.reason_of(world.generations[0]) is FinishReason.CANCELLED
    counted = world.runtime.metrics.render().decode()
    assert f'sluice_requests_total{{endpoint="{PATH}",status="499"}} 1.0' in counted
    assert f'sluice_requests_total{{endpoint="{PATH}",status="503"}} 0.0' in counted


@pytest.mark.parametrize("body", [SAY, STREAM])
async def test_client_that_leaves_before_anything_runs_waits_no_longer(app, world, body):
    world.starting = asyncio.Event()
    exchange = Exchange(app, "POST", PATH, body=body)
    await world.begun.wait()
    exchange.leave()
    async with asyncio.timeout(120):
        assert (await exchange.finished()).status == 0
    world.starting.set()
    await world.settled()
    assert world.generations == []
    counted = world.runtime.metrics.render().decode()
    assert f'sluice_requests_total{{endpoint="{PATH}",status="499"}} 1.0' in counted


async def test_cancelled_request_that_waits_is_cancelled(app, world):
    world.starting = asyncio.Event()
    exchange = Exchange(app, "POST", PATH, body=SAY)
    await world.begun.wait()
    exchange.leave()
    exchange.task.cancel()
    world.starting.set()
    with pytest.raises(asyncio.CancelledError):
        await exchange.task


async def test_cancelled_request_stops_the_generation(app, world):
    world.set_options(hang_at=2)
    exchange = Exchange(app, "POST", PATH, body=STREAM)
    await exchange.body_has(b"Hello")
    exchange.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange.task
    assert await world.reason_of(world.generations[0]) is FinishReason.CANCELLED


async def test_silence_is_filled_with_comments(app, world, monkeypatch):
    monkeypatch.setattr(http, "PING_SECONDS", 0.01)
    monkeypatch.setattr("gateway.generation.generation.HEAD_SECONDS", 0)
    world.set_options(hang_at=1)
    exchange = Exchange(app, "POST", PATH, body=STREAM)
    await exchange.body_has(b": ping\n\n: ping\n\n")
    world.engine.release()
    assert (await exchange.finished()).body.endswith(b"[DONE]\n\n")


async def test_messages_reach_the_engine_as_text(app, world):
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]},
        {"role": "assistant", "content": "Yes", "refusal": None, "annotations": [], "tool_calls": None},
        {"role": "assistant", "content": None, "refusal": "No"},
        {"role": "user", "content": "<|im_end|>"},
    ]
    assert (await ask(app, PATH, {"model": "small", "messages": messages})).status == 200
    assert world.intent.messages == (
        Message("system", ("Be brief.",)),
        Message("user", ("Hi\nthere",)),
        Message("assistant", ("Yes",)),
        Message("assistant", ("No",)),
        Message("user", ("<|im_end|>",)),
    )


async def test_sampling_reaches_the_engine(app, world):
    extra = {
        "temperature": 0.5, "top_p": 0, "seed": -1, "stop": "END", "top_k": -1, "min_p": 0.1,
        "stop_token_ids": [7], "ignore_eos": True, "max_completion_tokens": 9, "max_tokens": 9,
    }  # fmt: skip
    assert (await ask(app, PATH, {**SAY, **extra})).status == 200
    sampling = world.intent.sampling
    assert (sampling.temperature, sampling.top_k, sampling.min_p, sampling.max_tokens) == (0.5, 0, 0.1, 9)
    assert 0 < sampling.top_p < 1e-6
    assert sampling.seed == 2**64 - 1
    assert (sampling.stop, sampling.stop_token_ids, sampling.ignore_eos) == (("END",), (7,), True)


async def test_unset_output_limit_stays_unset(app, world):
    await ask(app, PATH, SAY)
    assert world.intent.sampling.max_tokens is None
    assert world.intent.sampling.temperature == 1.0


async def test_neutral_fields_of_sdks_are_taken(app, world):
    neutral = {
        "n": 1, "store": False, "presence_penalty": 0, "frequency_penalty": 0.0, "tools": [], "tool_choice": "none",
        "response_format": {"type": "text"}, "logprobs": False, "top_logprobs": None, "logit_bias": {},
        "modalities": ["text"], "parallel_tool_calls": True, "service_tier": "auto", "user": "u1",
        "metadata": {"sluice_task": "classify", "a": "b"}, "prompt_cache_key": "k", "stream_options": None,
        "stop": None, "repetition_penalty": 1, "min_tokens": 0, "length_penalty": 1.0, "skip_special_tokens": True,
        "guided_json": None, "chat_template_kwargs": {}, "priority": 0, "best_of": 1, "echo": False,
    }  # fmt: skip
    assert (await ask(app, PATH, {**SAY, **neutral})).status == 200
    assert (world.intent.task, world.intent.end_user) == ("classify", "u1")


@pytest.mark.parametrize(
    "hint",
    [
        {"prompt_cache_retention": "24h"},
        {"prompt_cache_retention": "in-memory"},
        {"verbosity": "low"},
        {"verbosity": "high"},
        {"safety_identifier": "s"},
        {"functions": [], "function_call": "auto"},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"max_tokens": 5, "max_completion_tokens": 5},
    ],
)
async def test_hints_of_popular_clients_change_nothing(app, world, hint):
    plain = (await ask(app, PATH, SAY)).json()
    hinted = await ask(app, PATH, {**SAY, **hint})
    assert hinted.status == 200, hinted.body
    assert hinted.json()["choices"] == plain["choices"]
    assert hinted.json()["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("given", "values", "thinking"),
    [
        ({}, (), None),
        ({"enable_thinking": None}, (), None),
        ({"enable_thinking": False}, (("enable_thinking", False),), 0),
        ({"enable_thinking": True}, (("enable_thinking", True),), None),
        ({"date_string": "today", "n": 3, "x": 0.5}, (("date_string", "today"), ("n", 3), ("x", 0.5)), None),
    ],
)
async def test_values_of_the_chat_template_reach_the_engine(app, world, given, values, thinking):
    assert (await ask(app, PATH, {**SAY, "chat_template_kwargs": given})).status == 200
    assert world.intent.template_values == values
    assert world.intent.sampling.thinking_tokens == thinking
    is_asked = given.get("enable_thinking") is not None
    param = "chat_template_kwargs.enable_thinking" if is_asked else "reasoning_effort"
    assert world.intent.sampling.thinking_param == param
    assert request_of(world.principal(), world.intent, "a").template_values == values


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"chat_template_kwargs": {"a": {}}}, "invalid_type", "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": "x" * 4097}}, "invalid_value", "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": "\0"}}, "invalid_value", "chat_template_kwargs.a"),
        ({"chat_template_kwargs": {"a b": 1}}, "invalid_value", "chat_template_kwargs"),
        ({"chat_template_kwargs": {f"a{n}": n for n in range(17)}}, "invalid_value", "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": 2**60}}, "invalid_value", "chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "invalid_value", "chat_template_kwargs.enable_thinking"),
        (
            {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
            "invalid_value",
            "chat_template_kwargs.enable_thinking",
        ),
        (
            {"chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 0},
            "invalid_value",
            "chat_template_kwargs.enable_thinking",
        ),
        ({"verbosity": "long"}, "invalid_value", "verbosity"),
        ({"prompt_cache_retention": "48h"}, "invalid_value", "prompt_cache_retention"),
        ({"functions": [{"name": "f"}]}, "unsupported_parameter", "functions"),
        ({"store": True}, "unsupported_parameter", "store"),
    ],
)
async def test_what_no_hint_and_no_value_can_be_is_refused_by_name(app, world, change, code, param):
    assert_error(await ask(app, PATH, {**SAY, **change}), 400, code, param=param)
    assert world.generations == []


async def test_neutral_fields_inside_others_are_taken(app, world):
    options = {"include_usage": True, "continuous_usage_stats": False, "include_obfuscation": False}
    named = [{"role": "user", "content": "Hi", "name": "Ada"}]
    assert (await ask(app, PATH, {**STREAM, "messages": named, "stream_options": options})).status == 200
    assert world.intent.messages == (Message("user", ("Hi",)),)


async def test_tenants_own_task_is_theirs(app, world):
    mine = {"task": "x" * 512, "sluice": "y"}
    assert (await ask(app, PATH, {**SAY, "metadata": mine})).status == 200
    assert world.intent.task is None


async def test_task_header_names_the_task(app, world):
    await ask(app, PATH, SAY, headers={"x-sluice-task": "extract"})
    assert world.intent.task == "extract"
