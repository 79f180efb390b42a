"""Processor time of an installation at rest: `make run` in one terminal; in another, once its models are loaded,

    python benchmarks/idle.py [--seconds 60]

Prints each process of `serve` with its share of one core. Linux only.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def processes() -> dict[int, tuple[int, str, int]]:
    """Return by id the parent, the command and the ticks of every process that can be read."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text().replace("\0", " ").strip()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        found[int(folder.name)] = int(fields[1]), command, int(fields[11]) + int(fields[12])
    return found


def family(root: int, found: dict[int, tuple[int, str, int]]) -> set[int]:
    """Return a process and all that it started."""
    mine = {root}
    while more := {pid for pid, (parent, _, _) in found.items() if parent in mine} - mine:
        mine |= more
    return mine


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    before = processes()
    supervisors = [pid for pid, (_, command, _) in before.items() if "manage.py serve" in command]
    if not supervisors:
        raise SystemExit("no `manage.py serve` runs: start it with `make run`")
    mine = family(supervisors[0], before)
    began = time.monotonic()
    time.sleep(seconds)
    after, passed = processes(), time.monotonic() - began
    total = 0.0
    for pid in sorted(mine & after.keys()):
        share = (after[pid][2] - before[pid][2]) / TICKS / passed
        total += share
        print(f"{share:7.2%}  {after[pid][1][:100]}")
    print(f"{total:7.2%}  of one core in all, over {passed:.0f} s")


if __name__ == "__main__":
    main()
