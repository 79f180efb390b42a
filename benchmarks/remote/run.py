"""A real foreign server behind the whole gateway: `python benchmarks/remote/run.py transformers|guidellm|vllm`.

Adds the server as a remote engine, sends whole answers, streams and streams that their clients leave, and compares the
usage records with what the server says of the same request when it is asked directly. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from base.http import open_directly  # noqa: E402
from benchmarks.remote.servers import SERVERS, running, versions  # noqa: E402

WHOLE, STREAMED, LEFT = (int(os.environ.get("SLUICE_BENCH_REQUESTS", "6")),) * 3
MOST = 20  # output tokens


def manage(*arguments: str, **options: Any) -> str:
    """Run a command in the gateway's home."""
    command = [sys.executable, str(ROOT / "manage.py"), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, **options)
    if done.returncode:
        raise SystemExit(f"manage.py {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def body(number: int, model: str, **more: Any) -> dict[str, Any]:
    text = f"Name {number + 3} animals, one after the other."
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": MOST,
        "temperature": 0,
    } | more


async def whole(session: aiohttp.ClientSession, base: str, given: dict[str, Any]) -> dict[str, Any]:
    async with session.post(f"{base}/v1/chat/completions", json=given) as answer:
        told: dict[str, Any] = await answer.json()
        assert answer.status == 200, told
        return told | {"request": answer.headers.get("x-request-id", "")}


async def streamed(
    session: aiohttp.ClientSession, base: str, given: dict[str, Any], leave_after: int = 0
) -> tuple[str, float | None, int]:
    """Read a stream, or leave after so many events with text; returns its id, seconds to the first text, texts."""
    began, first, texts = time.perf_counter(), None, 0
    given = given | {"stream": True, "stream_options": {"include_usage": True}}
    async with session.post(f"{base}/v1/chat/completions", json=given) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            choices = json.loads(line[6:]).get("choices") or [{}]
            if choices[0].get("delta", {}).get("content"):
                texts += 1
                first = first or time.perf_counter() - began
                if leave_after and texts >= leave_after:
                    answer.close()
                    break
        return answer.headers.get("x-request-id", ""), first, texts


async def record(session: aiohttp.ClientSession, base: str, request: str) -> dict[str, Any]:
    """The usage record of a request, once it is there."""
    async with asyncio.timeout(30):
        while True:
            async with session.get(f"{base}/v1/usage/{request}") as answer:
                if answer.status == 200:
                    found: dict[str, Any] = await answer.json()
                    return found
            await asyncio.sleep(0.1)


def counts(usage: dict[str, Any]) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"]


async def measure(gateway: str, key: str, server: str, model: str) -> dict[str, Any]:
    """Return everything that is compared."""
    timeout = aiohttp.ClientTimeout(total=300)
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}, timeout=timeout) as ours,
        aiohttp.ClientSession(timeout=timeout) as theirs,
    ):
        same = exact = 0
        for number in range(WHOLE):
            direct = await whole(theirs, server, body(number, model))
            through = await whole(ours, gateway, body(number, "remote"))
            found = await record(ours, gateway, through["request"])
            same += counts(direct["usage"]) == counts(through["usage"])
            exact += found["is_exact"]
        alone = [await streamed(theirs, server, body(number, model)) for number in range(STREAMED)]
        behind = [await streamed(ours, gateway, body(number, "remote")) for number in range(STREAMED)]
        left = await asyncio.gather(
            *(streamed(ours, gateway, body(number, "remote"), leave_after=1 + number % 5) for number in range(LEFT))
        )
        records = [await record(ours, gateway, request) for request, _, _ in left]
        explained = await record(ours, gateway, behind[0][0])
        return {
            "whole": WHOLE,
            "same usage as the server asked directly": same,
            "exact records": exact,
            "ttft direct, ms": round(statistics.median(first or 0 for _, first, _ in alone) * 1000, 1),
            "ttft behind the gateway, ms": round(statistics.median(first or 0 for _, first, _ in behind) * 1000, 1),
            "left": LEFT,
            "texts read, output tokens charged, exact": [
                (texts, found["usage"]["output_tokens"], found["is_exact"])
                for (_, _, texts), found in zip(left, records, strict=True)
            ],
            "routed": explained["route"]["reason"],
        }


def busy(server: str) -> float | None:
    """Requests that still run at a vLLM."""
    try:
        with open_directly(f"{server}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return None
    found = [line for line in lines if line.startswith("vllm:num_requests_running")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found) if found else None


def main(kind: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    work = Path(tempfile.mkdtemp(prefix=f"sluice-remote-{kind}-"))
    os.environ |= {"SLUICE_HOME": str(work / "home"), "SLUICE_REMOTE_NETWORKS": "127.0.0.0/8"}
    facts = json.loads(manage("quickstart", "--json"))
    [folder] = (work / "home" / "models").glob("SmolLM2*")  # the first chat model, as it was converted
    port, gateway_port = free_port(), free_port()
    with running(kind, folder, port, work / "server.log") as (server, model):
        options = json.dumps(SERVERS[kind].options())
        add = ["models", "add-remote", server, "--dialect", SERVERS[kind].dialect, "--model", model, "--name", "remote"]
        said = manage(*add, "--options", options)
        gateway = f"http://127.0.0.1:{gateway_port}"
        with (work / "gateway.log").open("w") as log:
            start = [sys.executable, str(ROOT / "manage.py"), "gateway", "--port", str(gateway_port)]
            process = subprocess.Popen(start, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
            try:
                ready(gateway, facts["api_key"], process)
                found = asyncio.run(measure(gateway, facts["api_key"], server, model))
                time.sleep(1)
                found["running at the server afterwards"] = busy(server)
            finally:
                process.terminate()
                process.wait(20)
        found["books"] = manage("reconcile").strip().splitlines()[-1]
    print(json.dumps({"server": versions(kind), "added": said.splitlines(), **found, "logs": str(work)}, indent=1))


def ready(gateway: str, key: str, process: subprocess.Popen[bytes], model: str = "remote", seconds: float = 30) -> None:
    """Wait until the model is served."""
    given = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    data = json.dumps(body(0, model, max_tokens=1)).encode()
    request = urllib.request.Request(f"{gateway}/v1/chat/completions", data=data, headers=given)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert process.poll() is None, "the gateway ended"
        try:
            open_directly(request, timeout=30).close()
        except urllib.error.HTTPError as refused:  # served, and its engine not reached yet
            if refused.status != 503:
                raise SystemExit(refused.read().decode()) from refused
        except OSError:
            pass
        else:
            return
        time.sleep(0.25)
    raise SystemExit("the gateway didn't come up")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in SERVERS:
        raise SystemExit(f"usage: run.py {'|'.join(SERVERS)}")
    main(sys.argv[1])
