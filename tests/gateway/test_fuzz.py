"""Bodies and frames that nobody would send: each gets an answer of ours, none a 5xx, and memory stays as it is.

A few hundred by default; `FUZZ_BODIES=20000 pytest tests/gateway/test_fuzz.py -n 0 -s` sends so many, says now and then
how much memory the process has, and holds it to that. Another `FUZZ_SEED` makes other ones. All endpoints of the route
table take part: bodies are made from their structs.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway import asgi
from gateway.apis.endpoints import ENDPOINTS
from gateway.apis.responses.wire import ResponseCreate
from routing.services.catalogue import add_model
from routing.services.defaults import ensure_default_routes
from tests.gateway.apis.client import Answer, Exchange
from tests.gateway.apis.websocket.socket import Socket
from tests.gateway.mutations import Bodies
from tests.gateway.world import engine_of, in_database, make_world, opened, settled

BODIES = int(os.environ.get("FUZZ_BODIES", "200"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
LARGEST_GROWTH = 24 * 1024 * 1024  # bytes of the process, from a quarter of a long run to its end
MODELS = ("fake", "fake", "auto", "ranker", "auto:chat", "nothing")
TERMS = {"request_limit": 10**8, "request_burst": 10**8, "credit_limit": 10**15, "credit_burst": 10**15}
ENDS = {"response.completed", "response.incomplete", "response.failed", "response.cancelled", "error"}

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}
ASKED = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Look."}]},
    {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "It is there."},
]
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "Look."}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "It is there."},
]
SAMPLES: dict[str, tuple[dict[str, Any], ...]] = {
    "/v1/chat/completions": (
        {"model": "fake", "messages": ASKED, "tools": [{"type": "function", "function": {"name": "look"}}], "n": 2},
        {
            "model": "fake",
            "messages": ASKED,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 3,
        },
        {
            "model": "fake",
            "messages": ASKED[:2],
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
            "logit_bias": {"5": 1},
        },
    ),
    "/v1/responses": (
        {"model": "fake", "input": ITEMS, "tools": [TOOL], "stream": True, "store": True, "max_output_tokens": 5},
        {"model": "fake", "input": ITEMS, "store": True, "text": {"format": {"type": "json_object"}}},
    ),
    "/v1/messages": (
        {
            "model": "fake",
            "max_tokens": 5,
            "system": "Be brief.",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Look."}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "There."}]},
            ],
            "tools": [{"name": "look", "input_schema": {"type": "object"}}],
            "stream": True,
        },
    ),
    "/v1/embeddings": ({"model": "fake", "input": ["Look.", "There."]},),
}


class Fuzz:
    """Sends random requests, one after another, and keeps what must not be: `wrong`."""

    def __init__(self, app: Any, key: str, chance: random.Random) -> None:
        self.app, self.key, self.chance = app, key, chance
        self.wrong: list[str] = []
        self.statuses: Counter[tuple[str, int]] = Counter()
        self._ids = ["nothing"]
        self._bodies = {
            (endpoint.method, endpoint.path): Bodies(endpoint.takes, MODELS, chance)
            for endpoint in ENDPOINTS
            if endpoint.example
        }
        self._frames = Bodies(ResponseCreate, MODELS, chance)
        self._targets = [(endpoint.method, endpoint.shown_path) for endpoint in ENDPOINTS]

    async def samples(self) -> None:
        """Send every sample as it is: what is broken afterwards is something that works."""
        for name, samples in SAMPLES.items():
            for sample in samples:
                await self._send("POST", name, name, {"content-type": "application/json"}, json.dumps(sample).encode())

    async def body(self) -> None:
        """Send one request."""
        chance = self.chance
        method, name = chance.choice(list(self._bodies)) if chance.random() < 0.75 else chance.choice(self._targets)
        path = re.sub(r"\{\w+\}", lambda _: self._identifier(), name) + chance.choice(
            ("", "", "", "?limit=2", "?limit=x&after=%00")
        )
        headers = {"content-type": "application/json"}
        body = b""
        bodies = self._bodies.get((method, name))
        if bodies is not None:
            samples = SAMPLES.get(name, ())
            made = chance.choice(samples) if samples and chance.random() < 0.5 else bodies.valid()
            body = bodies.broken(made)
        elif method == "POST":
            headers, body = self._form()
        if chance.random() < 0.1:
            headers |= {
                chance.choice(("idempotency-key", "last-event-id", "x-sluice-task", "content-encoding")): "x\x7f1"
            }
        await self._send(method, name, path, headers, body)

    async def _send(self, method: str, name: str, path: str, headers: dict[str, str], body: bytes) -> None:
        exchange = Exchange(self.app, method.upper(), path, body=body, headers=headers, key=self.key)
        try:
            async with asyncio.timeout(120):
                answer = await exchange.finished()
        except Exception as error:  # noqa: BLE001 - whatever it is, the application let it out
            self.wrong.append(f"{method} {path} {body[:2000]!r} raised {error!r}")
            return
        self.statuses[name, answer.status] += 1
        self._judge(f"{method} {path} {headers} {body[:2000]!r}", answer)

    async def frames(self, count: int) -> None:
        """Send `count` frames over a websocket, and wait for the answer to each."""
        socket = await Socket(self.app, key=self.key).opened()
        for _ in range(count):
            made = (
                self._frames.valid() if self.chance.random() < 0.5 else {**SAMPLES["/v1/responses"][0], "stream": None}
            )
            made["type"] = self.chance.choice(("response.create", "response.create", "response.cancel", "x"))
            data = self._frames.broken(made)
            socket.send(data.decode("utf-8", "replace"))
            try:
                async with asyncio.timeout(120):
                    events = await socket.until(*ENDS)
            except (TimeoutError, AssertionError) as error:
                if not socket.task.done():
                    self.wrong.append(f"frame {data[:2000]!r}: {error!r}")
                socket = await Socket(self.app, key=self.key).opened()
                continue
            self.statuses["websocket", 200] += 1
            if "internal_error" in json.dumps(events[-1]):
                self.wrong.append(f"frame {data[:2000]!r}: {events[-1]}")
        await socket.leave()

    def _judge(self, asked: str, answer: Answer) -> None:
        if answer.status >= 500 or not answer.status or b"internal_error" in answer.body:
            self.wrong.append(f"{asked} got {answer.status} {answer.body[-600:]!r}")
        elif answer.status >= 400:
            error = answer.json()["error"]
            if not error["message"]:
                self.wrong.append(f"{asked} got no reason")
        elif answer.headers.get("content-type") == "application/json":
            made = answer.json()
            if isinstance(made, dict) and isinstance(made.get("id"), str):
                self._ids = [*self._ids[-20:], made["id"]]

    def _identifier(self) -> str:
        junk = ("x" * 300, "..", "%00", "resp_" + "0" * 32, "file-é", "a%2Fb", "' OR 1=1", "fake")
        return self.chance.choice(self._ids) if self.chance.random() < 0.6 else self.chance.choice(junk)

    def _form(self) -> tuple[dict[str, str], bytes]:
        """A form with a file, whole or not."""
        lines = (
            b'{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "fake", "input": "a"}}\n'
        )
        parts = [
            b'content-disposition: form-data; name="purpose"\r\n\r\n'
            + self.chance.choice((b"batch", b"\xff", b"x" * 3000)),
            b'content-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
            + lines * self.chance.randrange(4),
            b'content-disposition: form-data; name="\xff"\r\n\r\n',
            b"\r\n\r\n",
        ]
        chosen = self.chance.sample(parts, self.chance.randrange(4))
        body = b"".join(b"--edge\r\n" + part + b"\r\n" for part in chosen) + self.chance.choice(
            (b"--edge--\r\n", b"", b"--ed")
        )
        kind = self.chance.choice(
            ("multipart/form-data; boundary=edge", "multipart/form-data", "application/json", "x")
        )
        return {"content-type": kind}, body


def resident() -> int:
    """The bytes of memory that this process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.django_db(transaction=True)
async def test_no_body_and_no_frame_makes_the_server_fail(tmp_path: Path, settings: Any) -> None:
    settings.SLUICE_HOME = tmp_path
    files = {"BACKEND": settings.STORAGES["files"]["BACKEND"], "OPTIONS": {"location": str(tmp_path / "files")}}
    settings.STORAGES = {**settings.STORAGES, "files": files}
    options = {"text": "Hello there, this is an answer", "cached": 0.25, "thinks": True, "guides": True}
    world = await in_database(make_world, credit=10**15, terms=TERMS, **options)
    ranker = {"kinds": ["score"], "context_length": 8192, "rate_card": "fake-card", "source": "", "backend": "fake"}
    await in_database(add_model, name="ranker", **ranker)
    await in_database(ensure_default_routes)
    async with opened(tmp_path) as runtime:

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await asgi.application({**scope, "state": {"runtime": runtime, "metrics": runtime.metrics}}, receive, send)

        fuzz = Fuzz(app, world.secret, random.Random(SEED))
        early = 0
        await fuzz.samples()
        for number in range(BODIES):
            if number % 10 == 0:
                await fuzz.frames(3)
            await fuzz.body()
            if number % 1000 == 999:
                engine_of(runtime, world).record.entries.clear()  # a worker's are in a file, and rotated
                told = f"{number + 1} bodies, {resident() / 2**20:.0f} MB, {len(fuzz.wrong)} wrong\n"
                sys.stdout.write(told)
            if number == BODIES // 4:
                early = resident()
            if len(fuzz.wrong) > 20:
                break
        await settled(runtime)
        late = resident()
    assert not fuzz.wrong, "\n\n".join(fuzz.wrong[:10])
    sys.stdout.write(f"{sorted(fuzz.statuses.items())}\n")
    answered = {name for name, status in fuzz.statuses if status == 200}
    assert SAMPLES.keys() | {"websocket"} <= answered
    if BODIES >= 10_000:
        assert late - early < LARGEST_GROWTH, f"it grew from {early / 2**20:.0f} to {late / 2**20:.0f} MB"
