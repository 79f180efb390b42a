"""What a thousand tickets cost, and how many answers are right: the general model, the specialist's adapter, its head.

    python benchmarks/desk/run.py [--tickets 800] [--generator inbox] [--out var/desk.json]
    python benchmarks/desk/run.py --chat FOLDER --embedding FOLDER --adapter FOLDER --labels FOLDER

A first run (`manage.py quickstart`, then `serve`, in a home of its own) answers the held-out file of a generator
(`desk.training.evaluate.held_out`: 400 questions for labels, 400 for fields as JSON) over HTTP, sixteen at a time, in
four ways one after the other: the general model freely; the same held to one of the labels, or to a JSON schema; the
adapter `sluice-desk` held alike; and `/v1/classify` of `sluice-desk-labels`, which has no fields. Each way has a tenant
of its own, so that no way finds another's prompts in the cache. Temperature 0, at most 200 tokens.

All are judged alike. A label is right if it is the answer's text, whatever its case, without white space, quotes and a
full stop around it; JSON is right if the first object in the answer has exactly the asked fields with the right values.
Credits are those of the usage records (`/v1/usage/ID`), seconds those from the first question to the last answer.
The folders take the place of what the packages bring: the first two models, an adapter, a classifier's whole folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.desk.questions import ADAPTER, GENERAL, HEAD, WAYS, Way, is_right, request_of  # noqa: E402
from desk.training.corpus import Example  # noqa: E402
from desk.training.evaluate import COUNT, held_out, kinds  # noqa: E402
from desk.training.generators import GENERATORS  # noqa: E402
from inference.sources import first_models  # noqa: E402
from tests.services.ports import lease_port  # noqa: E402
from tests.stack.stack import PATIENCE, Stack  # noqa: E402

AT_ONCE = 16


@dataclass
class Result:
    """What came of one way and task."""

    questions: int = 0
    right: int = 0
    seconds: float = 0.0
    credits_micro: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    kinds: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Right answers and questions of each kind."""


class Client:
    """A session with one tenant's key."""

    def __init__(self, session: aiohttp.ClientSession, base: str, key: str) -> None:
        self._session, self._base, self._headers = session, base, {"authorization": f"Bearer {key}"}

    async def answer(self, way: Way, example: Example) -> tuple[str, str]:
        """Return the answer's text and its request's id."""
        path, body = request_of(way, example)
        async with self._session.post(self._base + path, json=body, headers=self._headers) as answer:
            assert answer.status == 200, f"{answer.status}: {await answer.text()}"
            said, identifier = await answer.json(), answer.headers["x-request-id"]
        if way.model == HEAD:
            return said["data"][0]["label"], identifier
        return said["choices"][0]["message"]["content"] or "", identifier

    async def record(self, identifier: str) -> dict[str, Any]:
        """Return a request's usage once it is settled."""
        while True:
            async with self._session.get(f"{self._base}/v1/usage/{identifier}", headers=self._headers) as answer:
                said = await answer.json()
            if said["status"] == "settled":
                usage: dict[str, Any] = said["usage"]
                return usage
            await asyncio.sleep(0.2)


# -- one way ----------------------------------------------------------------------------------------------------------


async def measured(client: Client, way: Way, examples: Sequence[Example]) -> Result:
    """Ask all questions, AT_ONCE at a time."""
    answers: dict[int, tuple[str, str]] = {}
    waiting = iter(enumerate(examples))

    async def worker() -> None:
        for number, example in waiting:
            answers[number] = await client.answer(way, example)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())
    result = Result(questions=len(examples), seconds=time.perf_counter() - began)
    total: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for number, example in enumerate(examples):
        text, identifier = answers[number]
        is_so = is_right(example, text)
        result.right += is_so
        for kind in kinds(example):
            total[kind] += 1
            right[kind] += is_so
        usage = await client.record(identifier)
        result.credits_micro += usage["credits_micro"]
        result.input_tokens += usage["input_tokens"]
        result.output_tokens += usage["output_tokens"]
    result.kinds = {kind: (right[kind], total[kind]) for kind in sorted(total)}
    return result


async def until_served(client: Client, way: Way, example: Example) -> None:
    """Return when the model answers, which it may be loaded for first."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await client.answer(way, example)
            except AssertionError as error:
                if not str(error).startswith("503"):
                    raise
                await asyncio.sleep(0.5)
            else:
                return


async def all_ways(stack: Stack, examples: Sequence[Example]) -> dict[str, dict[str, Result]]:
    """Return what came of each way and task, by slug and task."""
    found: dict[str, dict[str, Result]] = {}
    keys = stack.tenants
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        warm = Client(session, stack.base_url, keys["warm"]["key"])
        for way in WAYS:
            client = Client(session, stack.base_url, keys[way.slug]["key"])
            found[way.slug] = {}
            for task in way.tasks:
                asked = [example for example in examples if example.task == task]
                await until_served(warm, way, asked[0])
                found[way.slug][task] = await measured(client, way, asked)
                result = found[way.slug][task]
                print(f"{way.told}, {task}: {result.right} of {result.questions} in {result.seconds:.0f} s", flush=True)
    return found


# -- the home ---------------------------------------------------------------------------------------------------------


def started(home: Path, options: argparse.Namespace) -> Stack:
    """Return a first run that serves, with a tenant for each way."""
    models = home / "models"
    models.mkdir()
    for name, folder in ((first_models.CHAT, options.chat), (first_models.EMBEDDING, options.embedding)):
        if folder:
            (models / name).symlink_to(folder.resolve())
    environment = {**os.environ, "SLUICE_HOME": str(home), "SLUICE_ENV": "development"}
    for name in ("DJANGO_SETTINGS_MODULE", "DATABASE_URL", "REDIS_URL"):
        environment.pop(name, None)
    stack = Stack(home, environment, lease_port(), {})
    there = json.loads(stack.manage("quickstart", "--json", "--port", str(stack.port)).splitlines()[-1])["models"]
    given = {ADAPTER: (options.adapter, ("--adapter-of", GENERAL)), HEAD: (options.labels, ())}
    for name, (folder, more) in given.items():
        if not folder and name not in there:
            sys.exit(f"{name} is not among the first models ({', '.join(there)}): give its folder (--help)")
        if folder:
            if name in there:
                stack.manage("models", "remove", name)
            stack.manage("models", "add", str(folder.resolve()), "--name", name, "--rate-card", name, *more)
    command = [sys.executable, str(Path(__file__).with_name("tenants.py")), "warm", *(way.slug for way in WAYS)]
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    stack.tenants = {name: {"key": key} for name, key in json.loads(made.stdout.splitlines()[-1]).items()}
    stack.start()
    return stack


# -- what is told -----------------------------------------------------------------------------------------------------


def table(found: dict[str, dict[str, Result]]) -> str:
    """Return the table in Markdown."""
    lines = [
        "| | labels right | JSON exact | credits per 1,000: label | JSON | seconds per 1,000: label | JSON |",
        "|---|---|---|---|---|---|---|",
    ]
    for way in WAYS:
        results = [found[way.slug].get(task) for task in ("classify", "extract")]
        cells = [f"{r.right / r.questions:.1%}" if r else "–" for r in results]
        cells += [f"{r.credits_micro / r.questions / 1000:.3f}" if r else "–" for r in results]
        cells += [f"{1000 * r.seconds / r.questions:.0f}" if r else "–" for r in results]
        lines.append(f"| {way.told} | {' | '.join(cells)} |")
    return "\n".join(lines)


def kinds_table(found: dict[str, dict[str, Result]]) -> str:
    """Return, in Markdown, how many labels were right of each kind of question."""
    names = list(found[WAYS[0].slug]["classify"].kinds)
    head = [f"{name} ({found[WAYS[0].slug]['classify'].kinds[name][1]})" for name in names]
    lines = [f"| right of | {' | '.join(head)} |", f"|---|{'---|' * len(names)}"]
    for way in WAYS:
        pairs = [found[way.slug]["classify"].kinds[name] for name in names]
        lines.append(f"| {way.told} | {' | '.join(f'{right / of:.1%}' for right, of in pairs)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tickets", type=int, default=COUNT, help="so many questions of the file, half of each task")
    parser.add_argument("--generator", choices=tuple(GENERATORS), default="corpus", help="whose file it is")
    parser.add_argument("--out", type=Path, default=ROOT / "var/desk.json", help="gets all figures as JSON")
    parser.add_argument("--chat", type=Path, help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("--embedding", type=Path, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--adapter", type=Path, help=f"folder of {ADAPTER}, in PEFT's format")
    parser.add_argument("--labels", type=Path, help=f"folder of {HEAD}, whole")
    options = parser.parse_args()
    if not 2 <= options.tickets <= COUNT:
        parser.error(f"--tickets: 2 to {COUNT}")
    load = os.getloadavg()[0]
    home = Path(tempfile.mkdtemp(prefix="sluice-desk-"))
    try:
        stack = started(home, options)
        try:
            found = asyncio.run(all_ways(stack, held_out(generator=options.generator)[: options.tickets]))
        finally:
            stack.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(f"\n{options.tickets} questions of {options.generator}, {AT_ONCE} at once; load average before: {load:.1f}\n")
    print(f"{table(found)}\n\n{kinds_table(found)}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figures = {slug: {task: vars(result) for task, result in tasks.items()} for slug, tasks in found.items()}
    options.out.write_text(
        json.dumps({"generator": options.generator, "questions": options.tickets, "load": load, **figures}, indent=2)
        + "\n"
    )
    print(f"\nall figures: {options.out}")


if __name__ == "__main__":
    main()
