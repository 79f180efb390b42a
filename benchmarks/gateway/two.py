"""Requests per second of two gateways beside those of one, each kept to a part of a core by its cgroup.

    python benchmarks/gateway/two.py [--cores 0.25] [--seconds 4] [--repeats 3]

Both serve one home with PostgreSQL (fsync on) and Redis, over the fake engine in each. On a machine of two cores a
whole core for each would leave none to PostgreSQL, Redis and the client, which all gateways share; with a part of one
it shows whether two do twice the work of one, and what they lose to each other's locks. Needs root, and cgroups whose
cpu controller can be written to. Afterwards the books must hold one usage record for each answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvloop
from client import CLIENT_CORE, Cell, Load, Seen, Target
from run import BUSY, WARM, books, cells, home, server

PERIOD = 20_000  # microseconds
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@contextmanager
def confined(target: Target, cores: float):
    """Keep a process and its threads to so much of a core while the block runs."""
    is_v2 = (V2 / "cgroup.controllers").exists()
    group = (V2 if is_v2 else V1) / f"sluice-bench-{target.pid}"
    group.mkdir()
    try:
        if is_v2:
            (group / "cpu.max").write_text(f"{int(cores * PERIOD)} {PERIOD}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(int(cores * PERIOD)))
        (group / "cgroup.procs").write_text(str(target.pid))
        yield
        (group.parent / "cgroup.procs").write_text(str(target.pid))
    finally:
        group.rmdir()


def run(targets: list[Target], cell: Cell) -> list[Seen]:
    """Run a cell once against all targets at the same time."""

    async def together() -> list[Seen]:
        return await asyncio.gather(*(Load(target, cell).run(WARM) for target in targets))

    found = uvloop.run(together())
    for target, seen in zip(targets, found, strict=True):
        if seen.failed.keys() - {BUSY}:
            raise RuntimeError(f"{target.name}, {cell.name}: {dict(seen.failed)} beside {seen.answered} answers")
    return found


def main() -> None:
    from tests.services.redis import RedisServer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=float, default=0.25, help="of each gateway")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    os.sched_setaffinity(0, {CLIENT_CORE})
    loads = [cell for cell in cells(options.seconds) if cell.streams == 64 and not cell.spread]
    rates: dict[tuple[str, int], list[float]] = {}
    answered = 0
    with ExitStack() as stack:
        redis = RedisServer.start()
        stack.callback(redis.stop)
        environment, keys = stack.enter_context(home("postgresql"))
        environment = {**environment, "REDIS_URL": redis.url}
        more = {"keys": keys, "environment": environment, "ready": "/readyz"}
        gateways = []
        for number in (1, 2):
            log = Path(environment["SLUICE_HOME"], f"gateway-{number}.log")
            gateways.append(stack.enter_context(server(f"gateway {number}", ["manage.py", "gateway"], log=log, **more)))
            stack.enter_context(confined(gateways[-1], options.cores))
        for _ in range(options.repeats):
            for cell in loads:
                for count in (1, 2):
                    found = run(gateways[:count], cell)
                    rates.setdefault((cell.name, count), []).append(sum(seen.rate for seen in found))
                    answered += sum(seen.answered for seen in found)
        audit = books("audit", environment)
    recorded = sum(model["count"] for model in audit["records"].values())
    if recorded != answered or audit["holds"] or audit["ledger"] != audit["wallets"]:
        raise RuntimeError(f"the books are wrong: {answered} answers, found {audit}")
    print(
        f"{options.cores:g} of a core each, load average {os.getloadavg()[0]:.1f}; medians of {options.repeats} runs\n"
    )
    print("| load | one gateway, requests/s | two | two of one |\n|---|---|---|---|")
    for cell in loads:
        one, two = (statistics.median(rates[cell.name, count]) for count in (1, 2))
        print(f"| {cell.name} | {one:,.0f} | {two:,.0f} | {two / one:.2f} |")
    print(f"\nbooks: {answered:,} answers, as many usage records, {audit['ledger']:,} µcr everywhere, no hold open")


if __name__ == "__main__":
    main()
