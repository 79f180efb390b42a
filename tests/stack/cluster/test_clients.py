"""Clients that send nonsense or walk away, against real processes: refused by name, charged for what ran, no more."""

from __future__ import annotations

import asyncio
import json
import socket

import aiohttp
import pytest

from inference.worker.record import ends_in
from tests.stack.stack import assert_books_are_right
from tests.stack.web import ask

pytestmark = [pytest.mark.stack, pytest.mark.slow]

SAY = {"model": "long-chat", "messages": [{"role": "user", "content": "go on"}]}
ASKED = 6000  # tokens: 120 s of them


def key_of(stack):
    return stack.tenants["max"]["key"]


def deep():
    return b'{"model":"fake-chat","messages":' + b"[" * 50_000 + b"]" * 50_000 + b"}"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"model": "fake-chat", "messages": [', 400, "invalid_json"),
        (deep(), 400, "json_too_deep"),
        ({**SAY, "messages": "go on"}, 400, "invalid_type"),
        ({**SAY, "max_tokens": "10"}, 400, "invalid_type"),
        ({**SAY, "temperature": -1}, 400, "invalid_value"),
        ({**SAY, "model": "no-such-model"}, 404, "model_not_found"),
        ({**SAY, "model": "fake-embed"}, 400, "model_wrong_kind"),
        ({**SAY, "tools": [{"type": "web_search"}]}, 400, "unsupported_parameter"),
        ({**SAY, "store": True}, 400, "unsupported_parameter"),
        ({**SAY, "messages": [{"role": "user", "content": "long " * 4000}]}, 400, "context_length_exceeded"),
        (b" " * (8 * 1024 * 1024 + 1), 413, "request_too_large"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_refused_by_name(stack, body, status, code):
    try:
        page = ask(f"{stack.base_url}/v1/chat/completions", body, key=key_of(stack))
    except OSError:  # the refusal came, and the connection was closed, while the body was still on its way
        assert status == 413
        return
    assert (page.status, page.json["error"]["code"]) == (status, code)
    assert page.json["error"]["request_id"] == page.headers["x-request-id"]
    assert ask(f"{stack.base_url}/v1/usage/{page.headers['x-request-id']}", key=key_of(stack)).status == 404


@pytest.mark.parametrize(("key", "code"), [("", "missing_api_key"), ("sk-sluice-" + "x" * 43, "invalid_api_key")])
def test_bad_keys_are_refused(stack, key, code):
    page = ask(f"{stack.base_url}/v1/chat/completions", SAY, key=key)
    assert (page.status, page.json["error"]["code"]) == (401, code)


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "missing_api_key"),
        ({"authorization": "Bearer sk-sluice-no"}, 401, "invalid_api_key"),
        ({"cookie": "sluice_session=forged", "origin": "https://elsewhere.example"}, 403, "origin_not_allowed"),
    ],
)
def test_websockets_of_strangers_are_refused(stack, headers, status, code):
    """The handshake's answer, read from the wire: clients show its status, few its body."""
    lines = {
        "host": f"127.0.0.1:{stack.port}",
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        **headers,
    }
    head = "GET /v1/responses HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    with socket.create_connection(("127.0.0.1", stack.port), timeout=30) as wire:
        wire.sendall(f"{head}\r\n".encode())
        received = b""
        while chunk := wire.recv(4096):
            received += chunk
    assert received.startswith(f"HTTP/1.1 {status} ".encode())
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == code


def ends(stack):
    """The word of the worker that has the model: request → how it ended, None for one that runs."""
    return ends_in(stack.records[0])


async def begins(stack, ends_before):
    """Wait until a request that isn't in `ends_before` has begun on the engine."""
    while True:
        for request in ends(stack):
            if request not in ends_before:
                return request
        await asyncio.sleep(0.01)


async def ended(stack, request):
    while (end := ends(stack).get(request)) is None:  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(0.02)
    return end


@pytest.mark.parametrize("kind", ["chat", "chat-stream", "responses-stream", "responses-socket"])
def test_a_client_that_leaves_stops_the_engine_and_pays_for_what_ran(cluster, stack, kind):
    headers = {"Authorization": f"Bearer {key_of(stack)}"}
    path = "/v1/chat/completions" if kind.startswith("chat") else "/v1/responses"
    body = {**SAY, "max_tokens": ASKED} if kind.startswith("chat") else {"model": "long-chat", "input": "go on"}
    if path == "/v1/responses":
        body["max_output_tokens"] = ASKED

    async def leave():
        before = set(ends(stack))
        async with aiohttp.ClientSession(stack.base_url, headers=headers) as session:
            if kind == "responses-socket":
                async with session.ws_connect(path) as connection:
                    await connection.send_json({"type": "response.create", **body})
                    request = await begins(stack, before)
            elif kind.endswith("stream"):
                async with session.post(path, json={**body, "stream": True}) as answer:
                    request = await begins(stack, before)
                    await answer.content.readline()
                    answer.close()
            else:
                asking = asyncio.create_task(session.post(path, json=body))
                request = await begins(stack, before)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        return request, await ended(stack, request)

    request, end = asyncio.run(leave())
    assert end.reason == "cancelled"
    assert end.usage.output < ASKED
    found = cluster.settled()
    record = found["usage"].get(request)
    if record is None:  # it left before the first token: nothing to charge
        assert end.usage.classes() == {}
        return
    assert record["finish"] == "cancelled"
    assert record["exact"]
    assert record["classes"] == end.usage.classes()
    assert_books_are_right(found)
