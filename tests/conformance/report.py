"""What came of a run's lines, beside what is expected of them, and the page that tells it."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXPECTED = Path(__file__).with_name("expected.toml")
OUTCOMES = ("works", "refused", "fails")
INTRODUCTION = """\
# Clients

What unmodified clients do with Sluice, by `make conformance`, which writes this page. Each line is a behaviour, tried
with the client's own calls against a gateway whose engine answers by a script; those marked so ask SmolLM2 on the real
engine.
**works**: the client got what it asked for. **refused**: a clear error, for the reason that stands beside it
(`tests/conformance/expected.toml`). **fails**: neither. A result is of the day on which the
client was tried last.
"""


@dataclass(frozen=True)
class Line:
    """One behaviour of a client: its outcome, and for a refusal the reason, for a failure the error."""

    name: str
    outcome: str
    why: str = ""
    is_new: bool = False  # it works although a refusal is expected: the line in expected.toml goes


@dataclass(frozen=True)
class Tried:
    """A client and its lines, tried on a day of UTC. Without lines it wasn't tried, and `skipped` says why."""

    client: str
    version: str
    lines: tuple[Line, ...] = ()
    skipped: str = ""
    day: str = ""

    @property
    def counts(self) -> Counter[str]:
        """How many of its lines have each outcome."""
        return Counter(line.outcome for line in self.lines)


def expected() -> dict[str, Any]:
    """The refusals that are expected: by client and line what the error says, and the reason."""
    return tomllib.loads(EXPECTED.read_text())


def judged(name: str, error: str | None, refusals: Mapping[str, Mapping[str, str]]) -> Line:
    """Return the line `name` of a client, which failed with `error`, or worked if that is None."""
    refusal = refusals.get(name)
    if error is None:
        return Line(name, "works", is_new=refusal is not None)
    if refusal is not None and refusal["says"] in error:
        return Line(name, "refused", refusal["reason"])
    return Line(name, "fails", error)


def rewritten(written: str, tried: Tried, clients: Iterable[str]) -> str:
    """Return docs/clients.md as `written` with the results of `tried` in place of its earlier ones. Those of the other
    `clients` stay as they are, and so do its own where it couldn't be tried this time.
    """
    known = {it.client: it for it in _read(written)}
    if tried.lines or not known.get(tried.client, tried).lines:
        known[tried.client] = tried
    return page(known.get(name, Tried(name, "", skipped="Not tried.")) for name in clients)


def _read(written: str) -> Iterator[Tried]:
    """What a page tells of its clients."""
    head, *sections = re.split(r"^## ", written, flags=re.MULTILINE)
    versions = {row[1]: row for row in re.finditer(r"^\| (.+?) \| (.*?) \| (\d{4}-\d\d-\d\d) \|", head, re.MULTILINE)}
    for section in sections:
        client, _, told = section.partition("\n")
        if row := versions.get(client):
            lines = (found[2:-2] for found in told.splitlines()[3:] if found.startswith("| "))
            yield Tried(client, row[2], tuple(map(_line, lines)), day=row[3])
        else:
            yield Tried(client, "", skipped=told.strip())


def _line(row: str) -> Line:
    name, told = (cell.replace("\\|", "|") for cell in re.split(r"(?<!\\) \| ", row))
    outcome, _, why = told.partition(": ")
    return Line(name, outcome, why)


def page(clients: Iterable[Tried]) -> str:
    """docs/clients.md."""
    clients = list(clients)
    rows = []
    for it in clients:
        cells = (it.client, it.version, it.day, *(it.counts[outcome] for outcome in OUTCOMES))
        if it.lines:
            rows.append(f"| {' | '.join(map(str, cells))} |")
    head = f"| client | version | tried | {' | '.join(OUTCOMES)} |\n|---|---|---|---|---|---|\n"
    tables = [INTRODUCTION, head + "\n".join(rows)]
    for it in clients:
        lines = "\n".join(f"| {_cell(line.name)} | {_told(line)} |" for line in it.lines)
        tables.append(f"## {it.client}\n\n" + (f"| what | |\n|---|---|\n{lines}" if lines else it.skipped))
    return "\n\n".join(table.strip() for table in tables) + "\n"


def _told(line: Line) -> str:
    if line.outcome == "works":
        return "works"
    why = " ".join(line.why.split())
    return _cell(f"{line.outcome}: {why if len(why) <= 300 else why[:299] + '…'}")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
