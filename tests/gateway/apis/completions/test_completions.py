"""Completions: one prompt and several, whole and streamed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.apis.completions import endpoint as completions
from inference.types import FinishReason
from tests.gateway.apis.client import Exchange, ask, assert_error

PATH = "/v1/completions"
GO_ON = {"model": "small", "prompt": "Hi, there"}
STREAM = {**GO_ON, "stream": True}
PROMPT = 3 + 7  # µcr: three tokens and the fee of a request
OUTPUT = 2 * 2


async def test_answer_has_text_usage_and_cost(app, world):
    answer = await ask(app, PATH, GO_ON)
    body = answer.json()
    assert body["id"] == f"cmpl-{world.generations[0].id.hex}"
    assert (body["object"], body["model"]) == ("text_completion", "small")
    [choice] = body["choices"]
    assert choice == {"index": 0, "text": "Hello there", "finish_reason": "stop", "logprobs": None}
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3, 2)
    assert body["usage"]["credits_micro"] == PROMPT + OUTPUT
    assert answer.headers["x-sluice-credits"] == "0.000014"
    intent = world.intent
    assert (intent.prompt, intent.messages, intent.endpoint) == ("Hi, there", (), "completions")
    assert (intent.sampling.max_tokens, intent.characters) == (16, 9)


@pytest.mark.parametrize("prompt", [[5, 6, 7], [[5, 6, 7]]])
async def test_prompt_of_tokens_reaches_the_engine_as_it_is(app, world, prompt):
    assert (await ask(app, PATH, {**GO_ON, "prompt": prompt})).status == 200
    assert world.intent.prompt == (5, 6, 7)


async def test_stream_tells_text_finish_and_usage(app, world):
    events = (await ask(app, PATH, {**STREAM, "stream_options": {"include_usage": True}})).events()
    datas = [data for _, data in events]
    assert datas.pop() == "[DONE]"
    assert [data["choices"] and data["choices"][0]["text"] for data in datas] == ["Hello", " there", "", []]
    assert [data["choices"][0]["finish_reason"] for data in datas[:-1]] == [None, None, "stop"]
    assert [data["usage"] is None for data in datas] == [True, True, True, False]
    assert datas[-1]["usage"]["credits_micro"] == PROMPT + OUTPUT
    assert b'"usage"' not in (await ask(app, PATH, STREAM)).body


@pytest.mark.parametrize("prompt", ["", []])
async def test_an_empty_prompt_is_refused(app, world, prompt):
    answer = await ask(app, PATH, {**GO_ON, "prompt": prompt})
    assert (answer.status, answer.json()["error"]["param"]) == (400, "prompt")


async def test_every_chunk_has_the_usage_so_far_if_asked(app, world):
    options = {"include_usage": True, "continuous_usage_stats": True}
    for path, body, fee in (
        (PATH, {**STREAM, "stream_options": options}, PROMPT),
        (
            "/v1/chat/completions",
            {
                "model": "small",
                "messages": [{"role": "user", "content": "Hi"}],
                "stream": True,
                "stream_options": options,
            },
            12,
        ),
    ):
        told = [data for _, data in (await ask(app, path, body)).events()][:-1]
        texts = [data for data in told if data["choices"] and data["choices"][0]["finish_reason"] is None][-2:]
        assert [data["usage"]["completion_tokens"] for data in texts] == [1, 2]
        assert [data["usage"]["credits_micro"] for data in told[-3:]] == [fee + 4, fee + 4, fee + 4]
        assert "choices" in told[-1]
    both = {**STREAM, "prompt": ["Hi, there", "Hi"], "stream_options": options}
    told = [data for _, data in (await ask(app, PATH, both)).events()][:-1]
    assert {data["usage"]["settlement"] for data in told if data["choices"] and data["choices"][0]["text"]} == {
        "pending"
    }
    assert told[-1]["usage"]["completion_tokens"] == 4


async def test_lost_engine_ends_a_stream_with_an_error(app, world):
    world.set_options(lose_at=2)
    events = (await ask(app, PATH, STREAM)).events()
    assert events[-1][1]["error"]["code"] == "worker_lost"
    assert events[-1][1]["usage"]["completion_tokens"] == 1


async def test_exhausted_output_is_length(app, world):
    [choice] = (await ask(app, PATH, {**GO_ON, "max_tokens": 1})).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Hello", "length")


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"prompt": None}, "invalid_type", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": [[]]}, "invalid_value", "prompt[0]"),
        ({"prompt": ["a", 1]}, "invalid_value", "prompt"),
        ({"prompt": [-1]}, "invalid_value", "prompt[0]"),
        ({"prompt": ["a"] * 65}, "invalid_value", "prompt"),
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"messages": []}, "unknown_parameter", "messages"),
        ({"logprobs": True}, "invalid_type", "logprobs"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"model": "embedder"}, "model_wrong_kind", "model"),
    ],
)
async def test_wrong_field_is_named(app, world, change, code, param):
    assert_error(await ask(app, PATH, {**GO_ON, **change}), 400, code, param=param)
    assert world.generations == []


# -- several prompts --------------------------------------------------------------------------------------------------

SEVERAL = {**GO_ON, "prompt": ["a", "b c", "d"]}


async def test_each_prompt_has_its_choices_and_a_hold_of_its_own(app, world):
    world.set_options(echo=True)
    body = (await ask(app, PATH, SEVERAL)).json()
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(0, "a"), (1, "b c"), (2, "d")]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3, 4)
    assert body["usage"]["credits_micro"] == 3 * 7 + 3 + 4 * 2
    assert len(world.generations) == len(world.stand.writer.settles) == 3
    assert sum(settle.charge for settle in world.stand.writer.settles) == body["usage"]["credits_micro"]
    assert body["id"] == f"cmpl-{world.generations[0].id.hex}"


async def test_prompts_and_answers_are_numbered_together(app, world):
    body = (await ask(app, PATH, {**SEVERAL, "n": 2})).json()
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert [choice["text"][:2] for choice in body["choices"]] == ["0:", "1:"] * 3


async def test_streamed_choices_of_prompts_are_told_apart(app, world):
    world.set_options(echo=True)
    events = (await ask(app, PATH, {**SEVERAL, "stream": True})).events()
    assert events.pop()[1] == "[DONE]"
    texts, finished = ["", "", ""], {}
    for _, data in events:
        [choice] = data["choices"]
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            finished[choice["index"]] = choice["finish_reason"]
    assert texts == ["a", "b c", "d"]
    assert finished == dict.fromkeys(range(3), "stop")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_fails_leaves_the_others_whole(app, world, stream):
    world.set_options(echo=True, bad="b")
    answer = await ask(app, PATH, {**SEVERAL, "stream": stream})
    choices = (
        [choice for _, data in answer.events()[-4:-1] for choice in data["choices"]]
        if stream
        else answer.json()["choices"]
    )
    assert [choice["finish_reason"] for choice in choices] == ["stop", "error", "stop"]
    assert choices[1]["sluice_reason"] == "row_failed"
    await world.settled()


async def test_an_answer_of_which_all_failed_is_the_first_ones_error(app, world):
    world.set_options(echo=True, bad="b")
    assert_error(await ask(app, PATH, {**SEVERAL, "prompt": ["b", "b"]}), 500, "row_failed")
    charged = [getattr(settle, "charge", 0) for settle in world.stand.writer.settles]
    assert not any(charged)


async def test_the_first_prompts_refusal_is_the_answers(app, world):
    answer = await ask(app, PATH, {**SEVERAL, "prompt": ["x" * 40_000, "a"]})
    assert_error(answer, 400, "context_length_exceeded")
    assert world.generations == []


async def test_a_later_prompts_refusal_is_its_choices(app, world):
    body = (await ask(app, PATH, {**SEVERAL, "prompt": ["a", "x" * 40_000]})).json()
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "error"]
    assert body["choices"][1]["sluice_reason"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_stops_all(app, world, stream, monkeypatch):
    monkeypatch.setattr(completions, "MOST_AT_ONCE", 2)
    world.set_options(hang_at=1)
    exchange = Exchange(app, "POST", PATH, body={**SEVERAL, "stream": stream})
    await world.engine.hanging()
    await asyncio.sleep(0)
    exchange.leave()
    async with asyncio.timeout(120):
        await exchange.finished()
    await world.settled()
    assert len(world.generations) < 3  # what had not begun never does
    for generation in world.generations:
        assert await world.reason_of(generation) is FinishReason.CANCELLED


async def test_no_more_run_together_than_the_plan_allows(app, world):
    world.set_principal(concurrency=1)
    assert (await ask(app, PATH, {**SEVERAL, "prompt": ["a"] * 5})).status == 200
    assert len(world.generations) == 5
    assert replace(world.stand.principal).concurrency == 64
