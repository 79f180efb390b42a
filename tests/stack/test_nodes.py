"""Two workers, one of them over tcp with keys: one dies in the middle of seeded streams, which end as without that."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.services.ports import lease_port
from tests.stack.conftest import PATIENCE, ROOT, running_stack
from tests.stack.web import ask

pytestmark = [pytest.mark.stack, pytest.mark.slow]

STREAMS = 20
SECONDS = PATIENCE
REPLICATE = """
from routing.models import Deployment, Node, Replica
Replica.objects.create(deployment=Deployment.objects.get(name="fake-chat"), node=Node.objects.get(name="far"))
"""


@contextmanager
def far_worker(stack, address):
    """`manage.py worker` of the node "far"."""
    command = [sys.executable, "manage.py", "worker", "--node", "far", "--listen", address]
    process = subprocess.Popen(
        command, cwd=ROOT, env=stack.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said: list[str] = []
    listening = threading.Thread(target=lambda: said.extend(process.stdout), daemon=True)
    listening.start()
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(PATIENCE)
        listening.join()
        process.stdout.close()
        assert code == 0, "".join(said[-40:])


@pytest.fixture(scope="module")
def two():
    """A stack whose model "fake-chat" draws letters slowly, with replicas on "local" and "far"."""
    address = f"tcp://127.0.0.1:{lease_port()}"
    with running_stack(chat={"step_seconds": 0.02, "sampled": True}) as stack:
        stack.manage("nodes", "add", "far", "--address", address)
        stack.manage("shell", "-c", REPLICATE)
        with far_worker(stack, address) as process:
            asyncio.run(until_ready(stack))
            yield stack, process
        assert stack.stop() == 0, "".join(stack.said[-40:])


async def until_ready(stack):
    wanted = [f'sluice_deployment_ready{{deployment="fake-chat",node="{node}"}} 1.0' for node in ("local", "far")]
    async with asyncio.timeout(SECONDS):
        while True:
            shown = (await asyncio.to_thread(ask, f"{stack.base_url}/metrics")).text
            if all(line in shown for line in wanted):
                return
            await asyncio.sleep(0.2)


async def stream(session, stack, seed, started):
    """Return the text of a seeded stream and the usage that it ends with."""
    body = {
        "model": "fake-chat",
        "messages": [{"role": "user", "content": "the quick brown fox jumps over the end"}],
        "max_tokens": 400,
        "temperature": 1.0,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text, usage, count = [], None, 0
    headers = {"Authorization": f"Bearer {stack.tenants['max']['key']}"}
    async with session.post("/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if not line.startswith(b"data: ") or line == b"data: [DONE]\n":
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            usage = event.get("usage") or usage
            text += [choice["delta"].get("content") or "" for choice in event["choices"]]
            count += 1
            if count == 4:
                started.set()
    started.set()
    return "".join(text), usage


async def streams(stack, when_started=lambda: None):
    """Return what each of the streams gave; `when_started` is called once all of them have begun."""
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(stack.base_url, timeout=timeout) as session:
        started = [asyncio.Event() for _ in range(STREAMS)]
        reading = [asyncio.create_task(stream(session, stack, seed, event)) for seed, event in enumerate(started)]
        await asyncio.gather(*(event.wait() for event in started))
        when_started()
        return await asyncio.gather(*reading)


def worker_of(process):
    """Return the process id of the worker under a `manage.py worker`."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            if parent == process.pid and b"inference.worker" in (status.parent / "cmdline").read_bytes():
                return int(status.parent.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise LookupError("no worker runs")


@pytest.mark.parametrize("victim", ["far", "local"])
def test_streams_whose_worker_is_killed_end_with_the_text_they_would_have_had(two, victim):
    stack, process = two
    expected = asyncio.run(streams(stack))
    assert all(usage["completion_tokens"] == len(text) == 400 for text, usage in expected)
    assert len({text for text, _ in expected}) == STREAMS, "each seed has a text of its own"
    before = len(stack.audit()["usage"])

    def kill():
        if victim == "local":
            stack.kill("worker")
        else:
            os.kill(worker_of(process), signal.SIGKILL)

    moved = sum("request_moved" in line for line in stack.said)
    got = asyncio.run(streams(stack, kill))
    assert [text for text, _ in got] == [text for text, _ in expected]
    for (_, usage), (_, other) in zip(got, expected, strict=True):
        assert usage["completion_tokens"] == other["completion_tokens"]
        assert usage["prompt_tokens"] == other["prompt_tokens"]
    stack.wait_until_said(lambda said: sum("request_moved" in line for line in said) > moved)
    found = stack.audit()
    assert found["usage_sum"] == found["ledger_sum"] == found["recomputed_sum"]
    assert len(found["usage"]) == before + STREAMS, "each is charged once"
    assert all(record["exact"] and not record["waived"] for record in found["usage"].values())
    asyncio.run(until_ready(stack))
