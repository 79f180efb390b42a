"""Responses over a websocket."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace

import pytest

from base.ids import uuid7
from billing.limits.types import Bucket
from gateway.apis.websocket import endpoint as responses
from gateway.apis.websocket.streams import MOST_STREAMS, EventSender
from gateway.concurrency import Cap
from gateway.errors.refusal import Refusal
from gateway.runtime.requests import Stage
from inference.messages import Message
from inference.types import FinishReason, Running
from tests.gateway.apis.responses.test_responses import COUNTED, SEQUENCE
from tests.gateway.apis.websocket.socket import Socket
from tests.gateway.apis.world import CREDIT, KEY, PROMPT_COST
from tests.waiting import until

CREATE = {"type": "response.create", "model": "small", "input": "Hi"}
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


async def ask(socket, **changes):
    socket.send({**CREATE, **changes})
    return await socket.until(*ENDS)


async def test_response_is_told_as_over_sse(socket, world):
    events = await ask(socket)
    assert [event["type"] for event in events] == SEQUENCE
    assert [event["sequence_number"] for event in events] == list(range(len(SEQUENCE)))
    response = events[-1]["response"]
    assert response["usage"] == COUNTED
    assert response["output"][0]["content"][0]["text"] == "Hello there"
    assert "sluice" not in response
    assert not any("stream_id" in event for event in events)
    assert await world.reason_of(world.generations[0]) is FinishReason.STOP


async def test_label_of_a_classifier_is_told_like_any_answer(socket, world):
    events = await ask(socket, model="sorter", input="Labels: red, blue\n\nmy blue car")
    assert [event["delta"] for event in events if event["type"] == "response.output_text.delta"] == ["blue"]
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "blue"
    assert events[-1]["response"]["usage"]["output_tokens"] == 0


async def test_each_response_has_an_id_of_its_own(socket, world):
    first, second = [(await ask(socket))[-1]["response"]["id"] for _ in range(2)]
    assert first != second
    assert first == f"resp_{world.generations[0].id.hex}"


async def test_an_answer_that_we_broke_says_that_it_is_waived(app, world):
    socket = await Socket(app, "/v1/responses?sluice=1").opened()
    ends = []
    for error_at in (1, 0):
        world.set_options(error_at=error_at)
        ends.append((await ask(socket))[-1]["response"])
    assert [(end["status"], end["sluice"]["waived"]) for end in ends] == [("failed", True), ("completed", False)]
    await socket.leave()


async def test_caller_that_asks_gets_counts_and_the_account(app, monkeypatch):
    monkeypatch.setattr(responses, "USAGE_SECONDS", 0)
    socket = await Socket(app, "/v1/responses?sluice=1").opened()
    events = await ask(socket)
    counts = [event for event in events if event["type"] == "sluice.usage"]
    assert [count["usage"]["output_tokens"] for count in counts] == [1, 2]
    assert counts[-1]["usage"]["credits_micro"] == PROMPT_COST + 4
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    account = events[-1]["response"]["sluice"]
    assert account["route"]["reason"] == "You asked for small."
    assert account["prompt_tokens"] == 5
    assert 0 <= account["ttft_ms"] < 60_000
    assert (account["available"], account["available_micro"]) == ("0.999984", CREDIT - 16)
    await socket.leave()


async def test_text_that_comes_quickly_travels_together(app, world, monkeypatch):
    monkeypatch.setattr(responses, "PAUSE_SECONDS", 0.025)
    world.set_options(text="a b c d e f", hang_at=2)
    sleep = asyncio.sleep

    async def meanwhile(seconds):
        if seconds != responses.PAUSE_SECONDS:
            await sleep(seconds)
            return
        world.engine.release()
        while world.runtime.requests.live:
            await sleep(0)

    socket = await Socket(app).opened()
    monkeypatch.setattr(asyncio, "sleep", meanwhile)
    deltas = [event["delta"] for event in await ask(socket) if event["type"].endswith("text.delta")]
    assert deltas == ["a", " b c d e f"]
    await socket.leave()


async def test_cancel_stops_what_runs_and_says_so(socket, world):
    world.set_options(hang_at=2)
    socket.send(CREATE)
    await socket.until("response.output_text.delta")
    socket.send({"type": "response.cancel"})
    last = (await socket.until(*ENDS))[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["status"] == "cancelled"
    assert last["response"]["usage"]["credits_micro"] == PROMPT_COST + 2
    assert await world.reason_of(world.generations[0]) is FinishReason.CANCELLED
    world.set_options(hang_at=0)
    assert (await ask(socket))[-1]["type"] == "response.completed"


async def test_cancel_by_id_stops_only_that_response(socket, world):
    world.set_options(hang_at=2)
    socket.send({**CREATE, "stream_id": "a"})
    first = (await socket.until("response.created"))[-1]["response"]["id"]
    socket.send({**CREATE, "stream_id": "b"})
    second = await world.generation(1)
    socket.send({"type": "response.cancel", "response_id": first})
    ended = (await socket.until("response.incomplete"))[-1]
    assert (ended["stream_id"], ended["response"]["id"]) == ("a", first)
    assert isinstance(await world.engine.usage_of(second.id.hex), Running)
    world.engine.release()
    assert (await socket.until("response.completed"))[-1]["stream_id"] == "b"


async def test_cancel_while_starting_stops_the_start(socket, world, monkeypatch):
    monkeypatch.setattr("gateway.generation.generation.HEAD_SECONDS", 0)
    world.starting = asyncio.Event()
    world.set_options(hang_at=1)
    socket.send(CREATE)
    socket.send({"type": "response.cancel"})
    socket.send({"type": "nothing"})
    assert (await socket.receive())["type"] == "error"  # the cancel was heard before this
    world.starting.set()
    assert (await socket.until(*ENDS))[-1]["response"]["status"] == "cancelled"


@pytest.mark.parametrize("named", [{}, {"stream_id": "a"}, {"response_id": "resp_x"}])
async def test_cancel_of_nothing_says_so_and_is_harmless(socket, named):
    socket.send({"type": "response.cancel", "event_id": "event_1", **named})
    error = (await socket.receive())["error"]
    assert (error["code"], error["event_id"]) == ("response_not_running", "event_1")
    assert (await ask(socket))[-1]["type"] == "response.completed"


async def test_cancels_of_responses_made_elsewhere_take_few_places_at_the_database(socket, monkeypatch):
    go, asked = threading.Event(), []

    def ask(claim):
        go.wait(120)
        asked.append(claim.key[-32:])

    monkeypatch.setattr(responses.answers, "ask_to_cancel", ask)
    ids = [uuid7() for _ in range(MOST_STREAMS + 1)]
    try:
        for identifier in [*ids[:-1], ids[0], ids[-1]]:  # again: it is on its way, and takes no second place
            cancel = {"type": "response.cancel", "response_id": f"resp_{identifier.hex}"}
            socket.send({**cancel, "event_id": f"cancel_{identifier.hex}"})
        async with asyncio.timeout(120):
            error = (await socket.receive())["error"]
        assert (error["code"], error["event_id"]) == ("too_many_responses", f"cancel_{ids[-1].hex}")
    finally:
        go.set()
    await until(lambda: len(asked) >= MOST_STREAMS)
    await asyncio.sleep(0.01)
    assert sorted(asked) == sorted(identifier.hex for identifier in ids[:-1])
    socket.send({"type": "response.cancel", "response_id": f"resp_{ids[-1].hex}"})
    await until(lambda: len(asked) > MOST_STREAMS)
    assert asked[-1] == ids[-1].hex
    assert socket.is_quiet


async def test_streams_run_beside_each_other_and_a_stream_in_turn(socket, world):
    world.set_options(hang_at=1)
    socket.send({**CREATE, "stream_id": "slow", "input": "one"})
    await world.generation()
    socket.send({**CREATE, "stream_id": "slow", "input": "two"})
    socket.send({**CREATE, "stream_id": "quick", "model": "org/big"})
    quick = (await socket.until("response.completed"))[-1]
    assert quick["stream_id"] == "quick"
    assert len(world.generations) == 2
    world.engine.release()
    ends = [(await socket.until("response.completed"))[-1] for _ in range(2)]
    assert [end["stream_id"] for end in ends] == ["slow", "slow"]
    assert world.intent.messages == (Message("user", ("two",)),)


async def test_too_much_in_a_stream_is_refused(socket, world, monkeypatch):
    monkeypatch.setattr("gateway.generation.generation.HEAD_SECONDS", 0)
    world.set_options(hang_at=1)
    socket.send(CREATE)
    await socket.until("response.created")
    for _ in range(9):
        socket.send(CREATE)
    refused = (await socket.until("error"))[-1]
    assert (refused["status"], refused["error"]["code"]) == (429, "too_many_responses")


async def test_too_much_text_that_waits_is_refused(socket, world, monkeypatch):
    monkeypatch.setattr("gateway.apis.websocket.streams.MOST_WAITING_BYTES", 2500)
    world.set_options(hang_at=1)
    big = {**CREATE, "input": "x" * 1000}
    for stream in "ab":
        socket.send({**CREATE, "stream_id": stream})
        socket.send({**big, "stream_id": stream})
    socket.send({**big, "stream_id": "a"})
    refused = (await socket.until("error"))[-1]
    assert (refused["stream_id"], refused["error"]["code"]) == ("a", "too_many_responses")
    world.engine.release()
    for _ in range(4):
        await socket.until("response.completed")
    socket.send({**big, "stream_id": "a"})
    await socket.until("response.completed")


async def test_client_that_is_gone_is_no_fault_of_ours():
    """A server's `send` raises OSError then, some time before `receive` says so."""
    sent = []

    async def gone(message):
        sent.append(message)
        raise OSError("the client is gone")

    sender = EventSender(gone)
    await sender.send({"type": "x"}, None)
    await sender.send({"type": "y"}, None)
    await sender.close(1000)
    assert len(sent) == 1


async def test_too_many_streams_are_refused(socket, world):
    world.set_options(hang_at=1)
    for number in range(17):
        socket.send({**CREATE, "stream_id": str(number)})
    refused = (await socket.until("error"))[-1]
    assert (refused["stream_id"], refused["error"]["code"]) == ("16", "too_many_responses")


async def test_previous_response_is_continued(socket, world):
    first = (await ask(socket, instructions="Be brief."))[-1]["response"]["id"]
    second = (await ask(socket, input="And?", previous_response_id=first))[-1]["response"]
    assert second["previous_response_id"] == first
    said = (Message("user", ("Hi",)), Message("assistant", ("Hello there",)), Message("user", ("And?",)))
    assert world.intent.messages == said  # instructions count for one response
    await ask(socket, input="So?", previous_response_id=second["id"])
    assert world.intent.messages == (*said, Message("assistant", ("Hello there",)), Message("user", ("So?",)))


async def test_the_next_response_goes_on_from_one_message_that_was_begun(socket, world):
    begun = {"role": "assistant", "content": "Ho ", "status": "incomplete"}
    given = [{"role": "user", "content": "Hi"}, begun]
    first = (await ask(socket, input=given))[-1]["response"]["id"]
    await ask(socket, input="And?", previous_response_id=first)
    assert [message.parts for message in world.intent.messages] == [("Hi",), ("Ho Hello there",), ("And?",)]


async def test_unknown_previous_response_is_named(socket, world):
    error = (await ask(socket, previous_response_id="resp_x"))[-1]
    assert error["status"] == 400
    assert error["error"]["code"] == "previous_response_not_found"
    assert error["error"]["param"] == "previous_response_id"
    assert world.generations == []


@pytest.mark.django_db(transaction=True)
async def test_previous_response_of_another_project_is_unknown(socket, world):
    first = (await ask(socket))[-1]["response"]["id"]
    world.set_principal(project=uuid7())
    error = (await ask(socket, previous_response_id=first))[-1]
    assert error["error"]["code"] == "previous_response_not_found"


@pytest.mark.django_db(transaction=True)
async def test_failed_response_is_not_continued(socket, world):
    world.set_options(lose_at=2)
    failed = (await ask(socket))[-1]
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"]["code"] == "worker_lost"
    error = (await ask(socket, previous_response_id=failed["response"]["id"]))[-1]
    assert error["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        ("{", "invalid_json", None),
        ("[" * 1000, "json_too_deep", None),
        ({}, "missing_required_parameter", "type"),
        ({"type": "response.steer"}, "unsupported_parameter", "type"),
        ({"type": "response.create"}, "missing_required_parameter", "model"),
        ({**CREATE, "colour": 1}, "unknown_parameter", "colour"),
        ({**CREATE, "tools": [{"type": "mcp"}]}, "unsupported_parameter", "tools[0].type"),
        ({**CREATE, "background": True}, "unsupported_parameter", "background"),
        ({**CREATE, "stream": False}, "unsupported_parameter", "stream"),
        ({**CREATE, "input": [{"role": "x"}]}, "invalid_value", "input[0].role"),
        ({"type": "response.cancel", "x": 1}, "unknown_parameter", "x"),
    ],
)
async def test_wrong_event_is_answered_and_the_socket_goes_on(socket, world, event, code, param):
    socket.send(event)
    told = await socket.receive()
    assert (told["type"], told["status"]) == ("error", 400)
    assert (told["error"]["code"], told["error"]["param"]) == (code, param)
    assert told["error"]["request_id"]
    assert world.generations == []
    assert (await ask(socket))[-1]["type"] == "response.completed"


async def test_error_names_its_stream_and_carries_headers(socket, world):
    world.set_principal(request_bucket=Bucket("requests", "requests", limit=1, period_us=7_000_000, burst=1))
    await ask(socket)
    error = (await ask(socket, stream_id="a"))[-1]
    assert (error["status"], error["stream_id"]) == (429, "a")
    assert error["error"]["headers"]["retry-after"] == "7"


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({**CREATE, "n": 1}, "unknown_parameter"),
        ({**CREATE, "previous_response_id": "resp_x"}, "previous_response_not_found"),
        ({"type": "response.cancel", "x": 1}, "unknown_parameter"),
        ({"type": "response.steer"}, "unsupported_parameter"),
    ],
)
async def test_error_names_the_clients_event(socket, event, code):
    socket.send({**event, "event_id": "event_1"})
    error = (await socket.until("error"))[-1]["error"]
    assert (error["code"], error["event_id"]) == (code, "event_1")


async def test_events_with_ids_are_taken(socket):
    assert (await ask(socket, event_id="event_2"))[-1]["type"] == "response.completed"


async def test_crash_is_an_error_event(socket, world):
    world.error = RuntimeError("a secret")
    error = (await ask(socket))[-1]
    assert (error["status"], error["error"]["code"]) == (500, "internal_error")
    assert "secret" not in str(error)


async def test_oversized_message_closes_the_socket(socket, world, settings):
    socket.send({**CREATE, "input": "x" * settings.SLUICE_MAX_FRAME_BYTES})
    assert (await socket.receive())["error"]["code"] == "request_too_large"
    assert await socket.closed() == 1009


async def test_client_that_leaves_stops_everything(socket, world):
    world.set_options(hang_at=2)
    socket.send({**CREATE, "stream_id": "a"})
    socket.send({**CREATE, "stream_id": "a"})
    socket.send({**CREATE, "stream_id": "b"})
    await world.generation(1)
    await socket.until("response.output_text.delta")
    await socket.until("response.output_text.delta")
    await socket.leave()
    assert len(world.generations) == 2
    for generation in world.generations:
        assert await world.reason_of(generation) is FinishReason.CANCELLED
    assert socket.is_quiet


async def test_client_that_leaves_before_anything_runs_waits_no_longer(socket, world):
    world.starting = asyncio.Event()
    socket.send(CREATE)
    await world.begun.wait()
    await socket.leave()
    world.starting.set()
    await world.settled()
    assert world.generations == []


async def test_key_is_asked_anew_for_each_response(socket, world):
    assert (await ask(socket))[-1]["type"] == "response.completed"
    world.runtime.principals.keys[KEY] = Refusal(401, "api_key_revoked", "Revoked.")
    error = (await ask(socket))[-1]
    assert (error["status"], error["error"]["code"]) == (401, "api_key_revoked")
    assert len(world.generations) == 1


async def test_socket_that_the_server_cancels_stops_everything(socket, world):
    world.set_options(hang_at=1)
    socket.send(CREATE)
    generation = await world.generation()
    socket.task.cancel()
    await asyncio.gather(socket.task, return_exceptions=True)
    assert await world.reason_of(generation) is FinishReason.CANCELLED


async def test_idle_socket_is_closed(app, monkeypatch):
    monkeypatch.setattr(responses, "IDLE_SECONDS", 0.01)
    socket = await Socket(app).opened()
    assert await socket.closed() == 1001


async def test_old_socket_is_closed_after_what_runs():
    sent: asyncio.Queue[dict] = asyncio.Queue()
    gate = asyncio.Event()

    class Busy:
        @property
        def is_idle(self):
            return gate.is_set()

        async def idle(self):
            await gate.wait()

    consumer = responses.ResponsesConsumer(Cap(1, responses.too_many_sockets))
    consumer.scope = {"request_id": uuid7()}
    consumer._sender = EventSender(sent.put)
    consumer._streams = Busy()
    now = asyncio.get_running_loop().time()
    consumer._quiet_since, consumer._opened_at = now, now - responses.LIFETIME_SECONDS
    clock = asyncio.ensure_future(consumer._watch_clock())
    for _ in range(5):
        await asyncio.sleep(0)
    assert sent.empty()
    gate.set()
    await clock
    assert "websocket_connection_limit_reached" in sent.get_nowait()["text"]
    assert sent.get_nowait() == {"type": "websocket.close", "code": 1001}


@pytest.mark.parametrize("kind", ["response.create", "response.resume"])
async def test_a_socket_that_is_an_hour_old_begins_no_more_responses(kind):
    """As long as the next response began before the last one ended, the hour never did."""
    begun = []
    consumer = responses.ResponsesConsumer(Cap(1, responses.too_many_sockets))
    consumer._runtime = SimpleNamespace(requests=SimpleNamespace(stage=Stage.SERVING))
    consumer._streams = SimpleNamespace(create=lambda *_: begun.append(1))
    frame = json.dumps({"type": kind, "model": "m", "input": "hi", "response_id": "resp_1"}).encode()
    now = asyncio.get_running_loop().time()
    consumer._opened_at = now - responses.LIFETIME_SECONDS
    with pytest.raises(Refusal) as refused:
        consumer._take(SimpleNamespace(type=kind), frame)
    assert refused.value.code == "websocket_connection_limit_reached"
    assert begun == []


async def test_socket_of_a_gateway_that_leaves_is_told_to_connect_again(socket, world):
    world.runtime.requests.leave()
    error = (await socket.receive())["error"]
    assert error["code"] == "server_draining"
    assert error["headers"]["retry-after"]
    assert await socket.closed() == responses.SERVICE_RESTART


async def test_gateway_that_leaves_lets_responses_end_and_begins_none(socket, world):
    world.set_options(hang_at=1)
    socket.send(CREATE)
    await world.engine.hanging()
    world.runtime.requests.leave()
    refused = await ask(socket, stream_id="other")
    assert refused[-1]["error"]["code"] == "server_draining"
    world.engine.release()
    assert (await socket.until(*ENDS))[-1]["type"] == "response.completed"
    assert (await socket.receive())["error"]["code"] == "server_draining"
    assert await socket.closed() == responses.SERVICE_RESTART


async def test_socket_that_opens_while_its_gateway_leaves_is_told_at_once(app, world):
    world.runtime.requests.leave()
    socket = await Socket(app).opened()
    assert (await socket.receive())["error"]["code"] == "server_draining"
    assert await socket.closed() == responses.SERVICE_RESTART
    assert not world.runtime.requests.on_leave
