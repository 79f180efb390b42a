"""python -m tests.conformance [CLIENT …]: try all clients, or those named (as anthropic-node or "Anthropic Node"), and
write what came of each into docs/clients.md, where clients that weren't tried now stay as they were. Exits with 1 where
a line fails, or works although expected.toml has a refusal for it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.conformance import environments, report
from tests.conformance.clients import CLIENTS, Client, slug
from tests.conformance.gateway import Gateway, serving
from tests.conformance.report import Line, Tried

PAGE = environments.ROOT / "docs/clients.md"
SECONDS = 600  # for all lines of one client


def main() -> int:
    chosen = _chosen(sys.argv[1:])
    ready = {name: environments.ready(name) for name in dict.fromkeys(client.environment for client in chosen)}
    refusals = report.expected()
    tried = []
    with serving() as gateway:
        for client in chosen:
            tried.append(_try(client, ready[client.environment], gateway, refusals.get(client.name, {})))
            PAGE.write_text(report.rewritten(PAGE.read_text(), tried[-1], [client.name for client in CLIENTS]))
    return _tell(tried)


def _chosen(asked: list[str]) -> list[Client]:
    """The clients of these names, all without any. Exit and list them where one is unknown."""
    known = {slug(client.name): client for client in CLIENTS}
    if unknown := [name for name in asked if slug(name) not in known]:
        sys.exit(f"no client is called {', '.join(unknown)}. There are: {' '.join(known)}")
    names = {slug(name) for name in asked}
    return [client for name, client in known.items() if not names or name in names]


def _try(
    client: Client, ready: environments.Ready | None, gateway: Gateway, refusals: dict[str, dict[str, str]]
) -> Tried:
    print(client.name, flush=True)
    if ready is None:
        return Tried(client.name, "", skipped="Not tried: its packages, or Node.js and npm, could not be had.")
    folder = ready.folder if client.environment == "node" else Path(__file__).parent / "python"
    out, ended = _run([*ready.command, str(folder / client.program)], {**os.environ, **gateway.environment})
    if out.startswith('{"skipped"'):
        return Tried(client.name, "", skipped=f"Not tried: {json.loads(out)['skipped']}")
    told = [json.loads(row) for row in out.splitlines() if row.startswith('{"line"')]
    lines = [report.judged(row["line"], row["error"], refusals) for row in told]
    if ended or not told:
        lines.append(Line("its program ends well", "fails", ended or "it told of no line"))
    lines += [Line(name, "fails", "it wasn't tried") for name in refusals if name not in {row["line"] for row in told}]
    today = datetime.now(UTC).date().isoformat()
    told_versions = [json.loads(row)["version"] for row in out.splitlines() if row.startswith('{"version"')]
    version = told_versions[0] if told_versions else ready.version_of(client.package)
    return Tried(client.name, version, tuple(lines), day=today)


def _run(command: list[str], environment: dict[str, str]) -> tuple[str, str]:
    """What the program printed, and how it ended unless it ended well. Nothing that it began outlives the call."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as program:
        try:
            out, said = program.communicate(timeout=SECONDS)
        except BaseException as error:
            os.killpg(program.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return program.communicate()[0], f"it took more than {SECONDS} s"
    return out, f"status {program.returncode}: {said[-300:]}" if program.returncode else ""


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
