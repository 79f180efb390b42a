"""How often `auto` finds the task of a request that doesn't say it, and what finding it adds to a request's time.

    python benchmarks/routing/run.py [--count 400] [--pairs 200] [--busy 4]

A fresh first run (`manage.py quickstart`, then `serve`: the first models and the rules that they come with) gets
held-out requests (`benchmarks/routing/requests.py`) for `auto` as chats of one token. The tasks that their explanations
say are shown beside those that they have. Then new requests are counted (`/v1/responses/input_tokens`, which routes and
tokenises and runs nothing) in pairs, one for `auto` and one for `auto:chat`, in turns of who goes first: the difference
is what the comparison adds, alone and while `--busy` chats generate. Prints two tables.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.routing.requests import HELD_OUT, TASKS, Request, requests  # noqa: E402
from inference.sources import first_models  # noqa: E402
from tests.services.ports import lease_port  # noqa: E402
from tests.stack.stack import Stack  # noqa: E402

NONE = "abstained"


class Client:
    """A session with the stack's key."""

    def __init__(self, session: aiohttp.ClientSession, facts: dict[str, Any]) -> None:
        self._session = session
        self._base = facts["base_url"]
        self._headers = {"authorization": f"Bearer {facts['api_key']}"}

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[Any, str]:
        """Return the answer, tried again where a limit is reached, and its request's id."""
        while True:
            async with self._session.request(method, self._base + path, json=body, headers=self._headers) as answer:
                if answer.status == 429:
                    await asyncio.sleep(float(answer.headers.get("retry-after", "1")))
                    continue
                assert answer.status == 200, await answer.text()
                return await answer.json(), answer.headers["x-request-id"]

    async def route_of(self, request: Request) -> dict[str, Any]:
        """Return the explanation of where the request went."""
        body = {"model": "auto", "messages": request.messages, "max_tokens": 1}
        _, identifier = await self.ask("POST", "/v1/chat/completions", body)
        told, _ = await self.ask("GET", f"/v1/usage/{identifier}")
        route: dict[str, Any] = told["route"]
        return route

    async def counted(self, model: str, text: str) -> float:
        """Return the seconds that counting a prompt's tokens takes."""
        began = time.perf_counter()
        await self.ask("POST", "/v1/responses/input_tokens", {"model": model, "input": text})
        return time.perf_counter() - began


def started(home: Path) -> Stack:
    """Return a first run that serves."""
    for model in first_models.install(home).values():
        assert model.is_dir()
    environment = {**os.environ, "SLUICE_HOME": str(home), "SLUICE_ENV": "development"}
    for name in ("DJANGO_SETTINGS_MODULE", "DATABASE_URL", "REDIS_URL"):
        environment.pop(name, None)
    stack = Stack(home, environment, lease_port(), {})
    command = [sys.executable, "manage.py", "quickstart", "--json", "--port", str(stack.port)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=200)
    stack.tenants = {"demo": json.loads(done.stdout)}
    stack.start()
    return stack


async def until_read(client: Client) -> None:
    """Return when the rules' examples have been read."""
    async with asyncio.timeout(120):
        while True:
            route = await client.route_of(Request("chat", "", f"Hello {time.monotonic()}!"))
            if "not read yet" not in json.dumps(route["signals"]) and "no embedding" not in json.dumps(
                route["signals"]
            ):
                return
            await asyncio.sleep(0.5)


async def confusion(client: Client, count: int) -> None:
    """Print which tasks were found for how many requests of each."""
    found: Counter[tuple[str, str]] = Counter()
    for request in requests(HELD_OUT, count):
        route = await client.route_of(request)
        found[request.task, route["task"] if route["task_source"] in {"instruction", "examples"} else NONE] += 1
    columns = (*TASKS, NONE)
    print(f"| task | {' | '.join(columns)} | right |\n|---|{'---|' * (len(columns) + 1)}")
    for task in TASKS:
        row = [found[task, column] for column in columns]
        print(f"| {task} | {' | '.join(map(str, row))} | {found[task, task] / max(1, sum(row)):.0%} |")
    right = sum(found[task, task] for task in TASKS)
    abstained = sum(found[task, NONE] for task in TASKS)
    # Who abstains gets the plan's default, which is chat.
    led = right + found["chat", NONE]
    print(f"\n{count} requests: {right / count:.1%} found, {abstained / count:.1%} abstained,", end=" ")
    print(f"{(count - right - abstained) / count:.1%} wrong; with the plan's default {led / count:.1%} right")


async def added(client: Client, pairs: int, what: str, seed: int) -> None:
    """Print what the comparison adds to a request's time."""
    times: dict[str, list[float]] = {"auto": [], "auto:chat": []}
    for number, request in enumerate(requests(HELD_OUT, pairs, seed)):
        text = f"{request.user} ({seed}.{number})"  # a text that was compared before costs nothing
        for model in sorted(times, reverse=bool(number % 2)):
            times[model].append(await client.counted(model, text))
    differences = [1000 * (a - b) for a, b in zip(times["auto"], times["auto:chat"], strict=True)]
    cells = []
    for values in (*([1000 * t for t in times[m]] for m in ("auto:chat", "auto")), differences):
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        cells.append(f"{cuts[49]:.1f} / {cuts[98]:.1f}")
    print(f"| {what} | {' | '.join(cells)} |")


async def busy(client: Client, stop: asyncio.Event) -> None:
    """Have one chat after another generate until `stop`."""
    body = {"model": "auto:chat", "messages": [{"role": "user", "content": "Tell me a long story."}], "max_tokens": 200}
    while not stop.is_set():
        await client.ask("POST", "/v1/chat/completions", body)


async def measured(stack: Stack, count: int, pairs: int, chats: int) -> None:
    """Print both tables."""
    async with aiohttp.ClientSession() as session:
        client = Client(session, stack.tenants["demo"])
        await until_read(client)
        await confusion(client, count)
        print("\n| ms, p50 / p99 | `auto:chat` | `auto` | added |\n|---|---|---|---|")
        await added(client, pairs, "nothing else runs", seed=2)
        stop = asyncio.Event()
        others = [asyncio.create_task(busy(client, stop)) for _ in range(chats)]
        await added(client, pairs, f"{chats} chats generate", seed=3)
        stop.set()
        await asyncio.gather(*others)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--busy", type=int, default=4)
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="sluice-routing-"))
    try:
        stack = started(home)
        try:
            asyncio.run(measured(stack, given.count, given.pairs, given.busy))
        finally:
            stack.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
