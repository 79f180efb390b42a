"""CPU of one gateway process per request, by load and by part; nothing on the machine beside it changes what it counts.

    python benchmarks/gateway/cpu.py [--database sqlite|postgresql] [--redis] [--remote] [--requests 400] [--streams 16]
        [--rounds 7] [--parts] [--floor] [--only JSON]

Everything of the gateway runs in this process: the server's protocol on httptools, the data plane, the ledger's writer,
the fake engine; with `--remote` instead of it the client of a model server (`upstream.py`, a process of its own, as is
PostgreSQL). Only the clients' sockets are left out: a client made of a transport sends each request as bytes and takes
the answer from what is written. CPU is user and system time of the event loop's thread and of others (the writer's),
the least of several rounds, since a neighbour can only add to it. `--parts` samples the loop's thread on top of that,
and says in which part of ours it was, or which it was working for. Under `valgrind --tool=callgrind`, two runs
with one round and `--requests` N and 2 N differ by the instructions of N requests of each load.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, Self

import uvloop
from door import upstream
from proxy import application as proxy
from run import HERE, ROOT, home

SAMPLE_SECONDS = 0.001
# What of ours each promise takes: the first that a part's path begins with.
PROMISES = {
    "keys, revoked within a second": ("gateway/runtime/principal", "gateway/runtime/epoch", "tenancy/services/keys"),
    "rates, concurrency, the tenant's queue": (
        "billing/limits",
        "gateway/generation/admission",
        "gateway/concurrency",
    ),
    "prices, hold, exact settlement": (
        "billing",
        "gateway/generation/credit",
        "gateway/generation/settlement",
    ),
    "routing, replicas, breakers, fair queue": (
        "routing",
        "gateway/generation/placement",
        "gateway/runtime/engine",
        "gateway/runtime/catalogue",
        "inference/core",
        "inference/clients/remote/queue",
    ),
    "logs, metrics, traces": (
        "gateway/logs",
        "gateway/runtime/metrics",
        "gateway/runtime/tracing",
        "inference/logs",
    ),
    "reading and counting what the model server sends": ("inference",),
    "a generation that outlives its client, and moves": ("gateway/generation", "gateway/runtime"),
    "checked requests and answers of the API": ("gateway/wire", "gateway/apis"),
    "bounds, request ids, errors in the API's shape": ("gateway/http", "base/http", "gateway"),
    "uvicorn": ("server",),
}
WARM = 64
PROMPT = ("word " * 40)[:200]
LOADS = {"JSON": ("whole", False), "SSE of 64": ("stream", True)}


class Client(asyncio.Transport):
    """One connection whose other end asks again as soon as it has its answer."""

    def __init__(self, run: Run, key: str) -> None:
        super().__init__()
        self.run = run
        self.protocol = run.protocol()
        self.request = request_of(run.load, key)
        self.writes = 0
        self.protocol.connection_made(self)

    def ask(self) -> None:
        """Send the next request, if the run has one left."""
        if self.run.left:
            self.run.left -= 1
            self.writes = 0
            self.protocol.data_received(self.request)

    def write(self, data: bytes) -> None:
        """Take what the server writes: the head, then the body, or its chunks up to the empty one."""
        self.writes += 1
        if self.writes == 1 and not data.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(data)
        is_end = data.endswith(b"0\r\n\r\n") if self.run.is_stream else self.writes == self.run.writes
        if is_end:
            self.run.answered()
            asyncio.get_running_loop().call_soon(self.ask)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 50_000), "sockname": ("127.0.0.1", 8000)}.get(name, default)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...


class Run:
    """So many requests of one load."""

    def __init__(self, server: Any, keys: list[str], load: str, streams: int, writes: int = 2) -> None:
        self.server = server
        self.writes = writes  # of a whole answer
        self.load = load
        self.is_stream = LOADS[load][1]
        self.left = self.open = 0
        self.clients = [Client(self, keys[number % len(keys)]) for number in range(streams)]

    def protocol(self) -> asyncio.Protocol:
        """Return a new connection's protocol, as a listener makes it."""
        config = self.server.config
        made: asyncio.Protocol = config.http_protocol_class(
            config=config, server_state=self.server.server_state, app_state=self.server.lifespan.state
        )
        return made

    def answered(self) -> None:
        """Count one answer; the last one ends the round."""
        self.open -= 1
        if not self.open:
            self.done.set_result(None)

    async def round(self, requests: int) -> tuple[float, float]:
        """Return the CPU seconds of a request, in the event loop's thread and in all others."""
        self.left = self.open = requests
        self.done = asyncio.get_running_loop().create_future()
        before = time.thread_time(), time.process_time()
        for client in self.clients:
            client.ask()
        await self.done
        await asyncio.sleep(0)  # the last request's tasks end
        loop, process = time.thread_time() - before[0], time.process_time() - before[1]
        return loop / requests, (process - loop) / requests

    def close(self) -> None:
        """Let the server forget the connections."""
        for client in self.clients:
            client.protocol.connection_lost(None)


class Parts:
    """Samples the main thread while open: which part of ours each sample was in, or was working for."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def __enter__(self) -> Self:
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        self.seen[part_of(frame)] += 1


def part_of(frame: FrameType | None) -> str:
    """Return the module of ours that is nearest to `frame`, else "server" inside of uvicorn, else "event loop"."""
    is_server = False
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(f"{ROOT}/") and "/.venv/" not in path and Path(path).parent != HERE:
            return str(Path(path).relative_to(ROOT).with_suffix(""))
        is_server = is_server or "/uvicorn/" in path
        frame = frame.f_back
    return "server" if is_server else "event loop"


def promise_of(part: str) -> str:
    """Return for which of `PROMISES` a part of ours works, or that it is the event loop's."""
    for promise, paths in PROMISES.items():
        if part.startswith(paths):
            return promise
    return "event loop and sockets"


def request_of(load: str, key: str) -> bytes:
    """Return one request of a load as a client writes it."""
    model, is_stream = LOADS[load]
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": PROMPT}], "stream": is_stream})
    head = (
        "POST /v1/chat/completions HTTP/1.1",
        "host: 127.0.0.1",
        f"authorization: Bearer {key}",
        "content-type: application/json",
        f"content-length: {len(body)}",
    )
    return "\r\n".join([*head, "", body]).encode()


async def opened(config: Any) -> Any:
    """Return a server without listeners, its application started."""
    import uvicorn

    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.lifespan.startup()
    return server


async def measure(options: argparse.Namespace, keys: list[str], address: str) -> dict[str, Any]:
    """Return by load the least CPU of a request, and the samples by part."""
    import uvicorn

    from gateway.asgi import application
    from gateway.http.listener.bounds import Bounds, Listener
    from gateway.http.listener.server import configuration

    gc.collect()
    gc.freeze()  # as `manage.py gateway` does it
    gc.set_threshold(20_000, 20, 20)
    server = await opened(
        configuration(application, Listener(Bounds.of_settings()), lifespan="on", proxy_headers=False)
    )
    await server.lifespan.state["runtime"].engines.connected(10)
    bare: Any = None
    if options.floor:
        bare = await opened(uvicorn.Config(proxy(address), lifespan="on", access_log=False, server_header=False))
    found: dict[str, Any] = {}
    for load in [name for name in LOADS if options.only in name]:
        run = Run(server, keys, load, options.streams)
        least = Run(bare, ["none"], load, options.streams, writes=3) if bare is not None else None
        await run.round(WARM)
        rounds, beside = [], []
        for _ in range(options.rounds):
            rounds.append(await run.round(options.requests))
            if least is not None:  # in turns
                await least.round(WARM)
                beside.append(sum(await least.round(options.requests)))
        with Parts() as parts:
            for _ in range(options.rounds if options.parts or options.floor else 0):
                await run.round(options.requests)
        run.close()
        found[load] = {"cpu": [1e6 * min(times) for times in zip(*rounds, strict=True)], "parts": dict(parts.seen)}
        if least is not None:
            least.close()
            found[load]["bare"] = 1e6 * min(beside)
    for one in (server, bare):
        if one is not None:
            await one.lifespan.shutdown()
    return found


def show(found: dict[str, Any]) -> None:
    """Print what was measured as tables."""
    print("| load | CPU µs per request | event loop | writer and other threads |\n|---|---|---|---|")
    for load, seen in found.items():
        loop, others = seen["cpu"]
        print(f"| {load} | {loop + others:,.0f} | {loop:,.0f} | {others:,.0f} |")
    for load, seen in found.items():
        total = sum(seen["parts"].values())
        if "bare" in seen:
            show_floor(load, seen, total)
        elif total:
            print(f"\n{load}, {total:,} samples of the event loop's thread:")
        for part, count in Counter(seen["parts"]).most_common(0 if "bare" in seen else 30):
            print(f"  {100 * count / total:5.1f} % {seen['cpu'][0] * count / total:7.0f} µs  {part}")


def show_floor(load: str, seen: dict[str, Any], total: int) -> None:
    """Print what each promise takes of a request, beside a bare proxy."""
    whole, bare = sum(seen["cpu"]), seen["bare"]
    by_promise: Counter[str] = Counter()
    for part, count in seen["parts"].items():
        by_promise[promise_of(part)] += count
    print(f"\n| {load}: of the event loop's thread, {total:,} samples | CPU µs per request | % |\n|---|---|---|")
    for promise, count in by_promise.most_common():
        print(f"| {promise} | {seen['cpu'][0] * count / total:,.0f} | {100 * count / total:.0f} |")
    print(f"| **all, other threads too** | {whole:,.0f} | |")
    print(f"| a bare proxy (uvicorn, aiohttp) that promises nothing | {bare:,.0f} | {100 * bare / whole:.0f} |")


def main() -> None:
    gone = [path for paths in PROMISES.values() for path in paths if path != "server" and not [*ROOT.glob(f"{path}*")]]
    if gone:
        raise SystemExit(f"PROMISES names what isn't there: {', '.join(gone)}")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--remote", action="store_true", help="relay a model server instead of the fake engine")
    parser.add_argument("--redis", action="store_true", help="count rates in a redis-server")
    parser.add_argument("--floor", action="store_true", help="by promise, and beside a bare proxy")
    parser.add_argument("--requests", type=int, default=400, help="of each load in a round")
    parser.add_argument("--streams", type=int, default=16, help="connections that ask at once")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--parts", action="store_true", help="sample as many rounds again")
    parser.add_argument("--only", default="", help="only the loads whose names contain this")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        address = stack.enter_context(upstream(folder)) if options.remote or options.floor else ""
        environment, keys = stack.enter_context(home(options.database, address, redis=options.redis))
        os.environ.update(environment, DJANGO_SETTINGS_MODULE="gateway.settings")
        import django

        django.setup()
        from gateway.logs import configure_logs

        with (folder / "gateway.log").open("w") as log:
            configure_logs(stream=log)
            found = uvloop.run(measure(options, keys, address))
    if options.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
