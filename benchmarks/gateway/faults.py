"""The books under faults: mixed requests while processes are killed, the database stops and freezes, grants end.

    python benchmarks/gateway/faults.py [--database sqlite|postgresql] [--requests 2000] [--faults 12] [--seed 1]

A whole Sluice (`manage.py serve`: gateway, jobs, and a worker with the fake architecture) gets chat, responses (as
JSON, streams and over sockets) and embeddings from tenants on several plans, a third of whose clients leave in the
middle, at a steady rate, until the last fault is over. Meanwhile, in an order that the seed decides: `kill -9` of the
gateway, `kill -9` of the worker, PostgreSQL stopped for some seconds (fast), all of its processes frozen (SIGSTOP), one
tenant's wallet locked for six seconds by another connection; and the grants of two tenants end one after the other. On
SQLite there are only the kills. Afterwards, once the sweep has closed what the dead left, the books must agree with
each other and with the worker's record, nothing may be held, no wallet may be below zero, and during the lock no other
tenant may have been refused. Prints its table; the exit status says whether all was so.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psycopg

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.services.postgres import PostgresServer  # noqa: E402
from tests.stack.clients import Job, ask, mixed_jobs  # noqa: E402
from tests.stack.stack import Stack, running_stack  # noqa: E402

LOCK_SECONDS = 6.0
PATIENCE = 60.0  # for a client whose connection is refused while a gateway starts
RETRIED = {"worker_lost", "server_draining", "engine_unreachable", "engine_overloaded", "engine_unavailable"}
SWEPT_SECONDS = 180.0  # a lease of 30 s, sweeps each 10 s, corrections


@dataclass
class Asked:
    """One request as its client saw it: 0 is a client that left, -1 a connection that broke in the middle."""

    tenant: str
    kind: str
    began: float
    ended: float
    status: int
    code: str


@dataclass
class Run:
    """A stack under load, and what was done to it."""

    stack: Stack
    server: PostgresServer | None
    tenants: dict[str, dict[str, str]]
    dice: random.Random
    asked: list[Asked] = field(default_factory=list)
    done: list[tuple[float, str]] = field(default_factory=list)
    locked: list[tuple[str, float, float]] = field(default_factory=list)
    refused: int = 0
    retries: int = 0  # how often a client asks again after a fault that isn't its own
    retried: int = 0
    since: float = field(default_factory=time.monotonic)
    is_broken_enough: bool = False

    def now(self) -> float:
        return time.monotonic() - self.since

    @property
    def probes(self) -> list[str]:
        """Where each gateway says whether it is ready."""
        return [self.stack.base_url]

    async def until_well(self) -> None:
        """Return once nothing of earlier faults is left to be seen."""
        await asyncio.sleep(3)

    def audit(self) -> dict[str, Any]:
        """What the database and the engines' records say."""
        return dict(self.stack.script("audit", [str(path) for path in self.stack.records]))

    def note(self, what: str) -> None:
        self.done.append((self.now(), what))
        print(f"  {self.now():6.1f} s  {what}", flush=True)


# -- load ---------------------------------------------------------------------------------------------------------


async def one(run: Run, session: aiohttp.ClientSession, job: Job, tenant: str) -> None:
    """Ask once, and again where the run's clients do that after a fault that isn't their own."""
    for attempt in range(run.retries + 1):
        asked = await ask_once(run, session, job, tenant)
        run.asked.append(asked)
        if asked.status != -1 and asked.status < 500 and asked.code not in RETRIED:
            return
        if attempt < run.retries:
            run.retried += 1
            await asyncio.sleep(0.3 * 2**attempt)


async def ask_once(run: Run, session: aiohttp.ClientSession, job: Job, tenant: str) -> Asked:
    """Ask; a refused connection is tried again, since nothing was asked."""
    began = run.now()
    while True:
        try:
            answer = await ask(session, job)
            status, body = answer.status, answer.body
        except aiohttp.ClientConnectorError:
            run.refused += 1
            if run.now() - began < PATIENCE:
                await asyncio.sleep(0.2)
                began = max(began, run.now() - PATIENCE / 2)
                continue
            status, body = -2, ""
        except (aiohttp.ClientError, json.JSONDecodeError, TypeError) as error:
            status, body = -1, type(error).__name__
        break
    return Asked(tenant, job.kind, began, run.now(), status, code_of(body))


def code_of(body: str) -> str:
    """The code of an error as the API writes it, in an answer or at the end of a stream."""
    return body.rpartition('"code":"')[2].partition('"')[0] if '"code":"' in body else ""


async def load(run: Run, jobs: list[Job], rate: float) -> None:
    """Begin the jobs at `rate` a second, from the first again until the last fault is over, and await their ends."""
    owner = {tenant["key"]: name for name, tenant in run.tenants.items()}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(run.stack.base_url, timeout=timeout, connector=connector) as session:
        tasks = []
        for number, job in enumerate(itertools.cycle(jobs)):
            if number >= len(jobs) and run.is_broken_enough:
                break
            await asyncio.sleep(max(0.0, number / rate - run.now()))
            tasks.append(asyncio.create_task(one(run, session, job, owner[job.key])))
        await asyncio.gather(*tasks)


# -- faults -------------------------------------------------------------------------------------------------------


async def until_ready(run: Run) -> None:
    """Return when every gateway says that it can answer; at most a minute."""
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        for url in run.probes:
            while not await is_ready(session, url):  # noqa: ASYNC110 - other processes are what is waited for
                await asyncio.sleep(0.2)


async def is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/readyz", timeout=aiohttp.ClientTimeout(total=5)) as answer:
            return answer.status == 200 and "loading" not in await answer.text()
    except (aiohttp.ClientError, TimeoutError):
        return False


async def kill_gateway(run: Run) -> None:
    run.note(f"kill -9 of the gateway ({run.stack.kill('gateway')})")


async def kill_worker(run: Run) -> None:
    run.note(f"kill -9 of the worker ({run.stack.kill('worker')})")


async def stop_database(run: Run) -> None:
    assert run.server is not None
    run.note("PostgreSQL stops (fast)")
    await asyncio.to_thread(run.server.shut_down)
    await asyncio.sleep(run.dice.uniform(1, 4))
    await asyncio.to_thread(run.server.start_again)
    run.note("PostgreSQL runs again")


async def freeze_database(run: Run) -> None:
    assert run.server is not None
    run.note("PostgreSQL freezes (SIGSTOP of all its processes)")
    frozen = run.server.freeze()
    try:
        await asyncio.sleep(run.dice.uniform(4, 8))
    finally:
        run.server.thaw(frozen)
    run.note("PostgreSQL goes on")


async def lock_wallet(run: Run) -> None:
    """Hold one tenant's wallet row in another connection's transaction; everybody is well before it begins."""
    await until_ready(run)
    await run.until_well()
    tenant = run.dice.choice(sorted(run.tenants))
    url = run.stack.environment["DATABASE_URL"]
    async with await psycopg.AsyncConnection.connect(url) as connection:
        row = "SELECT 1 FROM billing_wallet WHERE tenant_id = %s FOR UPDATE"
        await connection.execute(row, [run.tenants[tenant]["id"]])
        began = run.now()
        run.note(f"the wallet of {tenant} is locked")
        await asyncio.sleep(LOCK_SECONDS)
        run.locked.append((tenant, began, run.now()))
        await connection.rollback()
    run.note(f"the wallet of {tenant} is free")
    await asyncio.sleep(1)


Fault = Callable[[Run], Awaitable[None]]


def chosen_faults(run: Run, count: int) -> list[Fault]:
    """Return `count` faults in an order that the seed decides, each kind at least once."""
    kills: list[Fault] = [kill_gateway, kill_worker]
    others: list[Fault] = [stop_database, freeze_database, lock_wallet] if run.server else []
    faults = [*others, *(kills[number % 2] for number in range(max(2, count - len(others))))]
    run.dice.shuffle(faults)
    return faults


async def break_things(run: Run, faults: list[Fault], seconds: float) -> None:
    """Do one fault after the other, spread over `seconds`."""
    try:
        for number, fault in enumerate(faults):
            at = seconds * (number + 0.3 + 0.5 * run.dice.random()) / len(faults)
            await asyncio.sleep(max(0.0, at - run.now()))
            await until_ready(run)
            await fault(run)
    finally:
        run.is_broken_enough = True


# -- the books ----------------------------------------------------------------------------------------------------


HOME_SCRIPT = [sys.executable, str(Path(__file__).with_name("faults_home.py"))]


async def keep_books(run: Run, seed: int) -> None:
    """Refund, re-rate and change budgets beside the load, until the last fault is over; print how often."""
    pipe = asyncio.subprocess.PIPE
    keeper = await asyncio.create_subprocess_exec(
        *HOME_SCRIPT, "keep", str(seed), cwd=ROOT, env=run.stack.environment, stdin=pipe, stdout=pipe
    )
    while not run.is_broken_enough and keeper.returncode is None:  # noqa: ASYNC110 - as `load` looks
        await asyncio.sleep(0.2)
    told, _ = await keeper.communicate(b"")  # which ends its input
    assert keeper.returncode == 0, "the keeper of the books failed"
    print("  beside it: " + ", ".join(f"{count} {name}" for name, count in json.loads(told.splitlines()[-1]).items()))


def home_script(stack: Stack, *arguments: str) -> dict[str, object]:
    """Run the script beside this one in the stack's home."""
    done = subprocess.run(
        [*HOME_SCRIPT, *arguments],
        cwd=ROOT,
        env=stack.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def kind_of(row: dict[str, Any], ran: dict[str, int] | None) -> str:
    """Say how a usage record stands to what the worker's record says of the request (`ran`: {} begun, None unknown)."""
    classes, broken = row["classes"], row["finish"] not in {"stop", "length", "cancelled", "allowance"}
    if not row["exact"]:
        return "estimated"
    if not classes:
        if not ran:
            return "nothing ran" if ran is None else "lost, nothing delivered"
        return "waived" if row["waived"] else "wrong"
    if classes == ran:
        return "as the engine counted"
    if not broken or (ran and any(count > ran.get(name, 0) for name, count in classes.items())):
        return "wrong"
    return "what was delivered before we broke it"


def foreign_kind_of(row: dict[str, Any], ran: dict[str, int]) -> str:
    """Say the same of a foreign server's record: it goes on until it notices that its client left, and what it was to
    answer in one piece is lost with the gateway.
    """
    if row["finish"] in {"stop", "length", "allowance"} or row["classes"] == ran or not row["exact"]:
        return kind_of(row, ran)
    is_less = all(count <= ran.get(name, 0) for name, count in row["classes"].items())
    return "foreign, what had arrived" if is_less else "wrong"


def books(run: Run) -> list[tuple[str, bool, str]]:
    """Wait for the sweep, then return each thing that must be so, whether it is, and its figures."""
    until = time.monotonic() + SWEPT_SECONDS
    while (found := run.audit())["holds"] and time.monotonic() < until:
        time.sleep(2)
    more = home_script(run.stack, "findings")
    usage, foreign = found["usage"], found["foreign"]
    engine = found["engine"] | foreign
    kinds: dict[str, list[str]] = defaultdict(list)
    for name, row in usage.items():
        kind = foreign_kind_of(row, foreign[name]) if name in foreign else kind_of(row, engine.get(name))
        kinds[kind].append(name)
    uncharged = sorted(name for name, classes in engine.items() if classes and name not in usage)
    below = {name: wallet for name, wallet in found["wallets"].items() if wallet["posted"] < 0 or wallet["held"]}
    sums = {found["usage_sum"], found["ledger_sum"], found["recomputed_sum"]}
    rows = [
        ("no hold is left", not found["holds"], f"{found['holds']} holds"),
        (
            "Σ usage = Σ ledger = Σ recomputed",
            len(sums) == 1,
            f"{found['usage_sum']:,} · {found['ledger_sum']:,} · {found['recomputed_sum']:,} µcr",
        ),
        (
            "each record is the engine's word, or less where we broke it",
            not kinds["wrong"],
            "; ".join(f"{name[-12:]} {usage[name]}, the engine {engine.get(name)}" for name in kinds["wrong"][:3]),
        ),
        ("what the engine finished is in the books", not uncharged, f"{len(engine)}, missing {uncharged[:3]}"),
        ("no wallet below zero or held", not below, f"{len(found['wallets'])} wallets, wrong: {below}"),
        ("reconciliation finds nothing", not more["findings"], f"{more['findings'][:3]}"),
        ("grants ended meanwhile", bool(more["ended"]), f"{more['ended']}"),
        ("promises were missed and credited", bool(more["missed"]), f"{more['missed']}"),
        ("no budget is passed", not more["passed"], f"{more['passed'][:3]}"),
    ]
    told = ", ".join(f"{len(names)} {kind}" for kind, names in sorted(kinds.items()))
    charges = {kind: sum(usage[name]["charge"] for name in names) for kind, names in kinds.items()}
    print(f"  {len(usage)} usage records: {told}")
    print("  charged, µcr: " + ", ".join(f"{sum_:,} {kind}" for kind, sum_ in sorted(charges.items())))
    for tenant, began, ended in run.locked:
        others = [one for one in run.asked if one.tenant != tenant and began <= one.began and one.ended <= ended]
        refused = [
            one
            for one in others
            if one.code != "credit_balance_exhausted"
            and (one.status not in {0, 200} or (one.status == 200 and one.code))
        ]
        bad = Counter(f"{one.status} {one.code}" for one in refused)
        own = Counter(one.status for one in run.asked if one.tenant == tenant and began <= one.began <= ended)
        detail = f"{len(others)} requests of others, refused {dict(bad)}; its own {dict(own)}"
        rows.append(("a locked wallet stops nobody else", bool(others) and not bad, detail))
    return rows


def table(run: Run) -> None:
    """Print what clients saw, by kind of request."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    names = {0: "left", -1: "cut", -2: "no connection"}
    for one in run.asked:
        seen[one.kind][names.get(one.status, f"{one.status} {one.code}".strip())] += 1
    for kind, statuses in sorted(seen.items()):
        told = ", ".join(f"{count} × {status}" for status, count in statuses.most_common())
        print(f"  {kind:18} {told}")
    print(f"  connections refused while a gateway started, and tried again: {run.refused}; requests: {run.retried}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="postgresql")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--faults", type=int, default=12)
    parser.add_argument("--rate", type=float, default=20.0, help="requests begun a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, help="where to write what the processes said")
    wanted = parser.parse_args()
    seconds = wanted.requests / wanted.rate
    with ExitStack() as parts:
        server = None
        if wanted.database == "postgresql":
            server = PostgresServer.start()
            parts.callback(server.stop)
        address = server.url if server else ""
        stack = parts.enter_context(running_stack(server=address, chat={"step_seconds": 0.002}))
        tenants = {**stack.tenants, **home_script(stack, "tenants", str(seconds))}
        run = Run(stack, server, tenants, random.Random(wanted.seed))
        jobs = mixed_jobs([tenant["key"] for tenant in tenants.values()], wanted.requests, wanted.seed)
        faults = chosen_faults(run, wanted.faults)
        print(f"{len(jobs)} requests in {seconds:.0f} s on {wanted.database}, seed {wanted.seed}")

        async def everything() -> None:
            await asyncio.gather(load(run, jobs, wanted.rate), break_things(run, faults, seconds))

        asyncio.run(everything())
        print(f"the last request ended after {run.now():.0f} s; waiting for the sweep")
        rows = books(run)
        table(run)
        if wanted.log:
            wanted.log.write_text("".join(stack.said))
        for what, is_so, detail in rows:
            print(f"  {'ok  ' if is_so else 'BAD '} {what}: {detail}")
        stack.stop()
    return int(not all(is_so for _, is_so, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
