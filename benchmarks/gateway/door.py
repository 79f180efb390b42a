"""The gateway as a door in front of a model server, beside the least proxy there is and beside LiteLLM.

    python benchmarks/gateway/door.py [--database sqlite|postgresql] [--redis] [--litellm FOLDER/bin/litellm]
        [--seconds 2]

All of them relay the same server (`upstream.py`), which costs almost nothing, so that what is seen is the door: for
ours keys, routing, rate limits, hold and settle in the ledger, usage and logs; for LiteLLM its master key without a
database, which is the least that it can be run with; for the bare proxy nothing. Each has core 1 to itself while it is
asked; client, upstream and PostgreSQL (fsync on) share core 0. In turns, medians of the repeats. Afterwards the books
must hold one usage record for each answer.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

from client import CLIENT_CORE, SERVER_CORE, Cell, Seen, Target
from run import HERE, TOKENS, books, cells, gateway, percentile, run, server, wait_for

KEY = "sk-bench"


@contextmanager
def upstream(folder: Path):
    """The model server, on the client's core; its address."""
    from tests.services.ports import lease_port

    port = lease_port()
    log = folder / "upstream.log"
    with log.open("wb") as output:
        command = [sys.executable, str(HERE / "upstream.py"), "--port", str(port)]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_for(f"http://127.0.0.1:{port}/", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def litellm(command: str, address: str, folder: Path):
    """LiteLLM's proxy with a master key and no database."""
    from tests.services.ports import lease_port

    end = f"api_base: '{address}/v1', api_key: none"
    names = "".join(
        f"  - model_name: {name}\n    litellm_params: {{model: openai/{name}, {end}}}\n"
        for name in ("whole", "stream", "paced")
    )
    config = folder / "litellm.yaml"
    config.write_text(f"model_list:\n{names}general_settings:\n  master_key: {KEY}\n")
    port, log = lease_port(), folder / "litellm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(SERVER_CORE), command, "--config", str(config), "--port", str(port)],
            env={**os.environ, "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/health/liveliness", process, log)
        yield Target("LiteLLM", port, process.pid, [KEY])
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def figures(runs: list[Seen], cell: Cell) -> tuple[float, float, float, float, float]:
    """Requests/s, tokens/s, CPU µs a request, p50 and p99 in ms (of a stream: to its first token)."""

    def median(figure) -> float:
        return statistics.median(figure(seen) for seen in runs)

    def late(share: float) -> float:
        return 1e3 * median(lambda seen: percentile(seen.first_tokens or seen.latencies or [math.nan], share))

    cpu = median(lambda seen: 1e6 * seen.cpu / max(len(seen.latencies), 1))
    return median(lambda seen: seen.rate), TOKENS * median(lambda seen: seen.rate), cpu, late(0.5), late(0.99)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="postgresql")
    parser.add_argument("--redis", action="store_true", help="count rates in a redis-server, on the client's core")
    parser.add_argument("--litellm", help="its command, in an environment of its own")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="only the loads whose names contain this")
    options = parser.parse_args()
    os.sched_setaffinity(0, {CLIENT_CORE})
    loads = [cell for cell in cells(options.seconds) if options.only in cell.name]
    runs: dict[tuple[str, str], list[Seen]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        address = stack.enter_context(upstream(folder))
        sluice, environment = stack.enter_context(
            gateway(options.database, address, name="Sluice", redis=options.redis)
        )
        bare = [str(HERE / "proxy.py"), "--upstream", address]
        more = {"keys": ["none"], "environment": {}, "ready": "/v1/models", "log": folder / "proxy.log"}
        targets = [stack.enter_context(server("bare proxy", bare, **more)), sluice]
        if options.litellm:
            targets.append(stack.enter_context(litellm(options.litellm, address, folder)))
        targets.append(Target("the upstream itself", int(address.rpartition(":")[2]), os.getpid(), ["none"]))
        answered = 0
        for _ in range(options.repeats):
            for cell in loads:
                for target in targets:
                    seen, _ = run(target, cell)
                    runs.setdefault((cell.name, target.name), []).append(seen)
                    answered += seen.answered if target is sluice else 0
        audit = books("audit", environment)
    recorded = sum(model["count"] for model in audit["records"].values())
    if recorded != answered or audit["holds"] or audit["ledger"] != audit["wallets"]:
        raise RuntimeError(f"the books are wrong: {answered} answers, found {audit}")
    stores = f"{options.database}{' and Redis' if options.redis else ''}"
    print(f"{stores}, load average {os.getloadavg()[0]:.1f}; medians of {options.repeats} runs\n")
    print(
        "| load | door | requests/s | tokens/s | of the bare proxy | CPU µs per request | p50 / p99 ms | added p50 ms |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for cell in loads:
        alone = figures(runs[cell.name, targets[-1].name], cell)
        least = figures(runs[cell.name, "bare proxy"], cell)
        for target in targets:
            rate, tokens, cpu, p50, p99 = figures(runs[cell.name, target.name], cell)
            is_alone = target is targets[-1]
            print(
                f"| {cell.name} | {target.name} | {rate:,.0f} | {tokens:,.0f} | {rate / least[0]:.2f} |"
                f" {'' if is_alone else f'{cpu:,.0f}'} | {p50:.2f} / {p99:.2f} |"
                f" {'' if is_alone else f'{p50 - alone[3]:+.2f}'} |"
            )
    print(f"\nbooks: {answered:,} answers, as many usage records, {audit['ledger']:,} µcr everywhere, no hold open")


if __name__ == "__main__":
    main()
