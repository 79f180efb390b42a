"""What reserve + settle cost through the writer, beside its goals.

    python benchmarks/ledger/run.py [--database sqlite|postgresql|both] [--seconds 4]

A request is one reserve and one settle, both acknowledged after their commit, on one of 50 wallets. On PostgreSQL (a
server of its own behind a Unix socket, fsync on) three references are measured in the same run: S, a prepared SELECT 1;
U, a one-row UPDATE with its commit; and U0, the same without waiting for the disk, so that goals of CPU are not met by
a slow disk. CPU is the processes' own (process time here, /proc/*/schedstat for the server); the generator's share is
measured with a writer that does nothing. At last the same with and without five hard budgets on each request, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

WALLETS = 50
CALLERS = (1, 16, 64, 256)
BUDGETED = (64, 256)  # callers
TURNS = 3
OFFERED = 1_500
OTHER_WORK = 300e-6


class NullWriter:
    """Answers at once: what is left is the generator."""

    flushes = operations = 0

    async def submit(self, operation):
        await asyncio.sleep(0)

    async def close(self):
        pass


class Load:
    """Requests against one writer, and what they took."""

    def __init__(self, writer, wallets, budgets):
        self.writer = writer
        self.wallets = wallets
        self.budgets = budgets
        self.reserves, self.settles = [], []
        self.refused = 0

    async def request(self):
        from base.ids import uuid7
        from billing.writer import WriterBusyError
        from billing.writer.operations import NO_BUDGETS, EndFacts, RequestFacts, Reserve, Settle

        wallet, tenant = random.choice(self.wallets)
        facts = RequestFacts("chat.completions", "chat", {"reason": "default"})
        made = Reserve(
            request=uuid7(), wallet=wallet, amount=500, least=100, owner=tenant, deployment=tenant,
            card_version=tenant, tenant=tenant, project=tenant, api_key=tenant, model="benchmark", facts=facts,
            budgets=self.budgets or NO_BUDGETS,
        )  # fmt: skip
        started = time.perf_counter()
        try:
            await self.writer.submit(made)
        except WriterBusyError:
            self.refused += 1
            return
        held = time.perf_counter()
        await self.writer.submit(Settle(made.request, wallet, 321, {"input": 100, "output": 50}, EndFacts("stop")))
        self.reserves.append(held - started)
        self.settles.append(time.perf_counter() - held)

    async def closed(self, callers, seconds):
        """`callers` callers, each asking again as soon as it was answered."""
        end = time.perf_counter() + seconds

        async def caller():
            while time.perf_counter() < end:
                await self.request()

        await asyncio.gather(*(caller() for _ in range(callers)))

    async def offered(self, rate, seconds):
        """`rate` requests a second, each with other work of the process before it."""
        start, sent, tasks = time.perf_counter(), 0, set()
        while (now := time.perf_counter() - start) < seconds:
            for _ in range(int(now * rate) - sent):
                sent += 1
                busy = time.thread_time() + OTHER_WORK
                while time.thread_time() < busy:
                    pass
                task = asyncio.ensure_future(self.request())
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(0.0005)
        await asyncio.gather(*tasks)


def server_cpu(postmaster):
    """Seconds of CPU of the server's processes."""
    total = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if postmaster in (parent, int(entry.name)):
                total += int((entry / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total / 1e9


def percentiles(seconds):
    ordered = sorted(seconds)
    return [1e3 * statistics.median(ordered), 1e3 * ordered[int(len(ordered) * 0.99)]]


def measure(work, writer, wallets, postmaster, wal, *, budgets=None):
    """Run one load and return what a request cost."""
    load = Load(writer, wallets, budgets)

    async def whole():
        await load.closed(4, 0.2)  # connects and warms
        load.reserves.clear()
        load.settles.clear()
        flushes, operations = writer.flushes, writer.operations
        before = time.process_time(), time.perf_counter(), server_cpu(postmaster) if postmaster else 0, wal()
        await work(load)
        after = time.process_time(), time.perf_counter(), server_cpu(postmaster) if postmaster else 0, wal()
        count = len(load.settles) + load.refused
        cpu, wall, server, written = (new - old for new, old in zip(after, before, strict=True))
        flushes = max(writer.flushes - flushes, 1)
        await writer.close()
        return {
            "rate": count / wall,
            "cpu": 1e6 * cpu / count,
            "server": 1e6 * server / count,
            "wal": written / count,
            "batch": (writer.operations - operations) / flushes,
            "reserve": percentiles(load.reserves),
            "settle": percentiles(load.settles),
            "refused": load.refused,
        }

    return uvloop.run(whole())


def references(settings):
    """S, U and U0 in seconds."""
    import psycopg

    arguments = {"dbname": "NAME", "user": "USER", "host": "HOST", "port": "PORT"}
    with psycopg.connect(**{k: settings[v] for k, v in arguments.items()}, autocommit=True) as connection:
        connection.prepare_threshold = 0
        connection.execute("CREATE TABLE reference_row AS SELECT 1 AS id, 0 AS n")
        taken = []
        update = "UPDATE reference_row SET n = n + 1"
        for statement, turns, synchronous in (("SELECT 1", 3_000, "on"), (update, 500, "on"), (update, 1_500, "off")):
            connection.execute(f"SET synchronous_commit = {synchronous}")
            times = []
            for _ in range(turns):
                started = time.perf_counter()
                connection.execute(statement)
                times.append(time.perf_counter() - started)
            taken.append(statistics.median(times))
        connection.execute("DROP TABLE reference_row")
    return taken


def measure_database(seconds):
    """Measure the database that the environment names; print the figures as JSON."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection

    from billing import reconcile
    from billing.writer import open_writer
    from tests.billing.writer.world import make_wallet, patient

    call_command("migrate", verbosity=0)
    made = [make_wallet(credit=10**12) for _ in range(WALLETS)]
    wallets = [(wallet.pk, wallet.tenant_id) for wallet in made]
    is_postgresql = connection.vendor == "postgresql"
    postmaster = int(os.environ.get("POSTMASTER", "0"))

    def wal():
        if not is_postgresql:
            return 0
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
                return int(cursor.fetchone()[0])
        finally:
            connection.close()  # each loop has a connection of its own, and the pool has few

    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # wal() is asked between loads, when nothing else runs

    def writer():
        return patient(open_writer(connection.settings_dict))

    result = {"generator": measure(lambda load: load.closed(64, 1), NullWriter(), wallets, 0, lambda: 0)["cpu"]}
    if is_postgresql:
        result["S"], result["U"], result["U0"] = references(connection.settings_dict)
    for callers in CALLERS:
        result[str(callers)] = measure(
            lambda load, c=callers: load.closed(c, seconds), writer(), wallets, postmaster, wal
        )
    budgets = five_of_each(made)
    for callers in BUDGETED:
        taken = {None: [], budgets: []}
        for _ in range(TURNS):
            for bearing, found in taken.items():
                found.append(
                    measure(
                        lambda load, c=callers: load.closed(c, seconds / 2),
                        writer(),
                        wallets,
                        postmaster,
                        wal,
                        budgets=bearing,
                    )
                )
        result[f"budgets {callers}"] = [
            {name: statistics.median(one[name] for one in found) for name in ("cpu", "server", "wal", "rate")}
            for found in taken.values()
        ]
    for name, used in (("null", NullWriter()), ("beside", writer())):
        result[name] = measure(lambda load: load.offered(OFFERED, seconds), used, wallets, postmaster, wal)
    result["findings"] = len(reconcile.check(connection, recompute=False))
    print(json.dumps(result))


def five_of_each(wallets):
    """Make the same five budgets for each wallet, which no request reaches, and return their terms."""
    from billing.services.budgets import make_budget, terms_of
    from billing.writer.operations import Bearing

    windows = (("tenant", "total"), ("project", "day"), ("key", "week"), ("key", "month"), ("models", "day"))
    for wallet in wallets:
        five = [
            make_budget(wallet=wallet.pk, scope=scope, subject=str(wallet.pk), window=window, amount=10**15)
            for scope, window in windows
        ]
    return Bearing(tuple(map(terms_of, five)))


def run_child(environment, seconds):
    command = [sys.executable, __file__, "--child", "--seconds", str(seconds)]
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def show(name, result):
    print(f"\n{name} ({WALLETS} wallets; generator {result['generator']:.0f} µs of each gateway figure)")
    if "S" in result:
        print(", ".join(f"{name} = {1e6 * result[name]:.0f} µs" for name in ("S", "U", "U0")))
    print("| callers | requests/s | gateway µs | server µs | WAL B | batch | reserve p50/p99 ms | settle p50/p99 ms |")
    print("|---|---|---|---|---|---|---|---|")
    for key in (*map(str, CALLERS), "beside"):
        row = result[key]
        label = key if key != "beside" else f"{OFFERED}/s offered + 300 µs work"
        latency = " | ".join("{:.1f} / {:.1f}".format(*row[which]) for which in ("reserve", "settle"))
        print(
            f"| {label} | {row['rate']:,.0f} | {row['cpu']:.0f} | {row['server']:.0f} | {row['wal']:,.0f} | "
            f"{row['batch']:.1f} | {latency} |"
        )
    print("\n| callers | budgets | gateway µs | server µs | together | WAL B | requests/s |")
    print("|---|---|---|---|---|---|---|")
    for callers in BUDGETED:
        for count, row in zip((0, 5), result[f"budgets {callers}"], strict=True):
            own = row["cpu"] - result["generator"]
            cost = f"{own:.0f} | {row['server']:.0f} | {own + row['server']:.0f}"
            print(f"| {callers} | {count} | {cost} | {row['wal']:,.0f} | {row['rate']:,.0f} |")
    refused = sum(result[key]["refused"] for key in (*map(str, CALLERS), "beside"))
    print(f"reserves refused as too busy: {refused}; findings of the reconciliation: {result['findings']}")


def show_goals(result):
    s, u, full = 1e6 * result["S"], 1e6 * result["U"], result["256"]
    added = result["beside"]["cpu"] - result["null"]["cpu"]
    own = full["cpu"] - result["generator"]
    goals = [
        ("gateway CPU per request, c = 256 (less the generator)", "≤ 1.5 S", own / s, 1.5),
        ("PostgreSQL CPU per request, c = 256", "≤ 0.8 U0", full["server"] / (1e6 * result["U0"]), 0.8),
        ("requests/s, c = 256", "≥ 0.5 / U", -full["rate"] * result["U"], -0.5),
        ("reserve p50, c = 1", "≤ 6 U", 1e3 * result["1"]["reserve"][0] / u, 6),
        (f"added gateway CPU at {OFFERED}/s beside 300 µs of work", "≤ 2 S", added / s, 2),
        ("WAL per request, c = 256", "≤ 2.6 kB", full["wal"] / 1000, 2.6),
    ]
    print("\n| goal | wanted | measured | met |\n|---|---|---|---|")
    for name, wanted, value, limit in goals:
        print(f"| {name} | {wanted} | {abs(value):.2f} | {'yes' if value <= limit else 'NO'} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgresql", "both"], default="both")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        measure_database(options.seconds)
        return
    home = tempfile.mkdtemp(prefix="sluice-bench-")
    environment = {"SLUICE_HOME": home, "SLUICE_ENV": "test"}
    try:
        if options.database != "postgresql":
            url = f"sqlite:///{home}/ledger.sqlite3"
            show("SQLite", run_child({**environment, "DATABASE_URL": url}, options.seconds))
        if options.database != "sqlite":
            from tests.services.postgres import PostgresServer

            server = PostgresServer.start("fsync=on")
            try:
                postmaster = (server.folder / "data" / "postmaster.pid").read_text().split()[0]
                url = f"postgresql://sluice@:{server.port}/{server.folder}/sluice"  # through the Unix socket
                started = {**environment, "DATABASE_URL": url, "POSTMASTER": postmaster}
                result = run_child(started, options.seconds)
                show("PostgreSQL", result)
                show_goals(result)
            finally:
                server.stop()
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
