"""python -m tests.conformance [CLIENT …]: try all clients, or those named, and write docs/clients.md anew with the
latest results of each. Exits with 1 where a line fails, or works although expected.toml has a refusal for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.conformance import environments, report
from tests.conformance.clients import CLIENTS, Client
from tests.conformance.gateway import Gateway, serving
from tests.conformance.report import Line, Tried

PAGE = environments.ROOT / "docs/clients.md"
RESULTS = environments.WHERE / "results"
SECONDS = 600  # for all lines of one client


def main() -> int:
    asked = sys.argv[1:]
    if unknown := set(asked) - {client.name for client in CLIENTS}:
        sys.exit(f"no client is called {', '.join(sorted(unknown))}: {', '.join(client.name for client in CLIENTS)}")
    chosen = [client for client in CLIENTS if not asked or client.name in asked]
    ready = {name: environments.ready(name) for name in dict.fromkeys(client.environment for client in chosen)}
    refusals = report.expected()
    tried = []
    with serving() as gateway:
        for client in chosen:
            tried.append(_try(client, ready[client.environment], gateway, refusals.get(client.name, {})))
            report.keep(tried[-1], RESULTS)
    PAGE.write_text(report.page(report.kept([client.name for client in CLIENTS], RESULTS)))
    return _tell(tried)


def _try(
    client: Client, ready: environments.Ready | None, gateway: Gateway, refusals: dict[str, dict[str, str]]
) -> Tried:
    print(client.name, flush=True)
    if ready is None:
        return Tried(client.name, "", skipped="Not tried: its packages, or Node.js and npm, could not be had.")
    folder = ready.folder if client.environment == "node" else Path(__file__).parent / "python"
    done = subprocess.run(
        [*ready.command, folder / client.program],
        env={**os.environ, **gateway.environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.stdout.startswith('{"skipped"'):
        return Tried(client.name, "", skipped=f"Not tried: {json.loads(done.stdout)['skipped']}")
    told = [json.loads(row) for row in done.stdout.splitlines() if row.startswith('{"line"')]
    lines = [report.judged(row["line"], row["error"], refusals) for row in told]
    if done.returncode or not told:
        lines.append(Line("its program ends well", "fails", done.stderr[-300:]))
    lines += [Line(name, "fails", "it wasn't tried") for name in refusals if name not in {row["line"] for row in told}]
    today = datetime.now(UTC).date().isoformat()
    return Tried(client.name, ready.version_of(client.package), tuple(lines), day=today)


def _tell(tried: list[Tried]) -> int:
    for client in tried:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(client.counts.items()))
        print(f"{client.client} {client.version}: {counts or client.skipped}")
        for line in client.lines:
            if line.outcome == "fails":
                print(f"  fails: {line.name}: {line.why[:400]}")
            elif line.is_new:
                print(f"  works now: {line.name}: take its refusal out of expected.toml")
    return int(any(line.outcome == "fails" or line.is_new for client in tried for line in client.lines))


if __name__ == "__main__":
    sys.exit(main())
