"""What each dialect sends, believes, counts and asks."""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import replace

import pytest

from inference.clients.remote.dialects import DIALECTS
from inference.clients.remote.tokens import Count
from inference.engine import EngineSpec
from inference.errors import InvalidRequestError
from inference.messages import Image, Message, Reasoning, ToolCall, ToolResult
from inference.open import check_remote, open_engine
from inference.tracing import traceparent
from inference.types import (
    Asked,
    Delta,
    FinishReason,
    GenerationRequest,
    Guidance,
    GuidanceKind,
    Kind,
    SamplingParams,
    Vector,
)
from tests.inference.engine_contract import chat, embedding, end_of, run, text_of, until
from tests.upstream import MODEL

ALL = ["vllm", "sglang", "tgi", "trtllm", "llamacpp", "generic"]
CHAT = "/v1/chat/completions"


async def body_of(remote, dialect, request, **options):
    engine, upstream = await remote(dialect, options=options)
    await run(engine, request)
    [body] = upstream.bodies(CHAT)
    return body


@pytest.mark.parametrize("dialect", ALL)
async def test_every_dialect_answers_and_counts(remote, dialect):
    engine, upstream = await remote(dialect, cached=2)
    request = chat("a b c d")
    prepared = await engine.prepare(request)
    events = await run(engine, request)
    finished = end_of(events)
    ran = upstream.served[request.id]
    assert (finished.usage.prompt, finished.usage.completion) == (ran["prompt"], ran["completion"]) == (8, 4)
    assert finished.usage.cache_read == 2
    assert finished.exact
    assert prepared.exact is (dialect in {"vllm", "tgi", "llamacpp"})
    assert prepared.prompt_tokens >= 8
    if prepared.exact:
        assert prepared.prompt_tokens == 8
    assert engine.info.max_context == 8192


@pytest.mark.parametrize("dialect", ALL)
async def test_what_the_client_left_open_is_left_to_the_server(remote, dialect):
    request = chat("a", unset=("temperature", "top_p", "top_k", "min_p"))
    body = await body_of(remote, dialect, request)
    assert not {"temperature", "top_p", "top_k", "min_p", "seed", "stop"} & body.keys()
    assert (body["model"], body["stream"], body["max_tokens"]) == (MODEL, True, 4096)
    assert body["stream_options"]["include_usage"] is True


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "trtllm"])
async def test_salting_dialects_ask_for_continuous_usage_and_salt(remote, dialect):
    request = chat("a", top_k=3, min_p=0.1, stop_token_ids=(7,), seed=2**64 - 1)
    body = await body_of(remote, dialect, request)
    assert body["stream_options"]["continuous_usage_stats"] is True
    assert len(body["cache_salt"]) == 32
    assert request.domain not in body["cache_salt"]
    assert (body["top_k"], body["min_p"], body["stop_token_ids"], body["seed"]) == (3, 0.1, [7], -1)
    same = await body_of(remote, dialect, replace(chat("b"), domain=request.domain))
    other = await body_of(remote, dialect, chat("a"))
    assert same["cache_salt"] == body["cache_salt"] != other["cache_salt"]
    assert "cache_salt" not in await body_of(remote, dialect, chat("a"), shared_prefixes=True)


async def test_llamacpp_reuses_no_prefix_unless_they_are_shared(remote):
    body = await body_of(remote, "llamacpp", chat("a", seed=2**40 + 5))
    assert (body["cache_prompt"], body["timings_per_token"], body["seed"]) == (False, True, 5)
    assert (await body_of(remote, "llamacpp", chat("a"), shared_prefixes=True))["cache_prompt"] is True


@pytest.mark.parametrize(("dialect", "none"), [("vllm", -1), ("sglang", -1), ("trtllm", 0), ("llamacpp", 0)])
async def test_no_top_k_is_told_in_each_servers_own_way(remote, dialect, none):
    assert (await body_of(remote, dialect, chat("a")))["top_k"] == none


async def test_tgi_gets_no_top_p_of_one(remote):
    assert "top_p" not in await body_of(remote, "tgi", chat("a"))
    assert (await body_of(remote, "tgi", chat("a", top_p=0.5)))["top_p"] == 0.5


async def test_what_tgi_says_that_it_takes_is_refused_by_name_before_it_is_sent(remote):
    """Else it answers 200 and then an error."""
    engine, upstream = await remote("tgi")
    assert engine.info.max_input == engine.info.max_context == 8192
    await run(engine, chat("a", stop=tuple("123456")))
    upstream.most_input, upstream.most_stops = 100, 4
    engine, _ = await remote("tgi", at=upstream)
    assert (engine.info.max_input, engine.info.max_context) == (100, 8192)
    await run(engine, chat("a " * 90, stop=tuple("1234")))
    sent = len(upstream.bodies(CHAT))
    for request, code, param in [
        (chat("a", stop=tuple("12345")), "invalid_value", "stop"),
        (chat("a " * 100), "context_length_exceeded", "messages"),
    ]:
        with pytest.raises(InvalidRequestError) as caught:
            await engine.prepare(request)
        assert (caught.value.code, caught.value.param) == (code, param)
    assert len(upstream.bodies(CHAT)) == sent


@pytest.mark.parametrize(
    ("dialect", "unknown"), [("tgi", "top_k"), ("generic", "min_p"), ("llamacpp", "stop_token_ids")]
)
async def test_a_field_that_the_server_does_not_know_is_refused_by_name(remote, dialect, unknown):
    engine, _ = await remote(dialect)
    sampling = {"top_k": 3, "min_p": 0.5, "stop_token_ids": (1,)}
    with pytest.raises(InvalidRequestError) as caught:
        await engine.prepare(chat("a", **{unknown: sampling[unknown]}))
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", unknown)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
GUIDED = {
    "schema": Guidance(GuidanceKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    "loose": Guidance(GuidanceKind.JSON_SCHEMA, json.dumps(SCHEMA), strict=False),
    "object": Guidance(GuidanceKind.JSON_OBJECT),
    "regex": Guidance(GuidanceKind.REGEX, "[a-z]+", param="structured_outputs.regex"),
    "choice": Guidance(GuidanceKind.CHOICE, choices=("a.b", 'c "d"'), param="structured_outputs.choice"),
    "lark": Guidance(GuidanceKind.LARK, 'start: "x"', param="structured_outputs.grammar"),
}
OPENAI = {
    "schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
        }
    },
    "loose": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": SCHEMA, "strict": False},
        }
    },
    "object": {"response_format": {"type": "json_object"}},
}
ONE_OF = 'a\\.b|c "d"'
SENT = {
    "generic": OPENAI,
    "vllm": OPENAI
    | {
        "regex": {"structured_outputs": {"regex": "[a-z]+"}, "guided_regex": "[a-z]+"},
        "choice": {"structured_outputs": {"choice": ["a.b", 'c "d"']}, "guided_choice": ["a.b", 'c "d"']},
        "lark": {"structured_outputs": {"grammar": 'start: "x"'}, "guided_grammar": 'start: "x"'},
    },
    "sglang": OPENAI | {"regex": {"regex": "[a-z]+"}, "choice": {"regex": ONE_OF}},
    "llamacpp": OPENAI
    | {
        "object": {"response_format": {"type": "json_object", "schema": {"type": "object"}}},
        "choice": {"grammar": 'root ::= "a.b" | "c \\"d\\""'},
    },
    "tgi": {
        **{name: {"response_format": {"type": "json", "value": SCHEMA}} for name in ("schema", "loose")},
        "object": {"response_format": {"type": "json", "value": {"type": "object"}}},
        "regex": {"response_format": {"type": "regex", "value": "[a-z]+"}},
        "choice": {"response_format": {"type": "regex", "value": ONE_OF}},
    },
    "trtllm": {
        **{name: {"response_format": {"type": "json", "schema": SCHEMA}} for name in ("schema", "loose")},
        "object": {"response_format": {"type": "json_object"}},
        "regex": {"response_format": {"type": "regex", "regex": "[a-z]+"}},
        "choice": {"response_format": {"type": "regex", "regex": ONE_OF}},
    },
}


@pytest.mark.parametrize("kind", GUIDED)
@pytest.mark.parametrize("dialect", ALL)
async def test_guidance_is_sent_in_each_servers_own_way_or_refused_by_name(remote, dialect, kind):
    guidance = GUIDED[kind]
    request = chat("a", guidance=guidance)
    if (sent := SENT[dialect].get(kind)) is not None:
        body = await body_of(remote, dialect, request)
        assert {name: body.get(name) for name in sent} == sent
        plain = await body_of(remote, dialect, chat("a"))
        assert body.keys() - plain.keys() == sent.keys()
        return
    engine, upstream = await remote(dialect)
    with pytest.raises(InvalidRequestError) as caught:
        await engine.prepare(request)
    assert (caught.value.code, caught.value.param) == ("guidance_unsupported", guidance.param)
    assert not upstream.bodies(CHAT)


@pytest.mark.parametrize(
    ("guidance", "code"),
    [
        (Guidance(GuidanceKind.JSON_OBJECT, whitespace=""), "guidance_unsupported"),
        (Guidance(GuidanceKind.JSON_SCHEMA, "{"), "guidance_invalid"),
        (Guidance(GuidanceKind.JSON_SCHEMA, "[" * 100_000), "guidance_invalid"),
        (Guidance(GuidanceKind.CHOICE), "guidance_invalid"),
        (Guidance(GuidanceKind.REGEX, "x" * 300_000), "guidance_too_complex"),
    ],
)
async def test_guidance_that_no_server_takes_is_refused_before_it_is_sent(remote, guidance, code):
    engine, upstream = await remote("vllm")
    with pytest.raises(InvalidRequestError) as caught:
        await engine.prepare(chat("a", guidance=guidance))
    assert caught.value.code == code
    assert not upstream.bodies(CHAT)


@pytest.mark.parametrize("dialect", ["tgi", "generic"])
def test_a_shared_prefix_cache_is_the_operators_explicit_choice(dialect):
    options = {"model": "m", "dialect": dialect}
    with pytest.raises(ValueError, match="shared_prefixes"):
        check_remote("http://10.0.0.1", options)
    check_remote("http://10.0.0.1", options | {"shared_prefixes": True})
    check_remote("http://10.0.0.1", options | {"kinds": ["embedding"]})  # keeps no prefixes


@pytest.mark.parametrize("dialect", ALL)
async def test_info_says_what_differs(remote, dialect):
    engine, _ = await remote(dialect)
    info = engine.info
    assert info.shares_prefixes is (dialect in {"tgi", "generic"})
    assert info.can_extend is False
    assert info.details["dialect"] == dialect
    assert "shared" in info.details["prefix caches"] or not info.shares_prefixes


@pytest.mark.parametrize(("dialect", "old"), [("vllm", "0.8.5"), ("sglang", "0.4.9")])
async def test_a_server_too_old_for_salts_takes_no_work(remote, dialect, old):
    _, upstream = await remote(dialect)
    upstream.version = old
    second, _ = await remote(dialect, at=upstream, ready=False)

    async def is_known():
        return bool((await second.health()).detail)

    await until(is_known)
    health = await second.health()
    assert not health.ready
    assert old in health.detail
    await remote(dialect, at=upstream, options={"shared_prefixes": True})
    upstream.version = "0.1.dev7+gabc"
    await remote(dialect, at=upstream)


async def test_a_tokenizer_that_fails_costs_exactness_only(remote):
    engine, upstream = await remote()
    upstream.tokenizes = False
    prepared = await engine.prepare(chat("hello " * 50))
    assert not prepared.exact
    assert prepared.prompt_tokens >= 50
    assert prepared.most_prompt > prepared.prompt_tokens
    assert "estimated" in engine.info.details["prompts"]


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llamacpp"])
async def test_a_tokenizer_that_counts_again_is_said_to(remote, dialect, caplog):
    """Operators were told for ever that prompts are estimated."""
    engine, upstream = await remote(dialect)
    before = engine.info.details["prompts"]
    for _ in range(3):
        upstream.tokenizes = False
        await engine.prepare(chat("a"))
        if dialect == "vllm":
            await engine.prepare(replace(chat(""), messages=(), prompt=(1, 2)))  # counted without the server
        assert engine.info.details["prompts"].startswith("estimated: ")
        upstream.tokenizes = True
        await engine.prepare(chat("a"))
        assert engine.info.details["prompts"] == before
    assert caplog.text.count("prompts are estimated") == 1


async def test_what_a_template_says_by_itself_is_paid_for(remote):
    """SmolLM2's template adds a system message of some twenty tokens: `transformers serve` counts 40 for 36 bytes."""
    engine, _ = await remote("generic", usage={"prompt_tokens": 40, "completion_tokens": 1})
    request = chat("Name 3 animals, one after the other.", max_tokens=1)
    finished = end_of(await run(engine, request))
    assert (finished.usage.prompt, finished.exact) == (40, True)


async def test_a_tokenizer_that_hangs_is_not_waited_for_long(remote, monkeypatch):
    engine, upstream = await remote()
    monkeypatch.setattr("inference.clients.remote.pool.ASK_SECONDS", 0.05)
    upstream.tokenizer_hangs = True
    assert not (await engine.prepare(chat("hello"))).exact
    monkeypatch.undo()


async def test_an_estimate_never_refuses_what_may_fit(remote):
    engine, _ = await remote("generic")
    text = "internationalisation " * 1100  # 23 kB: some 2,300 tokens, by the cautious estimate 7,700
    prepared = await engine.prepare(chat(text))
    assert prepared.max_output == 4096
    with pytest.raises(InvalidRequestError):
        await engine.prepare(chat("x" * 100_000))


async def test_inputs_of_embeddings_are_counted_one_by_one_or_estimated(remote):
    engine, _ = await remote(options={"kinds": ["embedding"]})
    few = await engine.prepare(embedding("one two", "three", (1, 2, 3)))
    assert (few.prompt_tokens, few.exact, few.max_output) == (6, True, 0)
    many = await engine.prepare(embedding(*["some words"] * 40))
    assert not many.exact
    with pytest.raises(InvalidRequestError, match="chat"):
        await engine.prepare(chat("a"))


async def test_scores_come_in_the_order_of_the_pairs(remote):
    engine, upstream = await remote("vllm", options={"kinds": ["score"]})
    request = GenerationRequest(
        "r", "t", "d", kind=Kind.SCORE, queries=("what?",), inputs=("a" * 10, "b" * 25), truncate=True
    )
    prepared = await engine.prepare(request)
    assert not prepared.exact
    events = await run(engine, replace(request, id="s"))
    scores = [struct.unpack("<f", event.data)[0] for event in events if isinstance(event, Vector)]
    assert scores == pytest.approx([0.1, 0.25])
    assert end_of(events).usage.input == 11
    [body] = upstream.bodies("/v1/score")
    assert (body["text_1"], body["text_2"], body["truncate_prompt_tokens"]) == ("what?", ["a" * 10, "b" * 25], -1)
    assert engine.info.vector_width == 0


def test_a_server_without_scores_is_refused_by_name():
    with pytest.raises(ValueError, match="kinds: a server of dialect sglang isn't asked for scores"):
        check_remote("http://10.0.0.1", {"model": "m", "dialect": "sglang", "kinds": ["score"]})


def test_no_server_is_asked_for_labels():
    with pytest.raises(ValueError, match="kinds: foreign servers aren't asked for labels"):
        check_remote("http://10.0.0.1", {"model": "m", "dialect": "vllm", "kinds": ["classification"]})


async def test_truncation_is_asked_for_where_the_server_can(remote):
    engine, upstream = await remote(options={"kinds": ["embedding"]})
    await run(engine, embedding("one", truncate=True))
    assert upstream.bodies("/v1/embeddings")[0]["truncate_prompt_tokens"] == -1


async def test_the_key_travels_with_every_question(remote):
    engine, upstream = await remote(ready=False)
    upstream.key = "sk-upstream"
    second, _ = await remote(at=upstream, credential="sk-upstream")
    await run(second, chat("a"))
    assert not (await engine.health()).ready


async def test_health_follows_the_server(remote, monkeypatch):
    monkeypatch.setattr("inference.clients.remote.probe.READY_SECONDS", 0.01)
    monkeypatch.setattr("inference.clients.remote.probe.UNREADY_SECONDS", 0.01)
    engine, upstream = await remote()

    async def is_ready(wanted=True):
        return (await engine.health()).ready is wanted

    upstream.is_well = False
    await until(lambda: is_ready(False))
    assert (await engine.health()).reason == "is not well"
    assert "/" not in (await engine.health()).reason  # fit for clients
    upstream.is_well = True
    await until(is_ready)


async def test_a_server_that_cannot_list_its_models_has_another_probe(remote):
    """`transformers serve` answers /v1/models with 500 where it has no cache of a hub."""
    engine, upstream = await remote("generic", ready=False)
    upstream.is_well = False
    options = {"probe": "/v1/version", "max_context": 4096}
    second, _ = await remote("generic", at=upstream, options=options, ready=False)
    upstream.version_at = "/v1/version"

    async def is_ready():
        return (await second.health()).ready

    await until(is_ready)
    assert not (await engine.health()).ready
    assert second.info.max_context == 4096
    assert end_of(await run(second, chat("a"))).reason == "stop"


async def test_a_failed_request_makes_the_engine_look_at_once(remote, monkeypatch):
    monkeypatch.setattr("inference.clients.remote.probe.UNREADY_SECONDS", 0.01)
    engine, upstream = await remote(status=503)
    upstream.is_well = False
    for _ in range(2):
        with pytest.raises(Exception, match="takes no more"):
            await run(engine, chat("a"))

    async def is_unready():
        return not (await engine.health()).ready

    await until(is_unready)


@pytest.mark.parametrize("dialect", ALL)
async def test_the_system_message_is_sent_as_it_is(remote, dialect):
    messages = (Message("system", ("be brief",)), Message("user", ("a",)))
    body = await body_of(remote, dialect, replace(chat(""), messages=messages, sampling=SamplingParams()))
    assert body["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a"}]


LOOK = Message("user", ("Look:", Image("data:image/png;base64,AAAA", 320, 320, "low"), Image("https://example.com/a")))
LOOP = (
    Message("user", ("Rain?",)),
    Message("assistant", (Reasoning("Ask."), "Wait.", ToolCall("c1", "weather", "{}"), ToolCall("c2", "weather", ""))),
    Message("tool", (ToolResult("c1", ("yes",)), ToolResult("c2", ("no",)))),
    Message("assistant", (ToolCall("c3", "weather", "{}"),)),
)


@pytest.mark.parametrize("dialect", ALL)
async def test_a_tool_loop_is_sent_as_the_api_has_it(remote, dialect):
    def call(number, arguments="{}"):
        return {"id": number, "type": "function", "function": {"name": "weather", "arguments": arguments}}

    body = await body_of(remote, dialect, replace(chat(""), messages=LOOP))
    thought = {"reasoning_content": "Ask."} if dialect in {"vllm", "sglang"} else {}
    assert body["messages"] == [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "Wait.", "tool_calls": [call("c1"), call("c2", "")]} | thought,
        {"role": "tool", "tool_call_id": "c1", "content": "yes"},
        {"role": "tool", "tool_call_id": "c2", "content": "no"},
        {"role": "assistant", "content": None, "tool_calls": [call("c3")]},
    ]


@pytest.mark.parametrize("dialect", ALL)
async def test_values_of_the_chat_template_are_sent_or_refused_by_name(remote, dialect):
    request = replace(chat("a"), template_values=(("date_string", "today"), ("enable_thinking", False)))
    if dialect in {"vllm", "sglang", "llamacpp"}:
        body = await body_of(remote, dialect, request)
        assert body["chat_template_kwargs"] == {"date_string": "today", "enable_thinking": False}
        return
    engine, upstream = await remote(dialect)
    with pytest.raises(InvalidRequestError) as refused:
        await engine.prepare(request)
    assert refused.value.param == "chat_template_kwargs.date_string"
    await run(engine, replace(chat("a"), template_values=(("enable_thinking", False),)))
    [body] = upstream.bodies(CHAT)
    assert "chat_template_kwargs" not in body


OFF = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.mark.parametrize(
    ("thinking", "told"),
    [
        ({"effort": "low", "thinking_tokens": 1024}, {"reasoning_effort": "low"}),
        ({"effort": "minimal", "thinking_tokens": 256}, {"reasoning_effort": "low"}),
        ({"effort": "xhigh", "thinking_tokens": None}, {"reasoning_effort": "high"}),
        ({"effort": "none", "thinking_tokens": 0}, OFF),
        ({"thinking_tokens": 0}, OFF),
        ({"thinking_tokens": 1024}, {}),  # a bound that no server takes
    ],
)
@pytest.mark.parametrize("dialect", ALL)
async def test_how_long_to_think_is_told_to_the_server_or_to_the_client(remote, dialect, thinking, told):
    engine, upstream = await remote(dialect)
    takes = {"vllm": {*OFF, "reasoning_effort"}, "sglang": {*OFF, "reasoning_effort"}, "llamacpp": {*OFF}}
    is_told = bool(told) and told.keys() <= takes.get(dialect, set())
    wish = chat("a", thinking_asked=Asked.WISH, thinking_param="reasoning.effort", **thinking)
    assert (await engine.prepare(wish)).not_enforced == (() if is_told else ("reasoning.effort",))
    await run(engine, wish)
    [body] = upstream.bodies(CHAT)
    names = {"reasoning_effort", *OFF}
    assert {name: body[name] for name in names & body.keys()} == (told if is_told else {})


@pytest.mark.parametrize("dialect", ALL)
async def test_a_budget_of_thought_is_refused_by_the_name_of_its_field(remote, dialect):
    engine, _ = await remote(dialect)
    assert (await engine.prepare(chat("a", thinking_asked=Asked.NOT, thinking_tokens=0))).not_enforced == ()
    with pytest.raises(InvalidRequestError) as caught:
        await engine.prepare(chat("a", thinking_tokens=9, thinking_param="thinking_token_budget"))
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "thinking_token_budget")


@pytest.mark.parametrize(("dialect", "path"), [("vllm", "/tokenize"), ("llamacpp", "/apply-template")])
async def test_values_of_the_chat_template_are_counted(remote, dialect, path):
    engine, upstream = await remote(dialect)
    await engine.prepare(replace(chat("a"), template_values=(("date_string", "today"),)))
    [body] = upstream.bodies(path)
    assert body["chat_template_kwargs"] == {"date_string": "today"}


@pytest.mark.parametrize("dialect", ALL)
async def test_images_are_sent_and_counted_by_an_estimate(remote, dialect):
    engine, upstream = await remote(dialect, options={"images": "urls", "image_tokens": 1000})
    request = replace(chat(""), messages=(LOOK,))
    without = await engine.prepare(replace(chat(""), messages=(Message("user", ("Look:",)),)))
    prepared = await engine.prepare(request)
    assert prepared.prompt_tokens - without.prompt_tokens == 576 + 1000  # 20 × 20 patches are fewer
    assert not prepared.exact
    await run(engine, request)
    [body] = upstream.bodies(CHAT)
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "https://example.com/a"}},
            ],
        }
    ]


@pytest.mark.parametrize("images", ["none", "data"])
async def test_images_that_the_server_does_not_take_are_refused(remote, images):
    engine, upstream = await remote("vllm", options={"images": images})
    with pytest.raises(InvalidRequestError) as caught:
        await engine.prepare(replace(chat(""), messages=(LOOK,)))
    assert caught.value.code == "images_not_supported"
    assert not upstream.bodies(CHAT)


def test_an_image_counts_by_its_size():
    small, large, unknown = Image("data:", 10, 10), Image("data:", 1000, 1000), Image("https:")
    nothing = Count(0, 0)
    assert [nothing.plus_image(image, 2000).tokens for image in (small, large, unknown)] == [576, 2000, 2000]
    assert nothing.plus_image(large, 10_000).tokens == 63 * 63
    assert not nothing.plus_image(small, 1).is_exact


def test_names_are_unique():
    assert list(DIALECTS) == ALL
    assert {kind.value for kind in Kind} == {"chat", "embedding", "score", "classification"}


async def test_a_drain_lets_requests_end_and_takes_no_new_ones(remote):
    engine, upstream = await remote(stall_at=2)
    task = asyncio.create_task(run(engine, chat("a b")))
    await upstream.until(lambda: upstream.running)
    draining = asyncio.create_task(engine.drain(5))
    await asyncio.sleep(0)
    with pytest.raises(Exception, match="about to be closed"):
        await engine.prepare(chat("late"))
    upstream.released.set()
    assert end_of(await task).reason == "stop"
    await draining


async def test_options_are_checked_when_it_is_opened():
    with pytest.raises(ValueError, match="model"):
        open_engine(EngineSpec("d", "openai", "http://10.0.0.1", {}))
    with pytest.raises(ValueError, match="address"):
        open_engine(EngineSpec("d", "openai", "10.0.0.1:8000", {"model": "m", "dialect": "vllm"}))


async def test_a_traced_call_is_sent_on_and_another_is_not(remote):
    engine, upstream = await remote()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    token = traceparent.set(trace)
    await run(engine, chat("a b"))
    traceparent.reset(token)
    assert upstream.heads[-1].get("traceparent") == trace
    await run(engine, chat("a b"))
    assert "traceparent" not in upstream.heads[-1]


@pytest.mark.parametrize(
    ("dialect", "taken"),
    [
        ("vllm", {"repetition_penalty": 1.2, "min_tokens": 2, "logit_bias": {"7": -1.0}}),
        ("llamacpp", {"repeat_penalty": 1.2, "logit_bias": {"7": -1.0}}),
        ("generic", {"logit_bias": {"7": -1.0}}),
    ],
)
async def test_sampling_is_sent_in_each_servers_words(remote, dialect, taken):
    names = {"repetition_penalty": 1.2, "min_tokens": 2, "logit_bias": ((7, -1.0),)}
    own = {name: value for name, value in names.items() if name in DIALECTS[dialect].extras}
    body = await body_of(remote, dialect, chat("a", presence_penalty=0.5, frequency_penalty=-0.5, **own))
    assert {name: body[name] for name in taken} == taken
    assert (body["presence_penalty"], body["frequency_penalty"]) == (0.5, -0.5)


@pytest.mark.parametrize("most", [0, 2])
@pytest.mark.parametrize("dialect", ALL)
async def test_log_probabilities_come_with_their_tokens(remote, dialect, most):
    engine, upstream = await remote(dialect)
    request = chat(" ".join(["a", "b", "c"] * 20), logprobs=most)
    if dialect == "generic":  # it may take the field, and do nothing
        with pytest.raises(InvalidRequestError, match="'logprobs' is not supported"):
            await engine.prepare(request)
        return
    events = await run(engine, request)
    told = [entry for event in events if isinstance(event, Delta) for entry in event.logprobs]
    assert "".join(entry.chosen.text for entry in told) == text_of(events)
    assert {(entry.chosen.logprob, entry.rank) for entry in told} == {(-0.5, 1)}
    assert {tuple(token.logprob for token in entry.top) for entry in told} == {(-0.5, -1.5)[:most]}
    [body] = upstream.bodies(CHAT)
    assert (body["logprobs"], body["top_logprobs"]) == (True, most)
    with pytest.raises(InvalidRequestError) as caught:
        await engine.prepare(replace(request, id="raw", messages=(), prompt="a"))
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "logprobs")
    plain = await run(engine, chat("a b"))
    assert not any(event.logprobs for event in plain if isinstance(event, Delta))


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("field", [{"best_of": 2}, {"prompt_logprobs": 0}])
async def test_what_no_foreign_server_is_asked_for_is_named(remote, dialect, field):
    engine, _ = await remote(dialect)
    with pytest.raises(InvalidRequestError) as caught:
        await engine.prepare(chat("a", **field))
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", next(iter(field)))


@pytest.mark.parametrize(
    ("dialect", "sent"),
    [
        ("vllm", {"continue_final_message": True, "add_generation_prompt": False}),
        ("sglang", {"continue_final_message": True}),
        ("llamacpp", {"chat_template_kwargs": {"enable_thinking": False}}),  # it refuses to think behind a beginning
        ("tgi", None),
        ("trtllm", None),
        ("generic", None),
    ],
)
async def test_a_message_is_gone_on_with_where_the_server_can(remote, dialect, sent):
    begun = (Message("user", ("a",)), Message("assistant", ("b ",)))
    request = replace(chat("", thinking_tokens=0), messages=begun, continues="continue_final_message")
    engine, upstream = await remote(dialect)
    if sent is None:
        with pytest.raises(InvalidRequestError) as caught:
            await engine.prepare(request)
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "continue_final_message")
        return
    await run(engine, request)
    [body] = upstream.bodies(CHAT)
    assert sent.items() <= body.items()
    assert body["messages"][-1] == {"role": "assistant", "content": "b "}
    if dialect == "vllm":  # its prompt is counted as it will be
        [counted] = upstream.bodies("/tokenize")
        assert sent.items() <= counted.items()
    await run(engine, chat("a"))
    assert not {"continue_final_message", "add_generation_prompt"} & upstream.bodies(CHAT)[-1].keys()


@pytest.mark.parametrize("dialect", ALL)
async def test_answers_to_raw_prompts_are_guided_by_vllm_alone(remote, dialect):
    engine, _ = await remote(dialect)
    guidance = Guidance(GuidanceKind.JSON_OBJECT, param="structured_outputs")
    request = replace(chat("", guidance=guidance), messages=(), prompt="a")
    if dialect == "vllm":
        await engine.prepare(request)
        return
    with pytest.raises(InvalidRequestError) as caught:
        await engine.prepare(request)
    assert (caught.value.code, caught.value.param) == ("guidance_unsupported", "structured_outputs")


@pytest.mark.parametrize(("prompt", "sent", "tokens"), [("a b", "a b", 2), ((5, 6), [5, 6], 2)])
async def test_a_raw_prompt_goes_to_completions(remote, prompt, sent, tokens):
    engine, upstream = await remote("vllm")
    request = replace(chat(""), messages=(), prompt=prompt)
    prepared = await engine.prepare(request)
    assert (prepared.prompt_tokens, prepared.exact) == (tokens, True)
    events = await run(engine, request)
    [body] = upstream.bodies("/v1/completions")
    assert body["prompt"] == sent
    assert "messages" not in body
    assert text_of(events) == (sent if isinstance(sent, str) else "5 6")
    assert (end_of(events).reason, end_of(events).usage.prompt) == (FinishReason.STOP, tokens)


def raw(prompt):
    return replace(chat(""), messages=(), prompt=prompt)


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llamacpp"])
async def test_tokens_are_asked_of_the_server(remote, dialect):
    engine, upstream = await remote(dialect)
    tokens = await engine.tokenize(raw("one two one "), special=False, with_texts=True)
    assert tokens.ids == (0, 1, 0)
    assert tokens.texts == (("t0", "t1", "t0") if dialect == "vllm" else ())
    body = upstream.bodies("/tokenize")[-1]
    assert body["add_special" if dialect == "llamacpp" else "add_special_tokens"] is False
    assert await engine.detokenize(raw((1, 0))) == "two one "
    if dialect == "sglang":
        with pytest.raises(InvalidRequestError) as caught:
            await engine.tokenize(chat("a"))
        assert (caught.value.code, caught.value.param) == ("tokenize_not_supported", "model")
    else:
        prepared = await engine.prepare(chat("a b"))
        assert len((await engine.tokenize(chat("a b"))).ids) == prepared.prompt_tokens


@pytest.mark.parametrize("dialect", ["tgi", "trtllm", "generic"])
async def test_a_server_that_tells_no_tokens_is_refused_by_name(remote, dialect):
    engine, _ = await remote(dialect)
    for asked in (engine.tokenize(raw("x")), engine.detokenize(raw((1,)))):
        with pytest.raises(InvalidRequestError) as caught:
            await asked
        assert caught.value.code == "tokenize_not_supported"


async def test_a_server_without_its_endpoint_for_tokens_is_refused_by_name(remote):
    engine, upstream = await remote("vllm")
    upstream.tokenizes = False
    with pytest.raises(InvalidRequestError) as caught:
        await engine.tokenize(raw("x"))
    assert caught.value.code == "tokenize_not_supported"


async def test_adapters_are_refused_before_anything_is_sent(remote):
    engine, upstream = await remote()
    with pytest.raises(InvalidRequestError, match="takes no adapters") as caught:
        await engine.prepare(replace(chat("hi"), adapter="law"))
    assert (caught.value.code, caught.value.param) == ("unknown_adapter", "model")
    assert not upstream.bodies(CHAT)
