"""A large batch while processes die, and what it takes of others: every line once, charged once, in its order.

    python benchmarks/batches/run.py [--lines 10000] [--database sqlite|postgresql] [--seconds 20] [--rate 5]

A whole Sluice (`manage.py serve`: gateway, jobs, and a worker with the fake architecture, which answers with the last
message) gets interactive streams of two tenants at a steady rate, first alone, then while a batch of one of the two
runs: the time to their first token is measured both times. Then the gateway is killed twice (SIGKILL) while
it runs lines; the supervisor alone starts another. When the batch has ended, each line must have been
answered with its own text, once, in the order of the input; each must have one charged usage record at the batch's
rate; nothing may be held; and the books must agree. Prints its table; the exit status says whether all was so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from openai import OpenAI

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.services.postgres import PostgresServer  # noqa: E402
from tests.stack.stack import Stack, running_stack  # noqa: E402

MODEL, CHAT = "fake-chat", "/v1/chat/completions"
STEP_SECONDS = 0.004
LAPSE_SECONDS = 60.0  # a killed process' claims and holds


@contextmanager
def database(kind: str) -> Iterator[str]:
    """Yield the address of a PostgreSQL server of this run, or nothing for SQLite."""
    if kind == "sqlite":
        yield ""
        return
    server = PostgresServer.start()
    try:
        yield server.url
    finally:
        server.stop()


def requests_of(lines: int) -> bytes:
    """Return the input: each line asks for an answer of its own."""
    made = (
        {
            "custom_id": f"document-{number}",
            "method": "POST",
            "url": CHAT,
            "body": {
                "model": MODEL,
                "messages": [{"role": "user", "content": f"document {number}"}],
                "max_tokens": 32,
            },
        }
        for number in range(lines)
    )
    return b"".join(json.dumps(line).encode() + b"\n" for line in made)


# -- interactive requests -----------------------------------------------------------------------------------------


async def first_tokens(stack: Stack, keys: list[str], *, seconds: float, rate: float) -> list[float]:
    """Return the seconds to the first token of streams that begin at a steady rate, whatever becomes of the others."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "How are you today?"}], "stream": True}
    found: list[float] = []

    async def one(session: aiohttp.ClientSession, key: str) -> None:
        began = time.perf_counter()
        async with session.post(stack.base_url + CHAT, json=body, headers={"authorization": f"Bearer {key}"}) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                if b'"content":"' in line and b'"content":""' not in line:
                    found.append(time.perf_counter() - began)
                    break
            async for _ in answer.content:
                pass

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for number in range(round(seconds * rate)):
            group.create_task(one(session, keys[number % len(keys)]))
            await asyncio.sleep(1 / rate)
    return found


def percentile(values: list[float], part: float) -> float:
    """Return the value (ms) below which `part` of them lie."""
    return 1000 * statistics.quantiles(values, n=100, method="inclusive")[round(part * 100) - 1]


# -- the batch ----------------------------------------------------------------------------------------------------


def wait(client: OpenAI, name: str, *, share: float, seconds: float) -> Any:
    """Return the batch once `share` of its lines have ended, or all of it has."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            batch = client.batches.retrieve(name)
        except OSError:
            batch = None  # the gateway is being started anew
        except Exception as error:  # noqa: BLE001 - the same, in the SDK's words
            print(f"    ({type(error).__name__})")
            batch = None
        if batch is not None:
            counts = batch.request_counts
            if batch.status in {"completed", "failed", "expired", "cancelled"}:
                return batch
            if share < 1 and counts.total and counts.completed + counts.failed >= share * counts.total:
                return batch
        time.sleep(0.5)
    raise TimeoutError(f"the batch is at {batch and batch.request_counts}")


def wrongs(stack: Stack, client: OpenAI, batch: Any, lines: int) -> list[str]:
    """Return what isn't as it has to be."""
    found: list[str] = []
    if batch.status != "completed":
        return [f"the batch is {batch.status}: {batch.errors}"]
    counts = batch.request_counts
    if (counts.total, counts.completed, counts.failed) != (lines, lines, 0):
        found.append(f"counts are {counts}")
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    if [answer["custom_id"] for answer in answers] != [f"document-{number}" for number in range(lines)]:
        found.append("the output isn't every line once, in the order of the input")
    told = [answer["response"]["body"]["choices"][0]["message"]["content"] for answer in answers]
    if told != [f"document {number}" for number in range(len(told))]:
        found.append("a line has the answer of another")
    records = stack.script("lines_charged", batch.id)
    charged = sum(answer["response"]["body"]["usage"]["credits_micro"] for answer in answers)
    if records != {"charged": lines, "sum": charged, "multipliers": [5000]}:
        found.append(f"{records} is charged for {lines} lines, whose answers say {charged} µcr")
    books = stack.audit()
    if not books["usage_sum"] == books["ledger_sum"] == books["recomputed_sum"]:
        found.append(f"the books disagree: {books}")
    if any(wallet["held"] for wallet in books["wallets"].values()):
        found.append("something is held")
    return found


def run(stack: Stack, options: argparse.Namespace) -> bool:
    """Do all of it and print the table; return whether everything was as it has to be."""
    keys = [stack.tenants[slug]["key"] for slug in ("max", "business")]
    client = OpenAI(api_key=keys[0], base_url=f"{stack.base_url}/v1", max_retries=3)
    measure = {"seconds": options.seconds, "rate": options.rate}
    asyncio.run(first_tokens(stack, keys, seconds=3, rate=options.rate))  # warms up
    alone = asyncio.run(first_tokens(stack, keys, **measure))
    file = client.files.create(file=("input.jsonl", requests_of(options.lines)), purpose="batch")
    began = time.monotonic()
    made = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    wait(client, made.id, share=0.001, seconds=120)
    first, since = client.batches.retrieve(made.id).request_counts.completed, time.monotonic()
    beside = asyncio.run(first_tokens(stack, keys, **measure))
    speed = (client.batches.retrieve(made.id).request_counts.completed - first) / (time.monotonic() - since)
    for child, share in (("gateway", 0.4), ("gateway", 0.7)):
        before = wait(client, made.id, share=share, seconds=options.patience).request_counts
        stack.kill(child)
        print(
            f"  {time.monotonic() - began:6.1f} s  kill -9 {child} at {before.completed} of {before.total}", flush=True
        )
    batch = wait(client, made.id, share=1, seconds=options.patience + LAPSE_SECONDS)
    took = time.monotonic() - began
    found = wrongs(stack, client, batch, options.lines)
    ratio = percentile(beside, 0.99) / percentile(alone, 0.99)
    print(f"\n| {options.database}, {options.lines} lines | |\n|---|---|")
    print(f"| from the request to the files, with both kills | {took:.0f} s |")
    print(f"| lines a second beside {options.rate:g} streams a second | {speed:.0f} |")
    print(f"| every line once, in order, with its own answer | {'no' if found else 'yes'} |")
    print(f"| charged usage records of the batch | {options.lines if not found else '?'} |")
    for name, part in (("median", 0.5), ("p99", 0.99)):
        print(
            f"| time to first token, {name}: alone, beside the batch | "
            f"{percentile(alone, part):.1f} ms, {percentile(beside, part):.1f} ms |"
        )
    print(f"| p99 beside the batch, of alone | {ratio:.2f} |")
    for one in found:
        print(f"WRONG: {one}")
    return not found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--rate", type=float, default=5.0, help="interactive streams a second")
    parser.add_argument("--patience", type=float, default=3600.0, help="seconds for a part of the batch")
    options = parser.parse_args()
    with (
        database(options.database) as server,
        running_stack(server=server, chat={"step_seconds": STEP_SECONDS}) as stack,
    ):
        is_right = run(stack, options)
        stack.stop()
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
