"""Engines that do as each request's script says: our own, and a foreign server that lies about its usage.

A request's number stands at the beginning of its text, and the script that has this number says how it goes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from inference.clients.fake import FakeEngine
from inference.types import Delta
from tests.upstream import Upstream, prompt_of, said

BIG = 2**31


@dataclass(frozen=True)
class Script:
    """How one request goes; words count from 1, 0 is never."""

    words: int = 8
    thought: int = 0  # so many of them are thought first
    cached: int | None = 0  # of the prompt, as a foreign server says; None: it doesn't
    lie: str = "truth"
    gate: int = 0  # it waits before this word until it is let go on
    die: int = 0  # a foreign server's connection breaks before this word
    status: int = 200


@dataclass
class Scripts:
    """The scripts by request, and where requests wait."""

    by_number: dict[int, Script] = field(default_factory=dict)
    truths: dict[int, Truth] = field(default_factory=dict)  # of foreign servers
    waiting: dict[int, asyncio.Event] = field(default_factory=dict)

    async def gate(self, number: int) -> None:
        """Wait until the request is let go on."""
        self.waiting[number] = stopped = asyncio.Event()
        try:
            await stopped.wait()
        finally:
            self.waiting.pop(number, None)

    def let_go_on(self, number: int) -> None:
        if (stopped := self.waiting.pop(number, None)) is not None:
            stopped.set()


def number_in(text: str) -> int:
    return int(text.split(" ", 1)[0][1:])


def gated(scripts: Scripts) -> type[FakeEngine]:
    """Return our own engine's double, which stops where a request's script says."""

    class Gated(FakeEngine):
        async def generate(self, prepared, allowance, is_final):
            number = number_in(prepared.request.messages[-1].texts[0])
            self.__dict__.setdefault("numbers", {})[prepared.request.id] = number
            gate = scripts.by_number[number].gate
            async with aclosing(super().generate(prepared, allowance, is_final)) as events:
                async for event in events:
                    if gate and isinstance(event, Delta) and event.usage.completion >= gate:
                        gate = 0
                        await scripts.gate(number)
                    yield event

        async def cancel(self, request_id):
            await super().cancel(request_id)
            if (number := self.__dict__.get("numbers", {}).get(request_id)) is not None:
                scripts.let_go_on(number)

    return Gated


# -- the foreign server ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """What a foreign server ran, and the most that it was asked for."""

    prompt: int
    cached: int | None
    words: int
    thought: int
    most: int

    def usage(self, **lies: Any) -> dict[str, Any]:
        """Return the usage as it is told, but for the lies."""
        told = {
            "prompt": self.prompt,
            "cached": self.cached,
            "completion": self.words,
            "reasoning": self.thought,
        } | lies
        return {
            "prompt_tokens": told["prompt"],
            "completion_tokens": told["completion"],
            "prompt_tokens_details": {"cached_tokens": told["cached"]},
            "completion_tokens_details": {"reasoning_tokens": told["reasoning"]},
        }


End = list[
    Any
]  # usages, each told in an event of its own behind the answer; a str instead of one says where the end is
LIES: dict[str, Callable[[Truth], End]] = {
    "truth": lambda t: [t.usage()],
    "twice": lambda t: [t.usage(), t.usage()],
    "split": lambda t: [{"prompt_tokens": t.prompt}, {"completion_tokens": t.words}],
    "thought kept back": lambda t: [t.usage(completion=min(t.words + 7, t.most))],
    "too many": lambda t: [t.usage(completion=t.most + 1)],
    "far too many": lambda t: [t.usage(completion=BIG - 1, prompt=BIG - 1, cached=BIG - 1, reasoning=BIG - 1)],
    "too few": lambda t: [t.usage(completion=t.words - 1)],
    "none": lambda t: [t.usage(prompt=0, completion=0, cached=0, reasoning=0)],
    "huge": lambda t: [t.usage(prompt=10**30, completion=10**30, cached=10**30, reasoning=10**30)],
    "negative": lambda t: [t.usage(prompt=-5, completion=-1, cached=-(10**12), reasoning=-3)],
    "no numbers": lambda t: [t.usage(prompt="9", completion=2.5, cached=True, reasoning=[1])],
    "no usage": lambda _: [{"prompt_tokens": None}, [], "x", 7],
    "going down": lambda t: [t.usage(), t.usage(completion=t.words - 1)],
    "prompt going up": lambda t: [t.usage(), t.usage(prompt=t.prompt + 1)],
    "prompt far too large": lambda t: [t.usage(prompt=100 * t.prompt)],
    "prompt too small": lambda t: [t.usage(prompt=1)],
    "prompt smaller": lambda t: [t.usage(prompt=t.prompt - 1, cached=0)],
    "more cached than prompt": lambda t: [t.usage(cached=t.prompt + 1)],
    "all cached": lambda t: [t.usage(cached=t.prompt)],
    "more thought than answer": lambda t: [t.usage(reasoning=t.words + 1)],
    "all thought": lambda t: [t.usage(reasoning=t.words)],
    "missing": lambda _: [],
    "behind the end": lambda t: ["[DONE]", t.usage(completion=t.words + 1)],
    "never": lambda _: ["…"],
}


def believed(truth: Truth, lie: str) -> tuple[dict[str, int], bool]:
    """Return what is charged for a whole answer of a server whose prompts are counted exactly, and whether it is exact:
    the table of docs/remote.md.
    """
    told = LIES[lie](truth)
    if "[DONE]" in told:
        told = told[: told.index("[DONE]")]
    prompt, cached, completion, reasoning = None, None, None, None
    is_wrong = False

    def count(usage: Any, *path: str) -> int | None:
        for name in path:
            usage = usage.get(name) if isinstance(usage, dict) else None
        return usage if type(usage) is int and 0 <= usage < BIG else None

    for usage in told:
        said_prompt, said_completion = count(usage, "prompt_tokens"), count(usage, "completion_tokens")
        said_cached = count(usage, "prompt_tokens_details", "cached_tokens")
        said_thought = count(usage, "completion_tokens_details", "reasoning_tokens")
        if said_prompt is not None:
            if said_prompt > 3 * truth.prompt or 2 * said_prompt < truth.prompt:
                is_wrong = True
            else:
                prompt = said_prompt
        cached = cached if said_cached is None else said_cached
        if said_completion is not None:
            if said_completion > truth.most:
                is_wrong = True
            else:
                is_wrong = is_wrong or said_completion < (completion or 0)
                completion = max(said_completion, completion or 0)
        reasoning = reasoning if said_thought is None else max(said_thought, reasoning or 0)
    is_whole = prompt is not None and completion is not None and completion >= truth.words
    is_wrong = is_wrong or (prompt or 0) > truth.prompt or (prompt is not None and (cached or 0) > prompt)
    is_wrong = is_wrong or (completion is not None and (reasoning or 0) > completion)
    prompt = truth.prompt if prompt is None else min(prompt, truth.prompt)
    completion = truth.words if completion is None else max(completion, truth.words)
    cached = cached if cached is not None and cached <= prompt else 0
    reasoning = reasoning if reasoning is not None and reasoning <= completion else 0
    classes = {"input": prompt - cached, "cache_read": cached, "output": completion - reasoning, "reasoning": reasoning}
    return classes, is_whole and not is_wrong


class Liar(Upstream):
    """A foreign server that answers with as many words as a request's script says, and then tells its usage."""

    def __init__(self, scripts: Scripts, dialect: str) -> None:
        super().__init__(dialect)
        self.scripts = scripts

    async def _chat(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        number = number_in(said(body["messages"][-1]))
        script = self.scripts.by_number[number]
        if script.status != 200:
            return web.Response(status=script.status, body=b"{}")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        with suppress(ConnectionError):
            await response.prepare(request)
            await self._answer(request, response, body, number, script)
        return response

    async def _answer(self, request, response, body, number, script) -> None:
        async def tell(**event: Any) -> None:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

        prompt, words = prompt_of(body["messages"]), min(script.words, body["max_tokens"])
        thought = min(script.thought, words)
        cached = None if script.cached is None else min(script.cached, prompt)
        self.scripts.truths[number] = truth = Truth(prompt, cached, words, thought, body["max_tokens"])
        await tell(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
        for place in range(1, words + 1):
            if place == script.gate:
                await self.scripts.gate(number)
            if place == script.die:
                request.transport.abort()
                return
            name = "reasoning_content" if place <= thought else "content"
            await tell(choices=[{"index": 0, "delta": {name: f" {place}"}}])
        reason = "length" if words == body["max_tokens"] else "stop"
        await tell(choices=[{"index": 0, "delta": {}, "finish_reason": reason}])
        for usage in [*LIES[script.lie](truth), "[DONE]"]:
            match usage:
                case "[DONE]":
                    await response.write(b"data: [DONE]\n\n")
                case "…":
                    await self.released.wait()
                case _:
                    await tell(choices=[], usage=usage)
        await response.write_eof()
