"""vLLM's CPU build beside our own engine under one model name: `python benchmarks/remote/weights.py [vllm]`.

Both serve the same weights. Whole answers, streams and streams that their clients leave are drawn between them by the
deployments' weights (1 : 3); each usage record must name the deployment, be exact (but of streams that left vLLM), and
agree with what that engine says of itself; what was left must no longer run at either. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
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

from benchmarks.remote.run import body, busy, free_port, manage, ready, record, streamed, whole  # noqa: E402
from benchmarks.remote.servers import SERVERS, running, versions  # noqa: E402

NAME = "smollm2-135m-instruct"
EACH = int(os.environ.get("SLUICE_BENCH_REQUESTS", "24"))  # whole answers, streams, and streams that are left
WEIGHTS = {"worker": 1, "openai": 3}
SET_WEIGHTS = (
    "from routing.models import Deployment\n"
    f"for backend, weight in {WEIGHTS!r}.items():\n"
    f"    for row in Deployment.objects.filter(model__name={NAME!r}, backend=backend):\n"
    "        row.weight = weight; row.save()\n"
    "        print(row.name, row.backend, row.id, row.weight)\n"
)


async def measure(gateway: str, key: str) -> dict[str, Any]:
    """Send everything and return each request's usage record."""
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}, timeout=timeout) as session:
        given = [body(number, NAME) for number in range(EACH)]
        told = [await whole(session, gateway, one) for one in given]
        streams = [await streamed(session, gateway, one) for one in given]
        left = await asyncio.gather(
            *(streamed(session, gateway, one, leave_after=1 + number % 5) for number, one in enumerate(given))
        )
        requests = [one["request"] for one in told] + [one[0] for one in streams] + [one[0] for one in left]
        records = [await record(session, gateway, request) for request in requests]
        same = sum(
            one["usage"]["prompt_tokens"] == found["usage"]["input_tokens"]
            and one["usage"]["completion_tokens"] == found["usage"]["output_tokens"]
            for one, found in zip(told, records, strict=False)
        )
        return {"records": records, "same": same}


def summed(records: list[dict[str, Any]], names: dict[str, str]) -> dict[str, Any]:
    """What the records say by the deployment that served."""
    served = Counter(names[one["route"]["deployment"]] for one in records)
    return {
        "served": dict(served),
        "expected by weight": {
            name: round(len(records) * WEIGHTS[name.split()[0]] / sum(WEIGHTS.values()), 1) for name in served
        },
        "exact records": sum(one["is_exact"] for one in records),
        "prompt tokens of one prompt by engine": {
            name: sorted({one["usage"]["input_tokens"] for one in records if names[one["route"]["deployment"]] == name})
            for name in served
        },
        "statuses": dict(Counter(one["status"] for one in records)),
        "the last explanation": records[-1]["route"],
    }


def main(kind: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    work = Path(tempfile.mkdtemp(prefix=f"sluice-weights-{kind}-"))
    os.environ |= {"SLUICE_HOME": str(work / "home"), "SLUICE_REMOTE_NETWORKS": "127.0.0.0/8"}
    facts = json.loads(manage("quickstart", "--json"))
    [folder] = (work / "home" / "models").glob("SmolLM2*")
    port, gateway_port = free_port(), free_port()
    with running(kind, folder, port, work / "server.log") as (server, model):
        options = json.dumps(SERVERS[kind].options())
        add = ["models", "add-remote", server, "--dialect", SERVERS[kind].dialect, "--model", model, "--name", NAME]
        said = manage(*add, "--options", options)
        rows = [line.split() for line in manage("shell", "-v0", "-c", SET_WEIGHTS).splitlines()]
        names = {name: f"{backend} ({name})" for name, backend, _, _ in rows}
        gateway = f"http://127.0.0.1:{gateway_port}"
        with (work / "serve.log").open("w") as log:
            start = [sys.executable, str(ROOT / "manage.py"), "serve", "--port", str(gateway_port)]
            process = subprocess.Popen(start, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
            try:
                ready(gateway, facts["api_key"], process, NAME)
                time.sleep(10)  # both engines are reached
                found = asyncio.run(measure(gateway, facts["api_key"]))
                time.sleep(1)
                still = busy(server)
            finally:
                process.terminate()
                process.wait(40)
        books = manage("reconcile").strip().splitlines()[-1]
    told = {
        "servers": f"own engine beside {versions(kind)}",
        "added": said.splitlines()[-1],
        "weights": {name: weight for name, _, _, weight in rows},
        "whole answers whose usage is the record's": f"{found['same']} of {EACH}",
        **summed(found["records"], names),
        "running at the server afterwards": still,
        "books": books,
        "logs": str(work),
    }
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    if len(sys.argv) > 2 or (sys.argv[1:] and sys.argv[1] not in SERVERS):
        raise SystemExit(f"usage: weights.py [{'|'.join(SERVERS)}]")
    main(sys.argv[1] if sys.argv[1:] else "vllm")
