"""Clients of every kind, some of which leave in the middle: what the mixed load is made of."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp


async def read_stream(session: aiohttp.ClientSession, request: dict[str, Any], started: asyncio.Event) -> list[str]:
    """Return the events of a chat's stream, to its end or its cut; set `started` after some tokens."""
    events = []
    try:
        async with session.post("/v1/chat/completions", **request) as answer:
            async for line in answer.content:
                if line.startswith(b"data: "):
                    events.append(line[6:].decode().strip())
                if len(events) == 5:
                    started.set()
    except aiohttp.ClientError as error:
        events.append(f"cut: {type(error).__name__}")
    return events


@dataclass
class Job:
    """One request: its kind, the tenant's key, and after how many bytes (if at all) its client leaves."""

    kind: str
    key: str
    leave_after: int | None
    seed: int


@dataclass
class Answered:
    """What a client saw: the status (0 when it left) and the credits it was told, in µcr."""

    kind: str
    status: int
    credits_micro: int | None
    body: str


def whole(answers: Sequence[Answered]) -> list[Answered]:
    """Return the answers that came whole: of the other clients some left, and the rest were told, as on any machine too
    slow for its ledger, that no credit could be held in time.
    """
    stayed = [answer for answer in answers if answer.status]
    made = [answer for answer in stayed if '"ledger_unavailable"' not in answer.body]
    assert {answer.status for answer in made} == {200}, [answer for answer in made if answer.status != 200][:3]
    assert {answer.status for answer in stayed} <= {200, 503}
    assert 2 * len(made) > len(stayed), "most are answered"
    return made


KINDS = ("chat", "chat-stream", "chat-stream", "responses", "responses-stream", "embeddings", "responses-socket")
REMOTE_KINDS = ("remote", "remote-stream")  # chat of the model that a foreign server has


def mixed_jobs(keys: list[str], count: int, seed: int = 1, kinds: Sequence[str] = KINDS) -> list[Job]:
    """Return `count` jobs of `kinds`; about a third of the clients leave, some before the first byte."""
    dice = random.Random(seed)
    return [
        Job(dice.choice(kinds), dice.choice(keys), dice.choice([None, None, dice.randrange(0, 3000)]), number)
        for number in range(count)
    ]


async def run_jobs(base_url: str, jobs: list[Job], concurrency: int = 16) -> list[Answered]:
    """Do all jobs, at most `concurrency` at once."""
    gate = asyncio.Semaphore(concurrency)
    async with aiohttp.ClientSession(base_url, timeout=aiohttp.ClientTimeout(total=120)) as session:

        async def one(job: Job) -> Answered:
            async with gate:
                return await ask(session, job)

        return list(await asyncio.gather(*(one(job) for job in jobs)))


async def ask(session: aiohttp.ClientSession, job: Job) -> Answered:
    """Do one job; what breaks the connection is raised."""
    return await (_socket(session, job) if job.kind == "responses-socket" else _http(session, job))


def _request(job: Job) -> tuple[str, dict[str, object]]:
    dice = random.Random(job.seed)
    words = " ".join(dice.choice(["alpha", "beta", "gamma", "delta"]) for _ in range(dice.randrange(1, 120)))
    stream = job.kind.endswith("-stream")
    match job.kind.partition("-")[0]:
        case "chat" | "remote" as task:
            model = "auto" if task == "chat" else "remote-chat"
            body = {"model": model, "messages": [{"role": "user", "content": words}], "stream": stream}
            more = {"max_tokens": dice.randrange(1, 400)} if dice.random() < 0.7 else {}
            if stream:
                more["stream_options"] = {"include_usage": True}
            return "/v1/chat/completions", {**body, **more}
        case "responses":
            return "/v1/responses", {"model": "fake-chat", "input": words, "stream": stream, "store": False}
        case _:
            return "/v1/embeddings", {"model": "auto", "input": [words, "second input"], "encoding_format": "float"}


async def _http(session: aiohttp.ClientSession, job: Job) -> Answered:
    path, body = _request(job)
    headers = {"Authorization": f"Bearer {job.key}"}
    received = b""
    leaving = asyncio.timeout(0.05 * (job.seed % 7)) if job.leave_after is not None and job.seed % 3 == 0 else None
    try:
        async with leaving or asyncio.timeout(120), session.post(path, json=body, headers=headers) as answer:
            async for chunk in answer.content.iter_any():
                received += chunk
                if job.leave_after is not None and len(received) > job.leave_after:
                    answer.close()
                    return Answered(job.kind, 0, None, "")
            return Answered(job.kind, answer.status, _credits(received.decode()), received.decode())
    except TimeoutError:
        return Answered(job.kind, 0, None, "")


async def _socket(session: aiohttp.ClientSession, job: Job) -> Answered:
    _, body = _request(job)
    body.pop("stream")
    seen = ""
    async with session.ws_connect("/v1/responses", headers={"Authorization": f"Bearer {job.key}"}) as socket:
        await socket.send_str(json.dumps({"type": "response.create", **body}))
        async for message in socket:
            seen = str(message.data)
            if job.leave_after is not None and len(seen) > job.leave_after % 200:
                return Answered(job.kind, 0, None, "")
            if json.loads(seen)["type"] in {"response.completed", "response.incomplete", "response.failed", "error"}:
                break
    return Answered(job.kind, 200, _credits(seen), seen)


def _credits(text: str) -> int | None:
    """Return the last ``credits_micro`` in an answer or a stream."""
    _, found, rest = text.rpartition('"credits_micro":')
    digits = rest.strip().split(",")[0].split("}")[0].strip() if found else ""
    return int(digits) if digits.isdigit() else None
