"""A foreign server of models that does as it is told: each dialect's endpoints, and every way to misbehave.

Its tokens are words; it answers with the last message. `Upstream.plan` says how the next chat goes; what really ran
stands in `served`, to compare what was charged with.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import threading
from collections.abc import Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

from aiohttp import web

from inference.text.stops import StopMatcher

MODEL = "served-model"
WIDTH = 8


@dataclass(frozen=True)
class Plan:
    """How one chat goes; token numbers count from 1, 0 is never."""

    status: int = 200
    body: bytes | None = None  # with another status than 200, or instead of a stream
    headers: Mapping[str, str] = field(default_factory=dict)
    hang_before: bool = False  # no head comes
    pings: int = 0  # comments before the first event
    pings_for_ever: bool = False
    error_at: int = 0  # an error event instead of this token
    garbage_at: int = 0
    die_at: int = 0  # the connection breaks before this token
    stall_at: int = 0  # nothing comes any more from this token on
    end_at: int = 0  # the stream ends properly before this token, but the answer doesn't
    at_once: int = 1  # tokens in an event
    counts: bool = True  # usage in every event where it was asked for
    says_usage: bool = True  # usage at the end
    usage: Mapping[str, Any] | None = None  # said at the end instead of the truth
    lingers: bool = False  # the connection stays open after the answer
    ends_late: bool = False  # the body ends after its end mark, not with it
    obeys: bool = True  # ends at max_tokens
    cached: int | None = 0  # cached tokens that usage says (of vLLM and SGLang only at the end); None: null
    reasoning: int = 0  # so many tokens are thought first
    in_bytes: int = 0  # the stream leaves in pieces of so many bytes
    pace: float = 0.0  # seconds before each token


class Upstream:
    def __init__(self, dialect: str = "vllm", **plan: Any) -> None:
        self.dialect = dialect
        self.plan = Plan(**plan)
        self.plans: list[Plan] = []  # the next ones, before `plan`
        self.model = MODEL
        self.context = 8192
        self.most_input: int | None = None  # what TGI says of them
        self.most_stops: int | None = None
        self.version = "0.11.2"
        self.version_at = "/version"
        self.key = ""  # asked for when set
        self.is_well = True
        self.silent_at: set[str] = set()  # paths at which nothing is answered
        self.tokenizes = True
        self.tokenizer_hangs = False
        self._vocabulary: list[str] = []
        self.seen: list[tuple[str, dict[str, Any]]] = []  # path and body of every request
        self.heads: list[Mapping[str, str]] = []
        self.served: dict[str, dict[str, int]] = {}  # what ran, by x-request-id
        self.running: set[str] = set()
        self.aborted: set[str] = set()  # whose client left
        self.most_running = 0
        self.connections: set[object] = set()
        self.order: list[str] = []  # last message of each chat, as they began
        self.changed = asyncio.Condition()
        self.released = asyncio.Event()
        self.address = ""
        self._prefixes: set[tuple[str, str]] = set()

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for seen, body in self.seen if seen == path]

    async def until(self, condition) -> None:
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(condition)

    def options(self, **more: Any) -> dict[str, Any]:
        """Options of a deployment at this server."""
        base = {"model": MODEL, "dialect": self.dialect, "networks": ["127.0.0.0/8"], "salt_key": "5a" * 32}
        if self.dialect in {"tgi", "generic"}:
            base["shared_prefixes"] = True
        if self.dialect in {"trtllm", "generic"}:
            base["max_context"] = self.context
        return base | more

    # -- what it answers ------------------------------------------------------------------------------------------

    def application(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    async def _handle(self, request: web.Request) -> web.StreamResponse:  # noqa: PLR0911 - one for each path
        body = await request.json() if request.can_read_body else {}
        self.seen.append((request.path, body))
        self.heads.append(dict(request.headers))
        if request.transport is not None:  # the client may have left before its request is looked at
            self.connections.add(request.transport.get_extra_info("peername"))
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "no such key"}}, status=401)
        if request.path in self.silent_at:
            await self.released.wait()
        if request.path == self.version_at:
            return web.json_response({"version": self.version})
        match request.path, self.dialect:
            case "/health", "vllm" | "sglang" | "tgi" | "trtllm" | "llamacpp":
                return web.Response(status=200 if self.is_well else 503)
            case "/v1/models", _:
                listed = {"id": self.model, "object": "model"}
                if self.dialect in {"vllm", "sglang"}:
                    listed["max_model_len"] = self.context
                is_listed = self.is_well or self.dialect == "vllm"  # which lists it whatever its engine does
                return web.json_response({"data": [listed]}, status=200 if is_listed else 503)
            case "/get_server_info", "sglang":
                return web.json_response({"version": self.version})
            case "/info", "tgi":
                limits = {"max_input_tokens": self.most_input, "max_stop_sequences": self.most_stops}
                return web.json_response({"max_total_tokens": self.context} | limits)
            case "/props", "llamacpp":
                return web.json_response({"default_generation_settings": {"n_ctx": self.context}})
            case "/v1/embeddings", _:
                return self._embeddings(request, body)
            case "/v1/score", "vllm":
                pairs = [{"index": number, "score": len(text) / 100} for number, text in enumerate(body["text_2"])]
                return web.json_response({"data": pairs[::-1], "usage": {"prompt_tokens": 11, "total_tokens": 11}})
            case "/v1/chat/completions", _:
                return await self._chat(request, body)
            case "/v1/completions", _:
                prompt = body["prompt"] if isinstance(body["prompt"], str) else " ".join(map(str, body["prompt"]))
                return await self._chat(request, body | {"messages": [{"content": prompt}]})
            case _ if self.tokenizer_hangs:
                await self.released.wait()
            case "/detokenize", "vllm" | "sglang" | "llamacpp":
                name = {"vllm": "prompt", "sglang": "text", "llamacpp": "content"}[self.dialect]
                return web.json_response({name: "".join(self._vocabulary[token] for token in body["tokens"])})
            case _ if self.tokenizes:
                return self._tokenized(request.path, body)
        return web.json_response({"detail": "Not Found"}, status=404)

    def _tokenized(self, path: str, body: dict[str, Any]) -> web.Response:
        match path, self.dialect:
            case "/tokenize", "vllm":
                is_chat = "messages" in body
                tokens = [1] * prompt_of(body["messages"]) if is_chat else self._ids(body["prompt"])
                texts = {"token_strs": [f"t{token}" for token in tokens]} if body.get("return_token_strs") else {}
                answer = {"count": len(tokens), "max_model_len": self.context, "tokens": tokens}
                return web.json_response(answer | texts)
            case "/tokenize", "sglang" if "prompt" in body:
                return web.json_response({"count": words(body["prompt"]), "tokens": self._ids(body["prompt"])})
            case "/chat_tokenize", "tgi":
                tokens = [{"id": 1, "text": "x"}] * prompt_of(body["messages"])
                return web.json_response({"tokenize_response": tokens, "templated_text": ""})
            case "/apply-template", "llamacpp":
                texts = [f"<a> <b> <c> {message['content']} <d>" for message in body["messages"]]
                return web.json_response({"prompt": " ".join(texts)})
            case "/tokenize", "llamacpp":
                return web.json_response({"tokens": self._ids(body["content"])})
        return web.json_response({"detail": "Not Found"}, status=404)

    def _ids(self, text: str) -> list[int]:
        """Its tokens: words with the space behind them."""
        pieces = re.findall(r"\S+\s*", text)
        self._vocabulary += [piece for piece in dict.fromkeys(pieces) if piece not in self._vocabulary]
        return [self._vocabulary.index(piece) for piece in pieces]

    def _embeddings(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        plan = self.plans.pop(0) if self.plans else self.plan
        if plan.status != 200 or plan.body is not None:
            return web.Response(status=plan.status, body=plan.body or b"{}", headers=plan.headers)
        counts = [words(item) if isinstance(item, str) else len(item) for item in body["input"]]
        vectors = [
            [byte / 255 for byte in hashlib.blake2b(repr(item).encode(), digest_size=WIDTH).digest()]
            for item in body["input"]
        ]
        data = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
        self.served[request.headers["x-request-id"]] = {"prompt": sum(counts), "completion": 0}
        usage = {"prompt_tokens": sum(counts), "total_tokens": sum(counts)} if plan.says_usage else None
        return web.json_response({"data": data[::-1], "usage": usage})

    async def _chat(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body["model"] != self.model:
            return web.json_response({"error": {"message": f"no model {body['model']}"}}, status=404)
        plan = self.plans.pop(0) if self.plans else self.plan
        if plan.status != 200 or plan.body is not None:
            return web.Response(status=plan.status, body=plan.body or b"{}", headers=plan.headers)
        identifier = request.headers["x-request-id"]
        async with self.changed:
            self.running.add(identifier)
            self.order.append(said(body["messages"][-1]))
            self.most_running = max(self.most_running, len(self.running))
            self.changed.notify_all()
        try:
            if plan.hang_before:
                await self.released.wait()
            return await _Answer(self, request, body, plan).send()
        except asyncio.CancelledError:
            self.aborted.add(identifier)
            raise
        except ConnectionError:
            self.aborted.add(identifier)
            return web.Response()  # to nobody
        finally:
            self.running.discard(identifier)
            async with self.changed:
                self.changed.notify_all()

    def cached(self, plan: Plan, body: dict[str, Any]) -> int | None:
        """Cached tokens of the prompt: what the plan says, or whether this prompt was seen with this salt."""
        if plan.cached != -1:
            return plan.cached
        if body.get("cache_prompt") is False:
            return 0
        key = (body.get("cache_salt", ""), json.dumps(body["messages"]))
        known = key in self._prefixes
        self._prefixes.add(key)
        return prompt_of(body["messages"]) - 1 if known else 0


class _Answer:
    """One streamed chat."""

    def __init__(self, upstream: Upstream, request: web.Request, body: dict[str, Any], plan: Plan) -> None:
        self.upstream = upstream
        self.request = request
        self.body = body
        self.plan = plan
        self.prompt = prompt_of(body["messages"]) - (4 if "prompt" in body else 0)
        self.cached = upstream.cached(plan, body)
        self.made = 0
        self.thought = 0
        options = body.get("stream_options", {})
        self.continuous = plan.counts and bool(options.get("continuous_usage_stats") or body.get("timings_per_token"))
        self.response = web.StreamResponse(headers={"content-type": "text/event-stream"} | dict(plan.headers))

    def usage(self, *, is_last: bool = False) -> dict[str, Any]:
        told: dict[str, Any] = {"prompt_tokens": self.prompt, "completion_tokens": self.made}
        if is_last or self.upstream.dialect not in {"vllm", "sglang"}:
            told["prompt_tokens_details"] = None if self.cached is None else {"cached_tokens": self.cached}
        if self.plan.reasoning:
            if self.upstream.dialect == "sglang":
                told["reasoning_tokens"] = self.thought
            else:
                told["completion_tokens_details"] = {"reasoning_tokens": self.thought}
        return told

    async def event(self, delta: dict[str, Any] | None, finish: str | None = None, stop: Any = None, **more) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        if self.body.get("logprobs") and (delta or {}).get("content"):
            told_ones = [{"token": delta["content"], "logprob": -0.5, "bytes": None}, {"token": "x", "logprob": -1.5}]
            top = told_ones[: self.body["top_logprobs"]]
            choice["logprobs"] = {"content": [{**told_ones[0], "top_logprobs": top}]}
        if "prompt" in self.body:
            choice = {"index": 0, "text": (delta or {}).get("content", ""), "finish_reason": finish}
        if stop is not None:
            choice["matched_stop" if self.upstream.dialect == "sglang" else "stop_reason"] = stop
        told: dict[str, Any] = {"object": "chat.completion.chunk", "choices": [] if delta is None else [choice]} | more
        if self.continuous and "usage" not in told:
            if self.upstream.dialect == "llamacpp":
                cached = self.cached or 0
                told["timings"] = {"prompt_n": self.prompt - cached, "cache_n": cached, "predicted_n": self.made}
            else:
                told["usage"] = self.usage()
        await self.write(b"data: " + json.dumps(told).encode() + b"\n\n")

    async def write(self, data: bytes) -> None:
        size = self.plan.in_bytes or len(data)
        for start in range(0, len(data), size):
            await self.response.write(data[start : start + size])
            await asyncio.sleep(0)

    async def send(self) -> web.StreamResponse:
        plan, upstream = self.plan, self.upstream
        await self.response.prepare(self.request)
        for _ in range(plan.pings):
            await self.write(b": ping\n\n")
        while plan.pings_for_ever:
            await self.write(b": ping\n\n")
            await asyncio.sleep(0.005)
        # The first event may tell the prompt's size, so a client that leaves now owes that much.
        upstream.served[self.request.headers["x-request-id"]] = {"prompt": self.prompt, "completion": 0}
        await self.event({"role": "assistant", "content": ""})
        finish, stop = await self.tokens()
        if finish:
            await self.event({}, finish, stop)
            if plan.says_usage:
                await self.event(None, usage=self.usage(is_last=True) if plan.usage is None else dict(plan.usage))
            if plan.lingers:
                await upstream.released.wait()
            await self.write(b"data: [DONE]\n\n")
            if plan.ends_late:
                await upstream.released.wait()
        await self.response.write_eof()
        return self.response

    async def tokens(self) -> tuple[str | None, Any]:
        plan = self.plan
        answer = said(self.body["messages"][-1]).split(" ")
        most = self.body["max_tokens"] if plan.obeys else 10_000
        stops = StopMatcher(tuple(self.body.get("stop", ())))
        thoughts = [f"hm{number}" for number in range(plan.reasoning)]
        endless = cycle(answer) if self.body.get("ignore_eos") else iter(answer)
        pending = ""
        for word in islice([*thoughts, *islice(endless, most)], most):
            number = self.made + 1
            if number == plan.end_at:
                return None, None
            if number == plan.error_at or word == "FAIL":
                await self.write(b'data: {"error": {"message": "the row failed", "code": 500}}\n\n')
                return None, None
            if number == plan.garbage_at:
                await self.write(b"data: {]\n\n")
            if number == plan.die_at:
                self.request.transport.abort()
                return None, None
            if number == plan.stall_at:
                async with self.upstream.changed:
                    self.upstream.changed.notify_all()
                await self.upstream.released.wait()
            if plan.pace:
                await asyncio.sleep(plan.pace)
            self.made += 1
            self.upstream.served[self.request.headers["x-request-id"]] = {
                "prompt": self.prompt,
                "completion": self.made,
            }
            if self.thought < plan.reasoning:
                self.thought += 1
                await self.event({"reasoning_content": word})
                continue
            pending += stops.push(word if self.made == 1 + plan.reasoning else f" {word}")
            if stops.matched is not None:
                await self.event({"content": pending})
                return "stop", stops.matched
            if self.made % plan.at_once == 0:
                await self.event({"content": pending})
                pending = ""
        pending += stops.finish()
        if pending:
            await self.event({"content": pending})
        is_over = self.made >= most and not (
            self.made == len(answer) + plan.reasoning and "ignore_eos" not in self.body
        )
        return "length" if is_over else "stop", None


def words(text: str) -> int:
    return len(text.split(" "))


def said(message: dict[str, Any]) -> str:
    """The text of a message."""
    content = message["content"] or ""
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if part["type"] == "text")


def prompt_of(messages: list[dict[str, Any]]) -> int:
    """Tokens of a chat: its words, and four for each message."""
    return sum(words(said(message)) + 4 for message in messages)


@asynccontextmanager
async def serving(upstream: Upstream, port: int = 0):
    """Run `upstream` on that port, or a free one; its address is then known."""
    runner = web.AppRunner(upstream.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    upstream.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield upstream
    finally:
        upstream.released.set()
        await runner.cleanup()


@contextmanager
def serving_in_thread(upstream: Upstream):
    """Run `upstream` on a loop of its own, for tests without one."""
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(upstream):
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield upstream
    finally:
        done.set()
        thread.join()
