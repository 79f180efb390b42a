"""The books of the whole topology under faults: two gateways, two workers, Celery, Redis, PostgreSQL, a foreign server.

    python benchmarks/torture.py [--requests 3000] [--faults 60] [--seed 1]

Mixed requests (chat, streams, responses, sockets, embeddings, and chat at a foreign server) of five tenants, a third of
whose clients leave in the middle and all of which ask again after a fault that isn't theirs, at a steady rate until the
last fault is over. Meanwhile, in an order that the seed decides: `kill -9` and SIGSTOP of gateways, of both nodes'
workers and of Celery and beat; Redis flushed, killed and frozen; PostgreSQL stopped and frozen; the foreign server
frozen; one tenant's wallet locked; grants that end. Beside all that requests are refunded and rated anew, and budgets
raised, removed and made again, by the same key once more where a fault broke that off. Afterwards, once the sweep has
closed what the dead left, the books must agree with each other and with all engines' records, nothing may be held, no
wallet may be below zero, no budget passed, the rate store may hold no lease, and everything must run again. Prints what
was estimated, waived and lost; the exit status says whether all was so.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.gateway import faults  # noqa: E402
from tests.services.postgres import PostgresServer  # noqa: E402
from tests.stack.clients import KINDS, REMOTE_KINDS, mixed_jobs  # noqa: E402
from tests.stack.topology import Topology, running_topology  # noqa: E402

RETRIES = 2
LEASE_SECONDS = 60.0


@dataclass
class Torture(faults.Run):
    """The topology under load, and what was done to it."""

    topology: Topology | None = None

    @property
    def parts(self) -> Topology:
        assert self.topology is not None
        return self.topology

    @property
    def probes(self) -> list[str]:
        return [f"http://127.0.0.1:{self.parts.metrics_port + index}" for index in range(2)]

    async def until_well(self) -> None:
        await asyncio.to_thread(self.parts.wait_until_ready)
        await super().until_well()

    def audit(self) -> dict[str, Any]:
        return self.parts.audit()


def hurt(pid: int, number: int) -> bool:
    """Send a signal; False when the process had gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


async def frozen(run: Torture, what: str, pid: int) -> None:
    """Stop a process in its tracks for a while; its watchdog may replace it meanwhile."""
    seconds = run.dice.choice([0.5, 1, 2, 4, 18])
    run.note(f"SIGSTOP of {what} ({pid}) for {seconds} s")
    is_there = hurt(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds if is_there else 0)
    finally:
        is_there = hurt(pid, signal.SIGCONT)
    run.note(f"{what} goes on" if is_there else f"{what} had been replaced")


async def pid_of(run: Torture, what: str) -> int:
    """Return the process id of one of that kind, once there is one."""
    async with asyncio.timeout(60):
        while True:
            try:
                if what == "far worker":
                    return run.parts.far_worker()
                return int(run.dice.choice(run.stack.pids_of(what)))
            except LookupError:  # `choice` of nothing, too: it is being started again
                await asyncio.sleep(0.1)


def killing(what: str) -> faults.Fault:
    async def kill(run: Any) -> None:
        pid = await pid_of(run, what)
        run.note(f"kill -9 of the {what} ({pid})")
        hurt(pid, signal.SIGKILL)

    return kill


def freezing(what: str) -> faults.Fault:
    async def freeze(run: Any) -> None:
        await frozen(run, f"the {what}", await pid_of(run, what))

    return freeze


def killing_beside(name: str) -> faults.Fault:
    """Kill a process that no supervisor of ours looks after, and start it again, as systemd or compose does."""

    async def kill(run: Any) -> None:
        part = run.parts.beside[name]
        run.note(f"kill -9 of {name} ({part.pid})")
        await asyncio.to_thread(part.end, signal.SIGKILL)
        await asyncio.sleep(run.dice.uniform(0, 2))
        part.start()

    return kill


def freezing_beside(name: str) -> faults.Fault:
    async def freeze(run: Any) -> None:
        await frozen(run, name, run.parts.beside[name].pid)

    return freeze


async def flush_redis(run: Any) -> None:
    run.note("Redis is flushed")
    await asyncio.to_thread(run.parts.redis.flush)


async def kill_redis(run: Any) -> None:
    run.note("Redis is killed")
    await asyncio.to_thread(run.parts.redis.kill)
    await asyncio.sleep(run.dice.uniform(1, 6))
    await asyncio.to_thread(run.parts.redis.start_again)
    run.note("Redis runs again, empty")


async def freeze_redis(run: Any) -> None:
    run.note("Redis freezes (SIGSTOP)")
    run.parts.redis.freeze()
    try:
        await asyncio.sleep(run.dice.uniform(2, 6))
    finally:
        run.parts.redis.thaw()
    run.note("Redis goes on")


KILLS = [killing("gateway"), killing("worker"), killing("far worker"), killing_beside("celery")]
FREEZES = [freezing("gateway"), freezing("worker"), freezing("far worker"), freezing_beside("celery")]
FAULTS: list[faults.Fault] = [
    *KILLS,
    flush_redis,
    kill_redis,
    faults.stop_database,
    *FREEZES,
    freezing_beside("upstream"),
    faults.freeze_database,
    killing("jobs"),
    freezing("jobs"),
    freeze_redis,
    faults.lock_wallet,
    killing_beside("beat"),
]


def chosen_faults(run: Torture, count: int) -> list[faults.Fault]:
    """Return `count` faults in an order that the seed decides: each kind in turn, then kills of what serves."""
    rest = max(0, count - 2 * len(FAULTS))
    many = [FAULTS[number % len(FAULTS)] for number in range(count - rest)]
    many += [(KILLS + FREEZES)[number % 8] for number in range(rest)]
    run.dice.shuffle(many)
    return many


async def until_no_lease(run: Torture) -> int:
    """Return how many leases are left in the rate store after at most a minute."""
    for _ in range(int(LEASE_SECONDS / 2)):
        if not (held := run.parts.leases()):
            return 0
        await asyncio.sleep(2)
    return held


def books(run: Torture) -> list[tuple[str, bool, str]]:
    """Return each thing that must be so, whether it is, and its figures."""
    rows = faults.books(run)
    held = asyncio.run(until_no_lease(run))
    found = run.audit()
    usage, foreign = found["usage"], found["foreign"]
    apart = {
        name: row
        for name, row in usage.items()
        if row["classes"] != (found["engine"].get(name) or foreign.get(name) or {})
    }
    agreed = [row for name, row in usage.items() if name not in apart]
    charged, ran = (sum(row[sort] for row in agreed) for sort in ("charge", "engine_charge"))
    places = run.parts.places()
    working = sum(one.code in faults.RETRIED for one in run.asked)
    print(f"  {len(apart)} records apart from the engines' word, {sum(row['charge'] for row in apart.values()):,} µcr")
    moved = {name for name, row in usage.items() if row["moved"]}
    print(f"  {len(moved)} went on at another engine, {len(moved - apart.keys())} of them charged as that one counted")
    print(f"  answers that failed through an engine that was lost or away: {working}")
    tracebacks = Counter(line.strip()[:120] for line in run.parts.said().splitlines() if "Traceback" in line)
    print(f"  tracebacks in the logs: {sum(tracebacks.values())}")
    return [
        *rows,
        (
            "Σ usage but what is told apart = Σ of the engines' own records of the same",
            charged == ran,
            f"{charged:,} · {ran:,} µcr",
        ),
        ("the rate store holds no lease", held == 0, f"{held}"),
        ("both gateways have all four engines again", all(len(one) == 4 for one in places.values()), f"{places}"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--rate", type=float, default=10.0, help="requests begun a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, help="where to write what the processes said")
    wanted = parser.parse_args()
    seconds = wanted.requests / wanted.rate
    with ExitStack() as parts:
        server = PostgresServer.start()
        parts.callback(server.stop)
        topology = parts.enter_context(running_topology(server.url, chat={"step_seconds": 0.002}))
        stack = topology.stack
        tenants = {**stack.tenants, **faults.home_script(stack, "tenants", str(seconds))}
        run = Torture(stack, server, tenants, random.Random(wanted.seed), retries=RETRIES, topology=topology)
        keys = [tenant["key"] for tenant in tenants.values()]
        jobs = mixed_jobs(keys, wanted.requests, wanted.seed, [*KINDS, *REMOTE_KINDS])
        chosen = chosen_faults(run, wanted.faults)
        print(f"{len(jobs)} requests in {seconds:.0f} s, {len(chosen)} faults, seed {wanted.seed}", flush=True)

        async def everything() -> None:
            await asyncio.gather(
                faults.load(run, jobs, wanted.rate),
                faults.break_things(run, chosen, seconds),
                faults.keep_books(run, wanted.seed),
            )

        try:
            asyncio.run(everything())
            print(f"the last request ended after {run.now():.0f} s; waiting for the sweep", flush=True)
            rows = books(run)
            faults.table(run)
            for what, is_so, detail in rows:
                print(f"  {'ok  ' if is_so else 'BAD '} {what}: {detail}")
        finally:
            if wanted.log:
                wanted.log.write_text(topology.said())
        stack.stop()
    return int(not all(is_so for _, is_so, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
