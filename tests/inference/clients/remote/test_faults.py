"""Servers that stall, die, forget, lie, refuse, babble and trickle."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from contextlib import aclosing

import pytest

from inference.clients.remote.addresses import ForbiddenAddressError
from inference.clients.remote.faults import AskError, DeniedError, UnclearError, reason_of
from inference.clients.remote.pool import pool_of
from inference.errors import InvalidRequestError, OverloadedError, UnreachableError
from inference.types import CallPiece, Delta, FinishReason, Guidance, GuidanceKind, Lost, NothingRan, Started, Usage
from tests.inference.engine_contract import chat, collect, embedding, end_of, run, text_of
from tests.upstream import Plan

COUNTING = ["trtllm", "llamacpp"]
COUNTING_BUT_CACHED = ["vllm", "sglang"]


async def fails(engine, request, error):
    with pytest.raises(error) as caught:
        await run(engine, request)
    return caught.value


@pytest.mark.parametrize("dialect", COUNTING)
async def test_a_stream_that_dies_is_charged_exactly_where_the_server_counts_all_along(remote, dialect):
    engine, upstream = await remote(dialect, die_at=4)
    request = chat("a b c d e f")
    events = await run(engine, request)
    finished = end_of(events)
    assert (finished.reason, finished.error.code, finished.error.retryable) == ("error", "engine_stopped", True)
    assert finished.usage.completion == upstream.served[request.id]["completion"] == 3
    assert finished.usage.prompt == upstream.served[request.id]["prompt"]
    assert (finished.exact, finished.is_estimate) == (True, False)
    assert text_of(events) == "a b c"


@pytest.mark.parametrize("dialect", COUNTING_BUT_CACHED)
@pytest.mark.parametrize("cached", [6, 0, None])
async def test_a_stream_that_dies_before_cached_tokens_are_told_is_an_estimate(remote, dialect, cached):
    """It is charged as if nothing were cached, the most that it can have cost; read to its end it is exact."""
    engine, upstream = await remote(dialect, cached=cached)
    upstream.plans = [Plan(die_at=4, cached=cached)]
    request = chat("a b c d e f")
    finished = end_of(await run(engine, request))
    assert (finished.usage, finished.exact, finished.is_estimate) == (Usage(input=10, output=3), False, True)
    assert await engine.usage_of(request.id) == Lost()
    whole = end_of(await run(engine, chat("a b c d e f")))
    told = cached or 0
    assert (whole.usage, whole.exact) == (Usage(input=10 - told, cache_read=told, output=6), True)


async def test_a_stream_that_ends_without_a_word_of_cached_tokens_is_exact(remote):
    """A server that tells them tells them by then."""
    engine, _ = await remote("vllm", cached=6, says_usage=False)
    finished = end_of(await run(engine, chat("a b c d e f")))
    assert (finished.usage, finished.exact) == (Usage(input=10, output=6), True)


@pytest.mark.parametrize("says_usage", [True, False])
async def test_usage_that_was_told_needs_no_end_mark(remote, monkeypatch, says_usage):
    monkeypatch.setattr("inference.clients.remote.run.USAGE_SECONDS", 0.05)
    engine, _ = await remote("vllm", cached=None, lingers=True, says_usage=says_usage)
    finished = end_of(await run(engine, chat("a b c")))
    assert (finished.reason, finished.usage.completion, finished.exact) == (FinishReason.STOP, 3, says_usage)


@pytest.mark.parametrize("dialect", ["tgi", "generic"])
async def test_it_is_counted_and_marked_an_estimate_where_the_server_counts_at_the_end(remote, dialect):
    engine, _ = await remote(dialect, die_at=4)
    request = chat("a b c d e f")
    finished = end_of(await run(engine, request))
    assert (finished.reason, finished.exact, finished.is_estimate) == ("error", False, True)
    assert finished.usage.completion == 3
    assert await engine.usage_of(request.id) == Lost()


async def test_a_prompt_whose_size_the_server_never_says_is_charged_as_is_likely(remote):
    """Credit is held for a cautious guess; charged is less."""
    engine, _ = await remote("generic", die_at=2)
    request = chat("word " * 200)
    prepared = await engine.prepare(request)
    finished = end_of(await run(engine, request))
    assert 200 < finished.usage.prompt < 0.8 * prepared.prompt_tokens


async def test_a_proper_end_of_the_stream_within_the_answer_is_a_cut_all_the_same(remote):
    engine, _ = await remote(end_at=3)
    finished = end_of(await run(engine, chat("a b c d")))
    assert (finished.reason, finished.error.code, finished.usage.completion) == ("error", "engine_stopped", 2)


async def test_a_server_that_counts_is_believed_after_a_cancel(remote):
    engine, _ = await remote("generic", stall_at=3)
    request = chat("a b c d")
    events = []
    async for event in engine.generate(await engine.prepare(request), 100, True):
        events.append(event)
        if isinstance(event, Delta) and event.usage.completion == 2:
            await engine.cancel(request.id)
    finished = end_of(events)
    assert (finished.reason, finished.is_estimate, finished.usage.completion) == ("cancelled", True, 2)


async def test_nothing_of_an_answer_is_left_for_the_loop_to_close(remote):
    """The loop closes a generator that was dropped in a task of its own, and wakes itself up for that."""
    engine, _ = await remote()
    left = []
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(finalizer=left.append)
    try:
        await run(engine, chat("a b c d"))
        async with aclosing(engine.generate(await engine.prepare(chat("a b c d")), 100, True)) as events:
            async for _ in events:
                break  # its client left
    finally:
        sys.set_asyncgen_hooks(*hooks)
    assert left == []


async def test_a_cancel_closes_the_connection_within_a_token(remote):
    engine, upstream = await remote(stall_at=4)
    request = chat("a b c d e")
    task = asyncio.create_task(run(engine, request))
    await upstream.until(lambda: upstream.served.get(request.id, {}).get("completion") == 3)
    await engine.cancel(request.id)
    finished = end_of(await task)
    assert finished.reason is FinishReason.CANCELLED
    await upstream.until(lambda: request.id in upstream.aborted)
    assert not upstream.running


async def test_closing_the_iterator_closes_the_connection(remote):
    engine, upstream = await remote(stall_at=3)
    request = chat("a b c d")
    async with aclosing(engine.generate(await engine.prepare(request), 100, True)) as events:
        async for event in events:
            if isinstance(event, Delta) and event.usage.completion == 2:
                break
    await upstream.until(lambda: request.id in upstream.aborted)


async def test_a_cancel_ends_a_request_whose_head_never_comes(remote):
    engine, upstream = await remote(hang_before=True)
    request = chat("a")
    task = asyncio.create_task(run(engine, request))
    await upstream.until(lambda: request.id in upstream.running)
    await engine.cancel(request.id)
    finished = end_of(await task)
    assert finished.reason is FinishReason.CANCELLED
    await upstream.until(lambda: request.id in upstream.aborted)


@pytest.mark.parametrize("closes", [True, False], ids=["iterator closed", "cancelled"])
async def test_a_prompt_costs_nothing_when_its_client_leaves_before_the_answer_begins(remote, closes):
    """Nothing shows that the server computed any of it."""
    engine, upstream = await remote("generic", hang_before=True)
    request = chat("word " * 200)
    prepared = await engine.prepare(request)
    events = []

    async def read():
        async with aclosing(engine.generate(prepared, 100, True)) as stream:
            events.extend([event async for event in stream])

    task = asyncio.create_task(read())
    await upstream.until(lambda: request.id in upstream.running)
    if closes:
        task.cancel()
        await asyncio.wait([task])
    else:
        await engine.cancel(request.id)
        await task
        [finished] = events
        assert (finished.reason, finished.exact, finished.is_estimate) == (FinishReason.CANCELLED, False, False)
        assert finished.usage == Usage()
    assert await engine.usage_of(request.id) == Lost()


async def test_a_request_that_still_waits_for_its_connection_is_charged_nothing(remote, monkeypatch):
    engine, upstream = await remote("generic")
    connecting = asyncio.Event()

    async def connect(seconds):
        connecting.set()
        await asyncio.Event().wait()

    request = chat("word")
    prepared = await engine.prepare(request)
    monkeypatch.setattr(engine._pool, "kept", lambda: None)
    monkeypatch.setattr(engine._pool, "connect", connect)
    task = asyncio.create_task(collect(engine.generate(prepared, 100, True)))
    await connecting.wait()
    await engine.cancel(request.id)
    finished = end_of(await task)
    assert (finished.reason, finished.usage, finished.exact) == (FinishReason.CANCELLED, Usage(), True)
    assert not upstream.bodies("/v1/chat/completions")


async def test_a_stall_ends_in_a_time_out_and_closes_the_connection(remote):
    engine, upstream = await remote("trtllm", options={"idle_seconds": 1.0}, stall_at=3)
    request = chat("a b c d")
    finished = end_of(await run(engine, request))
    assert (finished.error.code, finished.usage.completion, finished.exact) == ("engine_unreachable", 2, True)
    await upstream.until(lambda: request.id in upstream.aborted)


async def test_comments_for_ever_are_no_sign_of_an_answer(remote):
    engine, upstream = await remote(options={"first_seconds": 0.1}, pings_for_ever=True)
    request = chat("a")
    await fails(engine, request, UnreachableError)
    await upstream.until(lambda: request.id in upstream.aborted)


async def test_a_head_that_never_comes_is_the_endpoints_fault(remote):
    engine, _ = await remote(options={"first_seconds": 0.05}, hang_before=True)
    await fails(engine, chat("a"), UnreachableError)


async def test_a_trickle_is_read_whole(remote):
    engine, _ = await remote(in_bytes=1, pings=3)
    events = await run(engine, chat("ä bc €"))
    assert text_of(events) == "ä bc €"
    assert end_of(events).usage.completion == 3


async def test_several_tokens_in_an_event_are_counted_by_the_server(remote):
    engine, _ = await remote(at_once=3)
    events = await run(engine, chat("a b c d e f g"))
    counts = [event.usage.completion for event in events if isinstance(event, Delta)]
    assert counts[-1] == 7
    assert set(counts) <= {3, 6, 7}  # what arrives together is one Delta
    assert end_of(events).exact


async def test_a_server_that_forgets_its_usage_is_counted(remote):
    engine, _ = await remote("generic", says_usage=False)
    finished = end_of(await run(engine, chat("a b c")))
    assert (finished.reason, finished.is_estimate, finished.usage.completion) == (FinishReason.STOP, True, 3)


async def test_long_events_count_for_more_than_one_token(remote):
    engine, _ = await remote("generic", says_usage=False, at_once=50)
    finished = end_of(await run(engine, chat(" ".join(["words"] * 50))))
    assert finished.usage.completion == 50  # 299 bytes


async def test_a_server_that_forgets_to_end_is_not_waited_for(remote, monkeypatch):
    monkeypatch.setattr("inference.clients.remote.run.USAGE_SECONDS", 0.05)
    engine, upstream = await remote("generic", lingers=True)
    request = chat("a b c")
    finished = end_of(await run(engine, request))
    assert (finished.reason, finished.exact) == (FinishReason.STOP, True)
    await upstream.until(lambda: request.id in upstream.aborted)


@pytest.mark.parametrize(
    "told",
    [
        {"prompt_tokens": 7, "completion_tokens": 10**6},  # more than was asked for
        {"prompt_tokens": 10**6, "completion_tokens": 3},  # more than the prompt can have
        {"prompt_tokens": 7, "completion_tokens": -3},
        {"prompt_tokens": 7, "completion_tokens": "3"},
        {"prompt_tokens": 7, "completion_tokens": True},
        {"prompt_tokens": 7, "completion_tokens": 0},  # although there was text
        {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}},
        {"prompt_tokens": 7, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 4}},
        {"prompt_tokens": 0, "completion_tokens": 3},
    ],
)
async def test_wrong_usage_is_not_believed_and_never_charged_beyond_what_is_held(remote, told):
    engine, _ = await remote("generic", usage=told)
    request = chat("a b c", max_tokens=5)
    prepared = await engine.prepare(request)
    finished = end_of(await run(engine, request))
    assert finished.is_estimate
    assert finished.usage.prompt <= prepared.most_prompt
    assert finished.usage.completion == 3
    assert finished.findings
    assert engine.info.details["found"] == ", ".join(finished.findings), "operators are told which server it is"


async def test_a_server_that_goes_on_beyond_max_tokens_is_cut_off(remote):
    engine, upstream = await remote(obeys=False)
    request = chat("a b c", ignore_eos=True)
    events = await run(engine, request, allowance=4)
    finished = end_of(events)
    assert (finished.reason, finished.usage.completion) == (FinishReason.ALLOWANCE, 4)
    await upstream.until(lambda: request.id in upstream.aborted)


def adds(text, reason=None):
    """An event that adds `text`."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


STREAM = {"content-type": "text/event-stream"}
MORE = b"".join(adds(f" w{number}") for number in range(20_000))


@pytest.mark.parametrize("more", [MORE, adds(" w"), adds("", "stop") + MORE], ids=["many", "one", "a second end"])
async def test_what_follows_the_end_of_an_answer_is_neither_delivered_nor_charged(remote, more):
    """All of it was delivered, and charged was what had been asked for."""
    engine, _ = await remote("generic", body=adds("a") + adds(" b", "stop") + more, headers=STREAM)
    events = await run(engine, chat("x", max_tokens=5))
    finished = end_of(events)
    assert text_of(events) == "a b"
    assert (finished.reason, finished.usage.completion, finished.is_estimate) == (FinishReason.STOP, 2, True)
    assert not engine._pool._busy


async def test_a_server_that_goes_on_beyond_max_tokens_delivers_one_event_more(remote):
    """However much of it arrives together."""
    engine, _ = await remote("generic", body=adds("a") + MORE, headers=STREAM)
    events = await run(engine, chat("x", max_tokens=5))
    assert text_of(events) == "a w0 w1 w2 w3 w4"
    assert (end_of(events).reason, end_of(events).usage.completion) == (FinishReason.LENGTH, 5)


async def test_an_event_that_adds_nothing_may_follow_the_end_of_an_answer(remote):
    body = adds("a", "stop") + adds("") + adds("", "stop") + b"data: [DONE]\n\n"
    engine, _ = await remote("generic", body=body, headers=STREAM)
    events = await run(engine, chat("x"))
    assert (text_of(events), end_of(events).reason) == ("a", FinishReason.STOP)


@pytest.mark.parametrize("dialect", ["vllm", "generic"])
async def test_connections_are_kept_from_one_answer_to_the_next(remote, dialect):
    engine, upstream = await remote(dialect, ends_late=True)
    for _ in range(5):
        assert end_of(await run(engine, chat("a b c"))).reason is FinishReason.STOP
        upstream.released.set()
        async with asyncio.timeout(60):
            while engine._pool._busy:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
    assert len(upstream.connections) == 1


async def test_null_is_not_zero(remote):
    """What a later event doesn't say leaves what an earlier one said; a zero is said."""
    engine, _ = await remote("trtllm", cached=3, usage={"prompt_tokens": 5, "completion_tokens": 1})
    events = await run(engine, chat("a"))
    assert events[0] == Started(3)
    assert end_of(events).usage == Usage(input=2, cache_read=3, output=1)
    engine, _ = await remote(
        "trtllm",
        cached=3,
        usage={"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
    )
    assert end_of(await run(engine, chat("a"))).usage == Usage(input=5, output=1)
    engine, _ = await remote("vllm", cached=None)
    finished = end_of(await run(engine, chat("a")))
    assert (finished.usage, finished.exact) == (Usage(input=5, output=1), True)


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "generic"])
async def test_thought_is_a_class_of_its_own_and_no_text(remote, dialect):
    engine, _ = await remote(dialect, reasoning=2)
    events = await run(engine, chat("a b c"))
    assert text_of(events) == "a b c"
    assert "".join(event.reasoning for event in events if isinstance(event, Delta)) == "hm0hm1"
    assert end_of(events).usage == Usage(input=end_of(events).usage.input, output=3, reasoning=2)


async def test_garbage_in_mid_stream_ends_it(remote):
    engine, _ = await remote(garbage_at=3)
    finished = end_of(await run(engine, chat("a b c")))
    assert (finished.error.code, finished.usage.completion) == ("engine_error", 2)


@pytest.mark.parametrize(
    "body", [b"<html>hello</html>", b"data: 17\n\n", b'data: {"choices": 3}\n\n', b"x" * (2 << 20)]
)
async def test_an_answer_that_is_no_stream_is_the_endpoints_fault(remote, body):
    engine, _ = await remote(body=body)
    await fails(engine, chat("a"), UnreachableError)


async def test_an_error_event_before_the_first_token_refuses_the_request(remote):
    engine, _ = await remote(error_at=1)
    assert (await fails(engine, chat("a"), UnreachableError)).code == "engine_unreachable"
    engine, _ = await remote(error_at=2)
    assert end_of(await run(engine, chat("a b"))).error.code == "row_failed"
    engine, _ = await remote(body=b'data: {"error": {"message": "no"}}\n\n')
    request = chat("a")
    assert (await fails(engine, request, UnreachableError)).code == "row_failed"
    assert await engine.usage_of(request.id) == Lost(), "it may have computed the prompt"


def says(error, **more):
    """The body of an answer whose first event is this error."""
    return b"data: " + json.dumps({"error": error} | more).encode() + b"\n\ndata: [DONE]\n\n"


TOO_LONG = {"object": "error", "message": "longer than the model's context length (8192).", "type": "BadRequestError"}
TGI_TOO_LONG = "Input validation error: `inputs` must have less than 3000 tokens. Given: 3500"
LLAMACPP_TOO_LONG = (
    b'error: {"code":400,"message":"the request exceeds the available context size","type":"invalid_request_error"}\n\n'
)
INVALID = [
    ("sglang", says(TOO_LONG | {"code": 400}), "context_length_exceeded"),
    ("sglang", says({"message": "no such grammar", "type": "BadRequestError"}), "invalid_request"),
    ("generic", says({"message": "no such tool", "type": "invalid_request_error", "code": None}), "invalid_request"),
    ("generic", says({"message": "no such tool", "status": 422}), "invalid_request"),
    ("tgi", says(TGI_TOO_LONG, error_type="validation"), "context_length_exceeded"),
    ("tgi", says({"message": TGI_TOO_LONG, "http_status_code": 422}), "context_length_exceeded"),
    ("tgi", says("Template error: no such role", error_type="template_error"), "invalid_request"),
    ("tgi", says({"message": "Tool error: no such tool", "http_status_code": 422}), "invalid_request"),
    ("llamacpp", LLAMACPP_TOO_LONG, "context_length_exceeded"),
]
OTHERS = [
    ("tgi", says("Model is overloaded", error_type="overloaded"), OverloadedError, "engine_overloaded"),
    ("tgi", says({"message": "Model is overloaded", "http_status_code": 422}), OverloadedError, "engine_overloaded"),
    ("tgi", says("CUDA error", error_type="generation"), UnreachableError, "row_failed"),
    (
        "tgi",
        says({"message": "Request failed during generation: CUDA error", "http_status_code": 422}),
        UnreachableError,
        "row_failed",
    ),
    ("tgi", says("CUDA error", error_type={"a": 1}), UnreachableError, "row_failed"),
    ("sglang", says({"message": "aborted", "code": 503}), OverloadedError, "engine_overloaded"),
    ("sglang", says({"message": "CUDA error", "code": 500}), UnreachableError, "engine_unreachable"),
    ("generic", says({"message": "no credits on account CUDA", "code": 402}), DeniedError, "engine_unavailable"),
    ("generic", says({"message": "wrong key CUDA", "code": 401}), OverloadedError, "engine_unavailable"),
    ("generic", says({"message": "CUDA error", "code": "oops", "type": ["x"]}), UnreachableError, "row_failed"),
    ("generic", says("CUDA error"), UnreachableError, "row_failed"),
]


@pytest.mark.parametrize(("dialect", "body", "code"), INVALID)
async def test_a_stream_that_begins_with_the_requests_fault_refuses_it_and_says_why(remote, dialect, body, code):
    """Several servers answer 200 before they look at a request, and a 503 said that they had failed."""
    engine, upstream = await remote(dialect, body=body)
    request = chat("a")
    error = await fails(engine, request, InvalidRequestError)
    assert error.code == code
    assert error.message in body.decode()
    assert await engine.usage_of(request.id) == NothingRan()
    assert len(upstream.bodies("/v1/chat/completions")) == 1


@pytest.mark.parametrize(("dialect", "body", "kind", "code"), OTHERS)
async def test_a_stream_that_begins_with_any_other_error_is_no_fault_of_the_request(remote, dialect, body, kind, code):
    engine, _ = await remote(dialect, body=body)
    error = await fails(engine, chat("a"), kind)
    assert error.code == code
    assert "CUDA" not in error.message


async def test_a_stream_of_vllms_that_begins_with_400_leaves_open_whose_fault_it_is(remote):
    """It says so of everything: nobody is told of it, and what ran isn't known."""
    engine, _ = await remote("vllm", body=says({"message": "CUDA error", "type": "BadRequestError", "code": 400}))
    request = chat("a")
    error = await fails(engine, request, UnclearError)
    assert "CUDA" not in error.message
    assert await engine.usage_of(request.id) == Lost()


SILENT = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {}}], "usage": {"prompt_tokens": 4, "completion_tokens": 0}},
]


@pytest.mark.parametrize("event", SILENT, ids=["a role", "usage"])
@pytest.mark.parametrize(
    ("dialect", "error", "kind"),
    [
        ("sglang", {"message": "no such grammar", "type": "BadRequestError"}, InvalidRequestError),
        ("tgi", {"message": "Model is overloaded", "http_status_code": 422}, OverloadedError),
        ("generic", {"message": "no credits", "code": 402}, DeniedError),
        ("vllm", {"message": "it may be anything", "code": 400}, UnclearError),
        ("llamacpp", "CUDA error", UnreachableError),
    ],
)
async def test_an_error_behind_events_without_output_counts_as_if_it_came_first(remote, dialect, error, kind, event):
    """Some servers open a stream before they look at a request: nothing was delivered, and another may answer it."""
    opening = b"data: " + json.dumps(event).encode() + b"\n\n"
    engine, _ = await remote(dialect, body=opening + says(error), headers=STREAM)
    await fails(engine, chat("a"), kind)


async def test_an_answer_that_ends_without_output_is_one(remote):
    body = b"data: " + json.dumps(SILENT[0]).encode() + b"\n\n" + adds("", "stop") + b"data: [DONE]\n\n"
    engine, _ = await remote("generic", body=body, headers=STREAM)
    [started, finished] = await run(engine, chat("a"))
    assert (started, finished.reason) == (Started(0), FinishReason.STOP)


@pytest.mark.parametrize("status", [400, 409, 413, 415, 422, 431, 451])
async def test_4xx_is_the_requests_fault_and_says_why(remote, status):
    engine, _ = await remote(status=status, body=json.dumps({"error": {"message": "bad stop"}}).encode())
    request = chat("a")
    error = await fails(engine, request, InvalidRequestError)
    assert (error.message, error.code) == ("bad stop", "invalid_request")
    assert await engine.usage_of(request.id) == NothingRan()


async def test_a_prompt_that_the_server_finds_too_long_is_told_as_such(remote):
    said = {"object": "error", "message": "This model's maximum context length is 8 tokens."}
    engine, _ = await remote(status=400, body=json.dumps(said).encode())
    assert (await fails(engine, chat("a"), InvalidRequestError)).code == "context_length_exceeded"


async def test_a_key_of_ours_that_the_server_repeats_is_told_to_nobody(remote):
    said = json.dumps({"error": {"message": "bad request by key sk-ours-0123: no."}}).encode()
    engine, _ = await remote(status=400, body=said, credential="sk-ours-0123")
    error = await fails(engine, chat("a"), InvalidRequestError)
    assert (error.message, str(error)) == ("bad request by key …: no.",) * 2


async def test_a_key_of_ours_is_told_to_nobody_where_the_server_refuses_to_count(remote, monkeypatch):
    engine, _ = await remote(credential="sk-ours-0123")

    async def refuse(_, path, __):
        raise AskError(400, path, json.dumps({"error": {"message": "no, sk-ours-0123"}}).encode())

    monkeypatch.setattr(engine._pool, "ask", refuse)
    with pytest.raises(InvalidRequestError) as caught:
        await engine.prepare(chat("a"))
    assert str(caught.value) == "no, …"


@pytest.mark.parametrize(("status", "code"), [(429, "engine_overloaded"), (503, "engine_overloaded")])
async def test_429_and_503_mean_busy(remote, status, code):
    engine, upstream = await remote(status=status)
    assert (await fails(engine, chat("a"), OverloadedError)).code == code
    assert len(upstream.bodies("/v1/chat/completions")) == 1  # nothing is sent a second time


@pytest.mark.parametrize("status", [424, 500, 502, 504])
async def test_5xx_leaves_open_what_ran(remote, status):
    engine, upstream = await remote(status=status, body=b"/srv/secret/path")
    request = chat("a")
    error = await fails(engine, request, UnreachableError)
    assert "secret" not in error.message
    assert await engine.usage_of(request.id) != NothingRan()
    assert len(upstream.bodies("/v1/chat/completions")) == 1


@pytest.mark.parametrize("status", [401, 403, 404, 405])
async def test_a_deployment_that_is_set_up_wrongly_is_not_the_clients_fault(remote, status):
    engine, _ = await remote(status=status, body=b'{"error": {"message": "wrong key sk-123"}}')
    error = await fails(engine, chat("a"), OverloadedError)
    assert error.code == "engine_unavailable"
    assert "sk-123" not in error.message


@pytest.mark.parametrize("status", [406, 412, 418, 444, 499])
async def test_another_4xx_is_the_requests_fault_without_its_words(remote, status):
    """A filter in front of the server may say so of what somebody asks, and it kept the server from everybody."""
    engine, _ = await remote(status=status, body=b'{"error": {"message": "filter of account acme-prod"}}')
    request = chat("a")
    error = await fails(engine, request, InvalidRequestError)
    assert error.message == "The engine refused the request."
    assert await engine.usage_of(request.id) == NothingRan()


@pytest.mark.parametrize("status", [402, 410, 421, 423, 426])
async def test_what_is_the_operators_business_with_the_server_is_not_told_to_the_client(remote, status):
    """It was a 400 of the client's own that named the operator's account."""
    engine, upstream = await remote(
        status=status, body=b'{"error": {"message": "no credits left on account acme-prod"}}'
    )
    request = chat("a")
    error = await fails(engine, request, DeniedError)
    assert error.code == "engine_unavailable"
    assert "acme" not in error.message
    assert await engine.usage_of(request.id) == NothingRan()
    assert len(upstream.bodies("/v1/chat/completions")) == 1


async def test_a_refusal_whose_client_leaves_before_its_last_word_costs_nothing(remote):
    """The status had come, and the prompt was charged all the same, as one that the server may have read."""
    done = asyncio.Event()

    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 100\r\n\r\n{")
        await done.wait()
        writer.close()

    engine, _ = await remote()
    request = chat("a")
    prepared = await engine.prepare(request)
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        engine._pool = pool_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", engine._options.networks)
        engine._pool.join(engine, engine._options)
        task = asyncio.ensure_future(collect(engine.generate(prepared, 10, True)))
        async with asyncio.timeout(60):
            while not ((run := engine._runs.get(request.id)) and run._connection and run._connection._status):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        await engine.cancel(request.id)
        with pytest.raises(InvalidRequestError):
            await task
        assert await engine.usage_of(request.id) == NothingRan()
        done.set()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_not_followed(remote, status):
    _, elsewhere = await remote()
    engine, _ = await remote(status=status, headers={"location": f"{elsewhere.address}/v1/chat/completions"})
    await fails(engine, chat("a"), OverloadedError)
    assert not elsewhere.bodies("/v1/chat/completions")


async def test_a_server_that_is_gone_takes_nothing(remote, unused_port):
    engine, _ = await remote()
    request = chat("a")
    prepared = await engine.prepare(request)
    engine._pool = pool_of(f"http://127.0.0.1:{unused_port}", engine._options.networks)
    engine._pool.join(engine, engine._options)
    with pytest.raises(OverloadedError) as caught:
        async for _ in engine.generate(prepared, 10, True):
            pass
    assert caught.value.code == "engine_unreachable"
    assert await engine.usage_of(request.id) == NothingRan()


@pytest.mark.parametrize(
    "body",
    [
        b"no json",
        b"\xff",
        b'{"data": []}',
        b'{"data": [{"index": 0, "embedding": []}]}',
        b'{"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1]}]}',
    ],
)
async def test_vectors_that_make_no_sense_are_refused(remote, body):
    """The server ran, however useless what it made."""
    engine, _ = await remote(options={"kinds": ["embedding"]}, body=body)
    request = embedding("one")
    await fails(engine, request, UnreachableError)
    assert await engine.usage_of(request.id) == Lost()


async def test_embeddings_without_usage_are_an_estimate(remote):
    engine, _ = await remote(options={"kinds": ["embedding"]}, says_usage=False)
    request = embedding("one two", (1, 2, 3))
    finished = end_of(await run(engine, request))
    assert (finished.is_estimate, finished.usage) == (True, Usage(input=5))


async def test_a_dense_prompt_is_charged_as_it_was_held_and_found(remote):
    """It was charged at a third of what it had, and nothing but the log told."""
    engine, _ = await remote("generic", usage={"prompt_tokens": 3000, "completion_tokens": 1})
    request = chat("ab" * 1600)
    prepared = await engine.prepare(request)
    finished = end_of(await run(engine, request))
    assert (finished.usage.prompt, finished.is_estimate) == (prepared.most_prompt, True)
    assert "prompt_beyond_hold" in finished.findings


@pytest.mark.parametrize(("cached", "said"), [(None, "not told so far: charged as computed ones"), (0, "told")])
async def test_whether_cached_tokens_are_told_is_known_from_the_first_answer(remote, cached, said):
    engine, _ = await remote("vllm", cached=cached)
    assert engine.info.details["cached tokens"] == "not known yet"
    assert end_of(await run(engine, chat("a b c"))).exact
    assert engine.info.details["cached tokens"] == said


SCHEMA = Guidance(GuidanceKind.JSON_SCHEMA, '{"type": "object", "required": ["a"]}')


@pytest.mark.parametrize(
    ("guidance", "answer", "is_held"),
    [
        (SCHEMA, '{"a": 1}', True),
        (SCHEMA, '{"b": 1}', False),
        (SCHEMA, "Sure! Here it is", False),
        (Guidance(GuidanceKind.JSON_OBJECT), "[1]", False),
        (Guidance(GuidanceKind.JSON_OBJECT), "{}", True),
        (Guidance(GuidanceKind.CHOICE, choices=("yes", "no")), "maybe", False),
        (Guidance(GuidanceKind.CHOICE, choices=("yes", "no")), "no", True),
        (Guidance(GuidanceKind.REGEX, "[0-9]+"), "maybe", True),
    ],
)
async def test_an_answer_that_was_not_held_to_what_was_asked_is_found(remote, guidance, answer, is_held):
    """The server took the field, and dropped it without a word."""
    engine, _ = await remote("vllm")
    finished = end_of(await run(engine, chat(answer, guidance=guidance)))
    assert (finished.findings, finished.exact) == (() if is_held else ("answer_not_guided",), True)


def calls(*pieces):
    """An event with pieces (index, id, name, arguments) of calls."""
    told = [
        {"index": index, "id": identifier, "function": {"name": name, "arguments": arguments}}
        for index, identifier, name, arguments in pieces
    ]
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": told}}]}).encode() + b"\n\n"


async def test_pieces_of_calls_in_turn_with_text_between_keep_their_calls(remote):
    body = (
        calls((0, "a", "f", '{"x"'), (1, "b", "g", ""))
        + adds("\n")
        + calls((1, None, None, '{"y":2}'))
        + calls((0, None, "f", ":1}"))
        + adds("", "tool_calls")
        + b"data: [DONE]\n\n"
    )
    engine, _ = await remote("generic", body=body, headers=STREAM)
    events = await run(engine, chat("x"))
    pieces = [piece for event in events if isinstance(event, Delta) for piece in event.calls]
    assert [piece for piece in pieces if piece.name] == [CallPiece("a", "f", '{"x"'), CallPiece("b", "g", "", 1)]
    written = ["".join(piece.arguments for piece in pieces if piece.index == index) for index in range(2)]
    assert written == ['{"x":1}', '{"y":2}']


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 9)"), "nothing listens at its address"),
        (OSError("Multiple exceptions: [Errno 111] …, [Errno 111] …"), "none of its addresses answers"),
        (OSError(113, "Connect call failed ('10.0.0.9', 9)"), "no route to host"),
        (ConnectionResetError(104, "…"), "it closed the connection"),
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "its name isn't known: Name or service not known",
        ),
        (ForbiddenAddressError("10.0.0.9 is private"), "10.0.0.9 is private"),
    ],
)
def test_why_a_server_is_not_reached_is_said_in_words(error, words):
    assert reason_of(error) == words
