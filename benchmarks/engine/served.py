"""What the first model gives its clients: tokens/s and first tokens over HTTP, of one or more checkouts in turns.

    python benchmarks/engine/served.py [--streams 1,8,32] [--new 64] [--runs 3] [--rounds 2] [CHECKOUT …]

Each checkout (default: this one) is set up and served as `make run` does it, with its own `.venv`, on a port of its
own; a client in this process opens the streams at once and reads them to their ends. `--spin` serves each checkout once
for each of these values of GOMP_SPINCOUNT.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.engine.over_http import load  # noqa: E402
from benchmarks.remote.run import free_port  # noqa: E402

MODEL = "smollm2-135m-instruct"
READY_SECONDS = 300


class Served:
    """A checkout that is served while this is entered."""

    def __init__(self, checkout: Path, spin: str) -> None:
        self.checkout = checkout
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.key = ""
        self._variables = {"GOMP_SPINCOUNT": spin} if spin else {}

    def __enter__(self) -> Self:
        variables = {**os.environ, "SLUICE_HOME": str(self.checkout / "var"), **self._variables}
        command = [".venv/bin/python", "manage.py", "quickstart", "--serve", "--port", str(self.port)]
        self._log = self.checkout / "var" / "served.log"
        self._log.parent.mkdir(exist_ok=True)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, cwd=self.checkout, stdout=log, stderr=subprocess.STDOUT, env=variables, start_new_session=True
            )
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            told = self._log.read_text()
            if "ready in" in told and (demo := self.checkout / "var/demo.json").is_file():
                self.key = json.loads(demo.read_text())["api_key"]
                return self
            time.sleep(0.5)
        self.__exit__()
        raise SystemExit(f"{self.checkout} was not ready: see {self._log}")

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(60)


def measured(served: Served, streams: int, new: int) -> tuple[float, float]:
    """Return tokens/s of so many streams at once, and the median time to a first token in seconds."""
    texts = [f"Tell me story number {number} of {time.time_ns()} about a river." for number in range(streams)]
    found = asyncio.run(load(served.address, served.key, texts, new, model=MODEL))
    return found.tokens / found.seconds, statistics.median(found.first)


def main() -> None:
    """Measure in turns and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="*", type=Path, default=[ROOT])
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--spin", default="")
    asked = parser.parse_args()
    found: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for _ in range(asked.rounds):
        for checkout in asked.checkouts:
            for spin in asked.spin.split(","):
                with Served(checkout.resolve(), spin) as served:
                    measured(served, 1, 16)  # warm
                    for streams in map(int, asked.streams.split(",")):
                        name = f"{checkout.resolve().name} {spin}".strip()
                        found[name, streams] += [measured(served, streams, asked.new) for _ in range(asked.runs)]
    for (name, streams), rounds in found.items():
        speeds, firsts = zip(*rounds, strict=True)
        told = f"{statistics.median(speeds):.0f} tokens/s, first token {statistics.median(firsts) * 1000:.0f} ms"
        print(f"{name}, {streams} streams: {told} (tokens/s {min(speeds):.0f} to {max(speeds):.0f})")


if __name__ == "__main__":
    main()
