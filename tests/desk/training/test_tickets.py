"""The example's tickets are those that its command writes."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from desk.training import texts, tickets

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/tickets.csv"


def test_the_examples_file_is_what_the_command_writes():
    made = io.StringIO()
    tickets.write(made, 1, 1000)
    assert made.getvalue() == EXAMPLE.read_text(encoding="utf-8")


def test_a_ticket_contains_its_fields_as_they_are_written():
    with EXAMPLE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1000
    assert {row["label"] for row in rows} == {*texts.labels(), texts.OTHER}
    assert all(row[name] in row["ticket"] for row in rows for name in tickets.FIELDS)
