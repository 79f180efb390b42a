"""Requests per second and added latency of one gateway process over the fake engine, with its ledger behind it.

    python benchmarks/gateway/run.py [--database sqlite|postgresql|both] [--seconds 2] [--repeats 3]

The gateway (`manage.py gateway`, everything on: keys, routing, rate limits, hold and settle in the ledger, logs) has
core 1 to itself, with the fake engine in its process; client and PostgreSQL (fsync on) share core 0. Beside it, in
turns with it, run a bare uvicorn application that answers the same bytes (the ceiling: what is above it is added by
us) and, once, a protocol that only writes (how much the client can take). Prompts have 200 characters, answers 64
tokens, charged to eight tenants in turn. Streams send one token per event; an answer without streaming comes from the
engine in one piece, as from an upstream. Paced streams get a token each 20 ms, and 20 ms are taken off their time to
first token. Afterwards the books must hold one usage record for each answer and the same sum of charges everywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvloop
from client import CLIENT_CORE, SERVER_CORE, Cell, Load, Seen, Target

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

PACE = 0.02
TOKENS = 64
WARM = 0.4
BUSY = "503 ledger_unavailable"  # a reserve that waited too long is refused: no charge, and no answer that counts


def cells(seconds: float) -> list[Cell]:
    """Every kind of load."""
    return [
        *(Cell(f"JSON, c = {streams}", "whole", streams, seconds) for streams in (1, 16, 64)),
        *(Cell(f"SSE of {TOKENS}, c = {streams}", "stream", streams, seconds, is_stream=True) for streams in (1, 64)),
        Cell("SSE paced, c = 64", "paced", 64, max(seconds, 3 * TOKENS * PACE), is_stream=True, spread=TOKENS * PACE),
    ]


# -- servers ------------------------------------------------------------------------------------------------------


@contextmanager
def server(name: str, command: list[str], *, keys: list[str], environment: dict[str, str], ready: str, log: Path):
    """Run a server on its core until the block ends; nothing of it is left then."""
    from tests.services.ports import lease_port

    port = lease_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(SERVER_CORE), sys.executable, *command, "--port", str(port)],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=output,
            stderr=output,
        )
    try:
        wait_for(f"http://127.0.0.1:{port}{ready}", process, log)
        yield Target(name, port, process.pid, keys)
        process.send_signal(signal.SIGTERM)
        process.wait(15)
    finally:
        process.kill()
        process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the server answers `url`, whatever it answers below 500."""
    from base.http import open_directly

    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        try:
            open_directly(url, b'{"model": "whole"}', timeout=1).close()
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return
        except OSError:
            pass
        else:
            return
        time.sleep(0.1)
    raise RuntimeError(f"the server on {url} never got ready:\n{log.read_text()[-3000:]}")


@contextmanager
def home(database: str, upstream: str = "", *, redis: bool = False):
    """A seeded home: yield the environment of the gateways in it, and the tenants' keys.

    The models are fake engines, or those of the server at the address `upstream`; `redis` keeps the rates there.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
        stack.callback(shutil.rmtree, folder)
        url = f"sqlite:///{folder}/sluice.sqlite3"
        if database == "postgresql":
            from tests.services.postgres import PostgresServer

            postgres = PostgresServer.start("fsync=on")  # a child of this process, so on the client's core
            stack.callback(postgres.stop)
            url = f"postgresql://sluice@:{postgres.port}/{postgres.folder}/sluice"
        environment = {"SLUICE_HOME": str(folder), "SLUICE_ENV": "test", "DATABASE_URL": url}
        if redis:
            from tests.services.redis import RedisServer

            server = RedisServer.start()
            stack.callback(server.stop)
            environment["REDIS_URL"] = server.url
        if upstream:
            environment |= {"SLUICE_REMOTE_NETWORKS": "127.0.0.0/8", "SLUICE_BENCH_UPSTREAM": upstream}
        yield environment, books("seed", environment)


@contextmanager
def gateway(database: str, upstream: str = "", *, name: str = "", redis: bool = False):
    """A seeded home with one gateway process on it."""
    with home(database, upstream, redis=redis) as (environment, keys):
        log = Path(environment["SLUICE_HOME"], "gateway.log")
        command = ["manage.py", "gateway"]
        with server(name or database, command, keys=keys, environment=environment, ready="/readyz", log=log) as target:
            yield target, environment


def books(verb: str, environment: dict[str, str]):
    """Run books.py in the home that `environment` names."""
    command = [sys.executable, str(HERE / "books.py"), verb]
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# -- measuring ----------------------------------------------------------------------------------------------------


def run(target: Target, cell: Cell, warm: float = WARM) -> tuple[Seen, bytes]:
    """Run a cell once; return what it saw, and one answer's body."""
    load = Load(target, cell)
    seen = uvloop.run(load.run(warm))
    if seen.failed.keys() - {BUSY}:
        raise RuntimeError(f"{target.name}, {cell.name}: {dict(seen.failed)} beside {seen.answered} answers")
    return seen, load.sample


def events_of(chunked: bytes) -> list[str]:
    """Return the chunks of a chunked body."""
    events = []
    while chunked and (size := int(chunked.partition(b"\r\n")[0], 16)):
        chunked = chunked.partition(b"\r\n")[2]
        events.append(chunked[:size].decode())
        chunked = chunked[size + 2 :]
    return events


class Answered:
    """What one gateway was seen to answer, to be held against its books."""

    def __init__(self) -> None:
        self.count: dict[str, int] = {}
        self.charge: dict[str, int] = {}
        self.refused = 0

    def note(self, cell: Cell, seen: Seen, sample: bytes) -> None:
        self.refused += seen.failed[BUSY]
        self.count[cell.model] = self.count.get(cell.model, 0) + seen.answered
        self.charge[cell.model] = int(sample.rpartition(b'"credits_micro":')[2].partition(b"}")[0])

    def check(self, audit) -> str:
        """Return a sentence; raise when the books say anything else."""
        expected = {
            name: {"count": self.count[name], "charge": self.count[name] * self.charge[name]} for name in self.count
        }
        total = sum(model["charge"] for model in expected.values())
        if audit != {"records": expected, "ledger": total, "wallets": total, "holds": 0}:
            raise RuntimeError(f"the books are wrong: answered {expected}, found {audit}")
        answers = f"{sum(self.count.values()):,} answers, as many usage records"
        return f"{answers}, {total:,} µcr charged everywhere, no hold open; {self.refused} refused as too busy"


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median(runs: list[Seen], figure) -> float:
    return statistics.median(figure(seen) for seen in runs)


def row(name: str, cell: Cell, runs: list[Seen], ceiling: list[Seen]) -> str:
    """One line of the table."""

    def latency(seen: Seen, share: float) -> float:
        late = [value - PACE for value in seen.first_tokens] if cell.spread else seen.first_tokens or seen.latencies
        return 1e3 * percentile(late, share)

    p50, p99 = (median(runs, lambda seen, share=share: latency(seen, share)) for share in (0.5, 0.99))
    added = p50 - median(ceiling, lambda seen: latency(seen, 0.5))
    rates = [seen.rate for seen in runs]
    spread = 100 * (max(rates) - min(rates)) / statistics.median(rates)
    tokens = median(runs, lambda seen: seen.tokens / seen.window)
    cpu = median(runs, lambda seen: 1e6 * seen.cpu / len(seen.latencies))
    gap = f"{1e3 * median(runs, lambda seen: percentile(seen.gaps, 0.99)):.1f}" if cell.spread else ""
    foreign = 100 * max(seen.foreign for seen in runs)
    parts = [
        cell.name,
        name,
        f"{statistics.median(rates):,.0f} ± {spread / 2:.0f} %",
        f"{tokens:,.0f}" if tokens else "",
        f"{cpu:,.0f}",
        f"{p50:.2f} / {p99:.2f}",
        "" if runs is ceiling else f"{added:+.2f}",
        gap,
        f"{foreign:.0f} %",
    ]
    return f"| {' | '.join(parts)} |"


COLUMNS = (
    "load",
    "server",
    "requests/s",
    "tokens/s",
    "CPU µs per request",
    "latency (streams: TTFT; paced: less 20 ms) p50 / p99 ms",
    "added p50 ms",
    "gap p99 ms",
    "others on its core",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgresql", "both"], default="both")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="only the loads whose names contain this")
    options = parser.parse_args()
    databases = ["sqlite", "postgresql"] if options.database == "both" else [options.database]
    os.sched_setaffinity(0, {CLIENT_CORE})
    loads = [cell for cell in cells(options.seconds) if options.only in cell.name]
    began = time.monotonic()
    load_before = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        gateways = [stack.enter_context(gateway(database)) for database in databases]
        answered = [Answered() for _ in gateways]
        answers = folder / "answers.json"
        whole, stream = (Cell("sample", model, 1, 0.1, is_stream=model == "stream") for model in ("whole", "stream"))
        samples = []
        for cell in (whole, stream):
            seen, sample = run(gateways[0][0], cell, warm=0)
            answered[0].note(cell, seen, sample)
            samples.append(sample)
        content = {"answer": samples[0].decode(), "events": events_of(samples[1]), "delay": PACE}
        answers.write_text(json.dumps(content))
        command = [str(HERE / "ceiling.py"), "--answers", str(answers), "--server"]

        def beside(name: str):
            more = {"keys": ["none"], "environment": {}, "ready": "/", "log": folder / f"{name}.log"}
            return server(name, [*command, name], **more)

        with beside("raw") as raw:
            takes = {cell.name: run(raw, cell)[0] for cell in cells(1.0) if cell.streams == 64 and not cell.spread}
        asgi = stack.enter_context(beside("asgi"))
        runs: dict[tuple[str, str], list[Seen]] = {}
        for _ in range(options.repeats):
            for cell in loads:
                runs.setdefault((cell.name, asgi.name), []).append(run(asgi, cell)[0])
                for (target, _), book in zip(gateways, answered, strict=True):
                    seen, sample = run(target, cell)
                    book.note(cell, seen, sample)
                    runs.setdefault((cell.name, target.name), []).append(seen)
        verdicts = [
            f"{target.name}: {book.check(books('audit', environment))}"
            for (target, environment), book in zip(gateways, answered, strict=True)
        ]
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")), "unknown")
    print(f"{model}, {os.cpu_count()} cores, load average {load_before:.1f} before; medians of {options.repeats} runs")
    print(f"of {options.seconds:g} s or more; {time.monotonic() - began:.0f} s in all\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for cell in loads:
        ceiling = runs[cell.name, asgi.name]
        print(row("ceiling: bare uvicorn", cell, ceiling, ceiling))
        for target, _ in gateways:
            print(row(f"gateway, {target.name}", cell, runs[cell.name, target.name], ceiling))
    print()
    print("client alone: " + "; ".join(f"{name}: {seen.rate:,.0f}/s" for name, seen in takes.items()))
    print("\n".join(verdicts))


if __name__ == "__main__":
    main()
