"""What came of a run's lines, beside what is expected of them, and the page that tells it."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
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


def keep(tried: Tried, results: Path) -> None:
    """Let what was tried stand in the folder `results` in place of what that has of the client."""
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{tried.client}.json").write_text(json.dumps(asdict(tried), indent=1))


def kept(clients: Iterable[str], results: Path) -> list[Tried]:
    """The latest of each of `clients` in that folder; one that was never tried says so."""
    found = []
    for client in clients:
        file = results / f"{client}.json"
        told = json.loads(file.read_text()) if file.exists() else {"skipped": "Not tried."}
        found.append(Tried(**{"client": client, "version": "", **told, "lines": _lines(told)}))
    return found


def _lines(told: Mapping[str, Any]) -> tuple[Line, ...]:
    return tuple(Line(**line) for line in told.get("lines", ()))


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
        lines = "\n".join(f"| {line.name} | {_told(line)} |" for line in it.lines)
        tables.append(f"## {it.client}\n\n" + (f"| what | |\n|---|---|\n{lines}" if lines else it.skipped))
    return "\n\n".join(table.strip() for table in tables) + "\n"


def _told(line: Line) -> str:
    if line.outcome == "works":
        return "works"
    why = " ".join(line.why.split()).replace("|", "\\|")
    return f"{line.outcome}: {why if len(why) <= 300 else why[:299] + '…'}"
