"""Write tickets with their right labels and fields as CSV: what `examples/tickets.csv` was made by.

    python -m desk.training.tickets --count 1000 --seed 1 > examples/tickets.csv

They are of the held-out split, so training has none of their sentences and values, with a seed that isn't the held-out
file's.
"""

from __future__ import annotations

import argparse
import csv
import sys
from typing import TextIO

from desk.training import corpus

FIELDS = ("name", "email", "order", "product", "date", "amount")


def write(file: TextIO, seed: int, count: int) -> None:
    """Write a head and `count` rows: a number, the ticket, its label, and what it says for each of FIELDS."""
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(("id", "ticket", "label", *FIELDS))
    for number, ticket in enumerate(corpus.tickets("held_out", seed, count), start=1):
        rows.writerow((number, ticket.text, ticket.label, *(ticket.fields.get(name, "") for name in FIELDS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    write(sys.stdout, options.seed, options.count)


if __name__ == "__main__":
    main()
