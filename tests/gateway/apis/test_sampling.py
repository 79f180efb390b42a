"""Several answers, log-probabilities and the engine's other sampling fields, in the APIs of text."""

from __future__ import annotations

import asyncio

import pytest

from inference.types import (
    Delta,
    Finished,
    FinishReason,
    PositionLogprobs,
    SamplingParams,
    Started,
    TokenLogprob,
    Usage,
)
from tests.gateway.apis.client import ask, assert_error

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
SAY = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
GO_ON = {"model": "small", "prompt": "Hi"}
SAY_RESPONSES = {"model": "small", "input": "Hi"}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.2}
COMMON = {**PENALTIES, "min_tokens": 2, "ignore_eos": True, "allowed_token_ids": [1, 2], "seed": 7}


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, {**SAY, "max_tokens": 4}), (COMPLETIONS, GO_ON), (RESPONSES, {**SAY_RESPONSES, "max_output_tokens": 4})],
)
async def test_fields_of_every_api_reach_the_engine(app, world, path, body):
    assert (await ask(app, path, {**body, **COMMON})).status == 200
    sampling = world.intent.sampling
    assert {name: getattr(sampling, name) for name in COMMON} == COMMON | {"allowed_token_ids": (1, 2)}


@pytest.mark.parametrize(("path", "body"), [(CHAT, SAY), (COMPLETIONS, GO_ON)])
async def test_fields_of_choices_reach_the_engine(app, world, path, body):
    more = {"n": 2, "best_of": 3, "logit_bias": {"7": -100, "8": 1.5}, "prompt_logprobs": 0}
    assert (await ask(app, path, {**body, **more})).status == 200
    sampling = world.intent.sampling
    assert (sampling.n, sampling.best_of, sampling.prompt_logprobs) == (2, 3, 0)
    assert sampling.logit_bias == ((7, -100.0), (8, 1.5))


@pytest.mark.parametrize(
    ("path", "body", "wanted"),
    [
        (CHAT, SAY, None),
        (CHAT, {**SAY, "logprobs": False}, None),
        (CHAT, {**SAY, "logprobs": True}, 0),
        (CHAT, {**SAY, "logprobs": True, "top_logprobs": 3}, 3),
        (COMPLETIONS, GO_ON, None),
        (COMPLETIONS, {**GO_ON, "logprobs": 0}, 0),
        (RESPONSES, {**SAY_RESPONSES, "top_logprobs": 0}, None),
        (RESPONSES, {**SAY_RESPONSES, "top_logprobs": 3}, 3),
        (RESPONSES, {**SAY_RESPONSES, "include": ["message.output_text.logprobs"]}, 0),
        (RESPONSES, {**SAY_RESPONSES, "include": ["reasoning.encrypted_content"]}, None),
    ],
)
async def test_each_apis_wish_for_logprobs_reaches_the_engine(app, world, path, body, wanted):
    assert (await ask(app, path, body)).status == 200
    assert world.intent.sampling.logprobs == wanted


async def test_what_is_neutral_asks_for_nothing(app, world):
    neutral = {
        "n": 1, "best_of": 1, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "min_tokens": 0,
        "logit_bias": {}, "logprobs": None, "prompt_logprobs": None, "allowed_token_ids": None,
    }  # fmt: skip
    for path, body in ((CHAT, SAY), (COMPLETIONS, {**GO_ON, "max_tokens": 5})):
        assert (await ask(app, path, {**body, **neutral})).status == 200
        unset = ("temperature", "top_p", "top_k", "min_p")
        most = world.intent.sampling.max_tokens
        thought = {name: getattr(world.intent.sampling, name) for name in ("thinking_asked", "thinking_param")}
        assert world.intent.sampling == SamplingParams(unset=unset, max_tokens=most, best_of=1, **thought)


@pytest.mark.parametrize(("path", "body"), [(CHAT, SAY), (COMPLETIONS, GO_ON)])
async def test_answers_are_choices(app, world, path, body):
    world.set_options(text="one two")
    choices = (await ask(app, path, {**body, "n": 2})).json()["choices"]
    texts = [choice["message"]["content"] if path == CHAT else choice["text"] for choice in choices]
    assert texts == ["0: one two", "1: one two"]
    assert [(choice["index"], choice["finish_reason"]) for choice in choices] == [(0, "stop"), (1, "stop")]
    assert await world.reason_of(world.generations[0]) is FinishReason.STOP
    assert world.engine.record.usage().output == 6


@pytest.mark.parametrize(("path", "body"), [(CHAT, SAY), (COMPLETIONS, GO_ON)])
async def test_answers_are_streamed_by_their_index(app, world, path, body):
    world.set_options(text="one two")
    events = (await ask(app, path, {**body, "n": 2, "stream": True, "max_tokens": 2})).events()
    assert events.pop()[1] == "[DONE]"
    texts, finished = ["", ""], {}
    for _, data in events:
        [choice] = data["choices"]
        told = choice["delta"].get("content", "") if path == CHAT else choice["text"]
        texts[choice["index"]] += told
        if choice["finish_reason"] is not None:
            finished[choice["index"]] = choice["finish_reason"]
    assert texts == ["0: one", "1: one"]
    assert finished == {0: "length", 1: "length"}


def entry(token, text, logprob, *top, rank=1):
    return PositionLogprobs(TokenLogprob(token, logprob, text), rank, tuple(TokenLogprob(*one) for one in top))


FIRST = entry(5, "He", -0.5, (5, -0.5, "He"), (6, float("-inf"), "é"))
SECOND = entry(7, "y\ufffd", -2.0, (8, -0.1, "!"), rank=2)
IN_PROMPT = (entry(3, "i", -1.0, (3, -1.0, "i")), entry(4, "?", -3.0, rank=9))


@pytest.fixture
def telling(world, monkeypatch):
    """The engine tells the log-probabilities of its tokens, and of the prompt's."""

    async def generate(prepared, *_):
        sampling = prepared.request.sampling
        yield Started(2, 0)
        await asyncio.sleep(0)
        if sampling.prompt_logprobs is not None:
            yield Delta("", Usage(3, 2), prompt_logprobs=IN_PROMPT)
        before = "Hi?" if sampling.echo else ""
        for index in range(sampling.n):
            ended = FinishReason.STOP if sampling.n > 1 else None
            yield Delta(before + "He", Usage(3, 2, 2 * index + 1), logprobs=(FIRST,), index=index)
            yield Delta("y\ufffd", Usage(3, 2, 2 * index + 2), logprobs=(SECOND,), index=index, ended=ended)
        yield Finished(FinishReason.STOP, Usage(3, 2, 2 * sampling.n))

    monkeypatch.setattr(world.engine, "generate", generate)


TOLD = [
    {
        "token": "He",
        "logprob": -0.5,
        "bytes": [72, 101],
        "top_logprobs": [
            {"token": "He", "logprob": -0.5, "bytes": [72, 101]},
            {"token": "é", "logprob": -9999.0, "bytes": [195, 169]},
        ],
    },
    {
        "token": "y\ufffd",
        "logprob": -2.0,
        "bytes": None,
        "top_logprobs": [{"token": "!", "logprob": -0.1, "bytes": [33]}],
    },
]


async def test_chat_tells_logprobs(app, telling):
    body = {**SAY, "logprobs": True, "top_logprobs": 2}
    whole = (await ask(app, CHAT, {**body, "prompt_logprobs": 1})).json()
    assert whole["choices"][0]["logprobs"] == {"content": TOLD, "refusal": None}
    assert whole["prompt_logprobs"] == [
        None,
        {"3": {"logprob": -1.0, "rank": 1, "decoded_token": "i"}},
        {"4": {"logprob": -3.0, "rank": 9, "decoded_token": "?"}},
    ]
    events = (await ask(app, CHAT, {**body, "stream": True})).events()
    told = [data["choices"][0]["logprobs"] for _, data in events[:-1]]
    assert told == [None, *({"content": [one], "refusal": None} for one in TOLD), None]


async def test_responses_tell_logprobs(app, telling):
    body = {**SAY_RESPONSES, "top_logprobs": 2}
    whole = (await ask(app, RESPONSES, body)).json()
    assert whole["output"][0]["content"][0]["logprobs"] == TOLD
    events = [data for _, data in (await ask(app, RESPONSES, {**body, "stream": True})).events()]
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert deltas == [TOLD[:1], TOLD[1:]]
    [done] = [event for event in events if event["type"] == "response.output_text.done"]
    assert done["logprobs"] == TOLD


async def test_completions_tell_logprobs(app, telling):
    body = {**GO_ON, "logprobs": 2}
    [choice] = (await ask(app, COMPLETIONS, body)).json()["choices"]
    assert choice["logprobs"] == {
        "text_offset": [0, 2],
        "tokens": ["He", "y\ufffd"],
        "token_logprobs": [-0.5, -2.0],
        "top_logprobs": [{"He": -0.5, "é": -9999.0}, {"!": -0.1, "y\ufffd": -2.0}],
    }
    assert "prompt_logprobs" not in choice
    events = (await ask(app, COMPLETIONS, {**body, "stream": True})).events()
    told = [data["choices"][0]["logprobs"] for _, data in events[:-1]]
    assert [one and (one["text_offset"], one["tokens"]) for one in told] == [([0], ["He"]), ([2], ["y\ufffd"]), None]


async def test_an_echoed_prompt_has_its_logprobs_too(app, telling):
    [choice] = (await ask(app, COMPLETIONS, {**GO_ON, "echo": True, "logprobs": 1})).json()["choices"]
    assert choice["text"] == "Hi?Hey\ufffd"
    assert choice["logprobs"]["tokens"] == ["H", "i", "?", "He", "y\ufffd"]
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -3.0, -0.5, -2.0]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 5]
    assert choice["logprobs"]["top_logprobs"][0] is None


async def test_each_choice_of_each_prompt_has_the_echoed_prompts_logprobs(app, telling):
    """As in OpenAI's API: every choice is whole, though the engine computes and tells a prompt once for all of them."""
    body = {**GO_ON, "prompt": ["Hi?", "Hi?"], "echo": True, "logprobs": 1, "n": 2}
    choices = (await ask(app, COMPLETIONS, body)).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    for choice in choices:
        assert choice["text"] == "Hi?Hey\ufffd"
        assert choice["logprobs"]["tokens"] == ["H", "i", "?", "He", "y\ufffd"]
        assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -3.0, -0.5, -2.0]
        assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 5]
        assert [sorted(top or ()) for top in choice["logprobs"]["top_logprobs"][:3]] == [[], ["i"], ["?"]]


async def test_the_best_of_several_answers_begin_with_an_echoed_prompt_too(app, telling):
    body = {**GO_ON, "echo": True, "logprobs": 1, "n": 2, "best_of": 3}
    choices = (await ask(app, COMPLETIONS, body)).json()["choices"]
    assert [choice["text"] for choice in choices] == ["Hi?Hey\ufffd"] * 2


async def test_an_echo_whose_logprobs_would_be_streamed_is_refused(app, world):
    body = {**GO_ON, "echo": True, "logprobs": 1, "stream": True}
    assert_error(await ask(app, COMPLETIONS, body), 400, "invalid_value", param="logprobs")


@pytest.mark.parametrize(("prompt", "tokens"), [(1024, 3), (0, 900)])
async def test_nobody_reads_a_whole_answer_too_slowly(world, app, monkeypatch, prompt, tokens):
    """Log-probabilities of some 800 positions ended it with a 500 and a charge: its reader waits for the end."""
    one = TokenLogprob(1, -1.0, "a")
    entry = PositionLogprobs(one, 1, (one,) * 20)
    was_stopped = False

    async def cancel(_):
        nonlocal was_stopped
        was_stopped = True

    async def generate(*_):
        yield Started(0, 0)
        yield Delta("", Usage(5), prompt_logprobs=(entry,) * prompt)
        for made in range(1, tokens + 1):
            await asyncio.sleep(0)
            yield Delta("a ", Usage(5, 0, made), logprobs=(entry,))
        yield Finished(FinishReason.CANCELLED if was_stopped else FinishReason.STOP, Usage(5, 0, tokens))

    monkeypatch.setattr(world.engine, "generate", generate)
    monkeypatch.setattr(world.engine, "cancel", cancel)
    asked = {"prompt_logprobs": 20} if prompt else {}
    answer = await ask(app, CHAT, {**SAY, "logprobs": True, "top_logprobs": 20, "max_tokens": 1500, **asked})
    assert (answer.status, answer.json()["usage"]["completion_tokens"]) == (200, tokens)
