"""One fault at a time under clients that never ask again: requests lost, seconds waited, and the books.

    python benchmarks/faults.py [--only NAME] [--seconds 12] [--clients 12]

The topology of `torture.py`, and in front of it nginx and Caddy with the files of `deploy/`, each over the same two
gateways, which run as their systemd unit says. At each proxy `--clients` clients ask one request after the other: chat,
streams, embeddings. A fault comes after a third of the seconds and goes by the end of the next third. Counted are
requests that failed, those that were under way where the fault struck (only they may fail when a gateway goes), the
longest wait for a first byte or for the next one, and the seconds from the first failure to the last; afterwards all
engines must be ready again, no hold may be left and the books must agree. A table; the exit status says whether each
fault stayed within its allowance.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psycopg

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.services.ports import lease_port  # noqa: E402
from tests.services.postgres import PostgresServer  # noqa: E402
from tests.services.proxies import caddy, nginx  # noqa: E402
from tests.stack.topology import NODE, Topology, running_topology  # noqa: E402
from tests.stack.units import Unit  # noqa: E402

PATIENCE = 120.0
UNDER_WAY = -1
"""An allowance of losses: as many as were under way when the fault struck."""


@dataclass
class Asked:
    """One request as its client saw it; `wait` is the longest time without a byte."""

    began: float
    ended: float
    wait: float
    code: str  # "" of an answer that came whole
    proxy: str = ""


@dataclass
class Place:
    """All that can be hurt, and that is asked."""

    topology: Topology
    server: PostgresServer
    units: list[Unit]
    proxies: dict[str, str]
    asked: list[Asked] = field(default_factory=list)


Fault = Callable[[Place], "contextlib.AbstractAsyncContextManager[None]"]


@dataclass
class Kind:
    """A fault, with the requests that it may cost and the seconds that a client may wait in it."""

    name: str
    fault: Fault
    lost: int
    wait: float


# -- clients ------------------------------------------------------------------------------------------------------


async def ask(session: aiohttp.ClientSession, key: str, number: int) -> Asked:
    """Ask one request."""
    began = last = time.monotonic()
    wait, code, seen = 0.0, "", b""
    body: dict[str, object] = {"model": "fake-chat", "messages": [{"role": "user", "content": f"go on {number}"}]}
    path, body = (
        ("/v1/embeddings", {"model": "fake-embed", "input": "a text"})
        if number % 4 == 0
        else ("/v1/chat/completions", {**body, "max_tokens": 40, "stream": number % 2 == 1})
    )
    try:
        async with session.post(path, json=body, headers={"Authorization": f"Bearer {key}"}) as answer:
            async for piece in answer.content.iter_any():
                wait, last = max(wait, time.monotonic() - last), time.monotonic()
                seen += piece
            if answer.status != 200 or b'"error":' in seen:
                code = seen.decode(errors="replace").rpartition('"code":"')[2].partition('"')[0] or str(answer.status)
            elif body.get("stream") and not seen.endswith(b"data: [DONE]\n\n"):
                code = "cut"
    except (aiohttp.ClientError, TimeoutError) as error:
        code = type(error).__name__
    ended = time.monotonic()
    return Asked(began, ended, max(wait, ended - last), code)


async def clients(place: Place, count: int, over: asyncio.Event) -> None:
    """Ask until it is over."""
    keys = [tenant["key"] for tenant in place.topology.stack.tenants.values()]
    numbers = itertools.count()

    async def one(session: aiohttp.ClientSession, proxy: str) -> None:
        while not over.is_set():
            number = next(numbers)
            place.asked.append(await ask(session, keys[number % len(keys)], number))
            place.asked[-1].proxy = proxy
            if place.asked[-1].code:
                await asyncio.sleep(0.2)  # nobody asks a dead door in a tight loop

    async with contextlib.AsyncExitStack() as opened:
        tasks = []
        for proxy, address in place.proxies.items():
            connector = aiohttp.TCPConnector(ssl=False, limit=0, force_close=True)
            timeout = aiohttp.ClientTimeout(total=PATIENCE)
            session = aiohttp.ClientSession(address, connector=connector, timeout=timeout)
            await opened.enter_async_context(session)
            tasks += [asyncio.create_task(one(session, proxy)) for _ in range(count)]
        await asyncio.gather(*tasks)


# -- faults -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def nothing(place: Place) -> AsyncIterator[None]:
    yield


def once(act: Callable[[Place], None]) -> Fault:
    """Return the fault that `act` does, and whose end nobody brings about."""

    @asynccontextmanager
    async def fault(place: Place) -> AsyncIterator[None]:
        await asyncio.to_thread(act, place)
        yield

    return fault


def while_it_lasts(begin: Callable[[Place], None], end: Callable[[Place], None]) -> Fault:
    """Return the fault from `begin` to `end`."""

    @asynccontextmanager
    async def fault(place: Place) -> AsyncIterator[None]:
        await asyncio.to_thread(begin, place)
        try:
            yield
        finally:
            await asyncio.to_thread(end, place)

    return fault


def never_starts(place: Place) -> None:
    """One gateway ends, and each new start of it fails."""
    unit = place.units[0]
    unit.environment["DATABASE_URL"] = "postgresql://nobody@127.0.0.1:1/none"
    unit.send(signal.SIGKILL)


def starts_again(place: Place) -> None:
    place.units[0].environment["DATABASE_URL"] = place.topology.stack.environment["DATABASE_URL"]


@asynccontextmanager
async def restarts(place: Place) -> AsyncIterator[None]:
    """Both gateways are restarted in turn, as an upgrade does."""
    for unit in place.units:
        before = unit.starts
        unit.restart()
        await until(lambda unit=unit, before=before: unit.starts > before and unit.is_ready())  # type: ignore[misc]
    yield


def beside(name: str, number: int) -> Callable[[Place], None]:
    return lambda place: place.topology.beside[name].send(number)


def started(name: str) -> Callable[[Place], None]:
    def start(place: Place) -> None:
        part = place.topology.beside[name]
        part.end(signal.SIGKILL)
        part.start()

    return start


def worker(number: int) -> Callable[[Place], None]:
    return lambda place: os.kill(place.topology.stack.pid_of("worker"), number)


def far_worker(number: int) -> Callable[[Place], None]:
    return lambda place: os.kill(place.topology.far_worker(), number)


def redis(*words: str) -> Callable[[Place], None]:
    return lambda place: print(f"    redis {' '.join(words)}: {place.topology.redis.ask(*words)}") or None


def restart_redis(place: Place) -> None:
    place.topology.redis.kill()
    place.topology.redis.start_again()


@asynccontextmanager
async def frozen_database(place: Place) -> AsyncIterator[None]:
    frozen = await asyncio.to_thread(place.server.freeze)
    try:
        await asyncio.sleep(3)
    finally:
        place.server.thaw(frozen)
    yield


@asynccontextmanager
async def no_connection_left(place: Place) -> AsyncIterator[None]:
    """Take every connection that PostgreSQL has left."""
    taken = []
    try:
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                taken.append(await psycopg.AsyncConnection.connect(place.server.url))
        yield
    finally:
        for one in taken:
            await one.close()


def query(text: str) -> Callable[[Place], None]:
    def run(place: Place) -> None:
        url, writes = place.topology.stack.environment["DATABASE_URL"], "-c default_transaction_read_only=off"
        with psycopg.connect(url, autocommit=True, options=writes) as connection:
            connection.execute(text)

    return run


def locked(text: str, *, seconds: float) -> Fault:
    """Return the fault of a transaction that holds what `text` locks."""

    @asynccontextmanager
    async def fault(place: Place) -> AsyncIterator[None]:
        url = place.topology.stack.environment["DATABASE_URL"]
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await connection.execute(text)
            await asyncio.sleep(seconds)
            await connection.rollback()
        yield

    return fault


@asynccontextmanager
async def migrated_beside_a_reader(place: Place) -> AsyncIterator[None]:
    """The nightly dump reads the holds while their table is to be altered by the lock limit of `setup`."""
    url = place.topology.stack.environment["DATABASE_URL"]
    async with (
        await psycopg.AsyncConnection.connect(url) as reader,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as migrating,
    ):
        await reader.execute("LOCK TABLE billing_hold IN ACCESS SHARE MODE")
        await migrating.execute("SET lock_timeout = '2s'")
        with contextlib.suppress(psycopg.errors.LockNotAvailable):
            await migrating.execute("ALTER TABLE billing_hold ADD COLUMN fault_of_a_test integer")
        await reader.rollback()
        await migrating.execute("ALTER TABLE billing_hold DROP COLUMN IF EXISTS fault_of_a_test")
    yield


KILL, STOP, GO_ON = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT
FREE = 10**6  # requests that may be lost where nothing can be served

KINDS = [
    Kind("nothing", nothing, 0, 2),
    Kind("a gateway is killed", once(lambda place: place.units[0].send(KILL)), UNDER_WAY, 2),
    Kind("a gateway stands still", once(lambda place: place.units[0].send(STOP)), UNDER_WAY, 8),
    Kind("both gateways restart in turn", restarts, 0, 2),
    Kind("a gateway never starts again", while_it_lasts(never_starts, starts_again), UNDER_WAY, 2),
    Kind("a gateway gets SIGTERM", once(lambda place: place.units[1].send(signal.SIGTERM)), UNDER_WAY, 2),
    Kind("the worker is killed", once(worker(KILL)), UNDER_WAY, 6),
    Kind("the worker stands still", once(worker(STOP)), UNDER_WAY, 25),
    Kind("the far worker is killed", once(far_worker(KILL)), UNDER_WAY, 6),
    Kind("the far worker stands still for 3 s", while_it_lasts(far_worker(STOP), far_worker(GO_ON)), 0, 8),
    Kind("the far node is killed", while_it_lasts(beside(NODE, KILL), started(NODE)), UNDER_WAY, 6),
    Kind("the foreign server is killed", while_it_lasts(beside("upstream", KILL), started("upstream")), 0, 2),
    Kind("the foreign server stands still", while_it_lasts(beside("upstream", STOP), beside("upstream", GO_ON)), 0, 2),
    Kind("the process of pages is killed", while_it_lasts(beside("control", KILL), started("control")), 0, 2),
    Kind("Celery's worker is killed", while_it_lasts(beside("celery", KILL), started("celery")), 0, 2),
    Kind("Celery's beat is killed", while_it_lasts(beside("beat", KILL), started("beat")), 0, 2),
    Kind("Redis restarts, empty", once(restart_redis), 0, 3),
    Kind(
        "Redis is away",
        while_it_lasts(lambda place: place.topology.redis.kill(), lambda place: place.topology.redis.start_again()),
        0,
        3,
    ),
    Kind(
        "Redis stands still",
        while_it_lasts(lambda place: place.topology.redis.freeze(), lambda place: place.topology.redis.thaw()),
        0,
        4,
    ),
    Kind("Redis is emptied", once(lambda place: place.topology.redis.flush()), 0, 2),
    Kind(
        "Redis takes nothing more",
        while_it_lasts(redis("CONFIG", "SET", "maxmemory", "1"), redis("CONFIG", "SET", "maxmemory", "0")),
        0,
        3,
    ),
    Kind(
        "PostgreSQL is away",
        while_it_lasts(lambda place: place.server.shut_down(), lambda place: place.server.start_again()),
        FREE,
        4,
    ),
    Kind("PostgreSQL stands still for 3 s", frozen_database, FREE, 6),
    Kind("PostgreSQL has no connection left", no_connection_left, 0, 2),
    Kind(
        "PostgreSQL ends all connections",
        once(query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")),
        UNDER_WAY,
        3,
    ),
    Kind(
        "PostgreSQL writes nothing",
        while_it_lasts(
            query(
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', "
                "current_database()); PERFORM pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid(); END $$"
            ),
            query(
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET "
                "default_transaction_read_only', current_database()); PERFORM pg_terminate_backend(pid) FROM "
                "pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid(); END $$"
            ),
        ),
        FREE,
        4,
    ),
    Kind("all wallets are locked for 3 s", locked("SELECT 1 FROM billing_wallet FOR UPDATE", seconds=3), FREE, 6),
    Kind("a migration waits for a reader's lock", migrated_beside_a_reader, FREE, 4),
]


# -- the run ------------------------------------------------------------------------------------------------------


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110 - other processes are what is waited for
            await asyncio.sleep(0.1)


def is_well(place: Place) -> bool:
    """Whether both gateways have all engines ready."""
    return all(unit.is_ready() for unit in place.units) and all(
        len(one) == place.topology.engines for one in place.topology.places().values()
    )


async def strike(place: Place, kind: Kind, seconds: float, count: int) -> tuple[list[str], bool]:
    """Do one fault, and return its row of the table and whether it stayed within its allowance."""
    place.asked = []
    over = asyncio.Event()
    asking = asyncio.create_task(clients(place, count, over))
    await asyncio.sleep(seconds / 3)
    began = time.monotonic()
    async with kind.fault(place):
        await asyncio.sleep(max(0.0, began + seconds / 3 - time.monotonic()))
    await asyncio.sleep(seconds / 3)
    over.set()
    await asking
    healed = time.monotonic()
    await until(lambda: is_well(place))
    healed = time.monotonic() - healed
    found = await asyncio.to_thread(place.topology.settled)
    sums = {found["usage_sum"], found["ledger_sum"], found["recomputed_sum"]}
    lost = [one for one in place.asked if one.code]
    under_way = sum(one.began <= began <= one.ended for one in place.asked)
    longest = max(one.wait for one in place.asked)
    span = max(one.ended for one in lost) - min(one.ended for one in lost) if lost else 0.0
    allowed = under_way if kind.lost == UNDER_WAY else kind.lost
    are_right = len(sums) == 1 and not found["holds"]
    is_so = len(lost) <= allowed and longest <= kind.wait and are_right
    whose = Counter(f"{one.code} at {one.proxy}" for one in lost).most_common(3)
    codes = ", ".join(f"{number} {code}" for code, number in whose)
    told = "any" if kind.lost == FREE else str(allowed)
    row = [
        kind.name,
        str(len(place.asked)),
        f"{len(lost)} ({told})",
        f"{span:.1f}",
        f"{longest:.1f} ({kind.wait:g})",
        f"{healed:.0f}",
        "agree" if are_right else "DON'T AGREE",
        codes,
    ]
    return row, is_so


async def run(place: Place, kinds: list[Kind], seconds: float, count: int) -> bool:
    heads = [
        "fault",
        "requests",
        "lost (allowed)",
        "s of losses",
        "longest wait (allowed)",
        "s to heal",
        "books",
        "",
    ]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    are_so = []
    for kind in kinds:
        await until(lambda: is_well(place))
        await asyncio.sleep(1)  # Caddy looks each half second
        row, is_so = await strike(place, kind, seconds, count)
        are_so.append(is_so)
        print(f"| {' | '.join(row)} |{'' if is_so else '  <-- not allowed'}", flush=True)
    return all(are_so)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults with this in their names")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each fault's run")
    parser.add_argument("--clients", type=int, default=12, help="at each proxy")
    wanted = parser.parse_args()
    kinds = [kind for kind in KINDS if wanted.only in kind.name]
    with ExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="sluice-faults-")))
        server = PostgresServer.start()
        parts.callback(server.stop)
        topology = parts.enter_context(running_topology(server.url, chat={"step_seconds": 0.002}))
        units = [
            parts.enter_context(Unit(topology.stack.environment, lease_port(), folder / f"unit-{number}.log"))
            for number in range(2)
        ]
        proxies = {}
        for name, proxy in (("nginx", nginx), ("caddy", caddy)):
            (folder / name).mkdir()
            proxies[name] = parts.enter_context(proxy([unit.address for unit in units], folder / name))
        place = Place(topology, server, units, proxies)
        is_so = asyncio.run(run(place, kinds, wanted.seconds, wanted.clients))
    return int(not is_so)


if __name__ == "__main__":
    sys.exit(main())
