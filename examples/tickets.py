"""Sort support tickets and take fields out of them with OpenAI's SDK, sixteen at a time or as one batch.

    pip install openai
    export SLUICE_API_KEY=sk-sluice-…
    python examples/tickets.py            # the 1,000 tickets of tickets.csv, answers into answers.csv
    python examples/tickets.py --batch    # the same overnight, at the price of batches

Each ticket is asked about twice: for its label, held to LABELS, and for FIELDS, held to JSON. After Ctrl-C or an error
run it again: it goes on with what is missing. Where the CSV has the right answers, their share stands at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, OpenAI, OpenAIError

LABELS = ("billing", "refund", "delivery", "defect", "account", "technical", "cancellation", "sales", "other")
FIELDS = ("name", "email", "order", "product", "date", "amount")
COLUMNS = ("id", "label", *FIELDS, "credits_micro")
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": ["string", "null"]} for name in FIELDS},
    "required": FIELDS,
    "additionalProperties": False,
}
# What is asked about a ticket, and what the answer is held to.
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "classify": (f"Classify the ticket. Labels: {', '.join(LABELS)}.", {"structured_outputs": {"choice": LABELS}}),
    "extract": (
        f"Extract these fields from the ticket as JSON: {', '.join(FIELDS)}. Use null for what is not there.",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "fields", "schema": SCHEMA}}},
    ),
}
CHAT = "/v1/chat/completions"
ENDED = {"completed", "failed", "expired", "cancelled"}
show = partial(print, end="\r", file=sys.stderr, flush=True)  # each line in place of the one before


def body_of(task: str, ticket: dict[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """Return the body of a chat completion."""
    question, held = TASKS[task]
    return {
        "model": options.labels if task == "classify" else options.fields,
        "messages": [{"role": "user", "content": f"{question}\n\n{ticket['ticket']}"}],
        "temperature": 0,
        "max_tokens": 300,
        "metadata": {"sluice_task": task},  # by this `auto` finds the model
        **held,
    }


def row_of(number: str, answers: list[dict[str, Any]]) -> dict[str, str]:
    """Return what a ticket's two chat completions say; a charge that isn't settled yet is left empty."""
    label, fields = (answer["choices"][0]["message"]["content"] for answer in answers)
    try:
        found = json.loads(fields)
    except ValueError:  # cut off at its longest
        found = dict.fromkeys(FIELDS, "?")
    charges = [answer["usage"].get("credits_micro") for answer in answers]
    credits = "" if None in charges else str(sum(charges))
    return {"id": number, "label": label, **{name: found.get(name) or "" for name in FIELDS}, "credits_micro": credits}


class Answers:
    """The CSV of answers, which grows row by row, and the tickets that they are about."""

    def __init__(self, path: Path, tickets: list[dict[str, str]]) -> None:
        self.path, self.tickets = path, {ticket["id"]: ticket for ticket in tickets}
        if not path.exists():
            path.write_text(",".join(COLUMNS) + "\n")
        self.rows = {row["id"]: row for row in read(path, COLUMNS)}
        self.before, self.began, self.seconds = len(self.rows), time.monotonic(), 0.0

    def missing(self) -> list[dict[str, str]]:
        return [ticket for number, ticket in self.tickets.items() if number not in self.rows]

    def add(self, row: dict[str, str]) -> None:
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)
        self.rows[row["id"]], self.seconds = row, time.monotonic() - self.began

    def told(self) -> str:
        """Return how many tickets are answered, for how many credits, in what time, and how many of them right."""
        pairs = [(self.rows[number], ticket) for number, ticket in self.tickets.items() if number in self.rows]
        charges = [row["credits_micro"] for row, _ in pairs]
        line = f"{len(pairs)} of {len(self.tickets)} tickets, {sum(map(int, filter(None, charges))) / 1e6:.6f} credits"
        line += f" without {charges.count('')} that aren't settled yet" if "" in charges else ""
        line += f", {len(self.rows) - self.before} of them now in {self.seconds:.0f} s"
        if pairs and pairs[0][1].keys() >= {"label", *FIELDS}:  # the CSV knows what is right
            for what, columns in (("labels", ("label",)), ("JSON, all of its fields", FIELDS)):
                right = sum(all(row[name] == ticket[name] for name in columns) for row, ticket in pairs)
                line += f"; right: {right / len(pairs):.1%} of the {what}"
        return line


def read(path: Path, needed: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the rows of a CSV that has at least the columns `needed`."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows, start=1):
        if not row.keys() >= set(needed) or None in row or None in row.values():
            sys.exit(f"{path}: row {number} needs {', '.join(needed)}, and as many values as the head has columns")
    return rows


async def ask_all(answers: Answers, options: argparse.Namespace) -> None:
    """Ask about each missing ticket; after an error what was begun is finished first."""
    waiting, failed = iter(missing := answers.missing()), []
    async with AsyncOpenAI(base_url=options.base_url, api_key=options.key, max_retries=8) as client:

        async def ask(task: str, ticket: dict[str, str]) -> dict[str, Any]:
            body = body_of(task, ticket, options)
            ours = {name: body.pop(name) for name in ("structured_outputs",) if name in body}  # unknown to the SDK
            return (await client.chat.completions.create(**body, extra_body=ours)).model_dump()

        async def worker() -> None:
            while not failed and (ticket := next(waiting, None)):
                try:
                    answers.add(row_of(ticket["id"], [await ask(task, ticket) for task in TASKS]))
                    show(f"{len(answers.rows) - answers.before} of {len(missing)} tickets in {answers.seconds:.0f} s")
                except OpenAIError as error:
                    failed.append(error)

        await asyncio.gather(*(worker() for _ in range(options.workers)))
    if failed:
        raise failed[0]


def as_batch(answers: Answers, options: argparse.Namespace) -> None:
    """Have one batch answer the missing tickets; its id is kept beside the answers until they are fetched."""
    note = answers.path.with_name(f"{answers.path.name}.batch")
    with OpenAI(base_url=options.base_url, api_key=options.key, max_retries=8) as client:
        if not note.exists():
            lines = [
                {"custom_id": f"{task} {t['id']}", "method": "POST", "url": CHAT, "body": body_of(task, t, options)}
                for t in answers.missing()
                for task in TASKS
            ]
            data = "\n".join(map(json.dumps, lines)).encode()
            file = client.files.create(file=("tickets.jsonl", data), purpose="batch")
            note.write_text(client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id)
        while (batch := client.batches.retrieve(note.read_text())).status not in ENDED:
            counts = batch.request_counts
            show(f"{batch.id} is {batch.status}: {counts.completed} of {counts.total} requests")
            time.sleep(options.poll)
        files = [client.files.content(name) for name in (batch.output_file_id, batch.error_file_id) if name]
    results = [json.loads(line) for file in files for line in file.content.splitlines()]
    told = {line["custom_id"]: (line["response"] or {}).get("body") or line for line in results}
    for ticket in answers.missing():
        both = [told.get(f"{task} {ticket['id']}", {}) for task in TASKS]
        if all("choices" in answer for answer in both):
            answers.add(row_of(ticket["id"], both))
    answers.seconds = (batch.completed_at or time.time()) - batch.created_at
    note.unlink()  # the next run asks again about what failed
    refused = [answer["error"]["message"] for answer in told.values() if "choices" not in answer]
    if reasons := [error.message for error in (batch.errors and batch.errors.data) or ()] + refused:
        sys.exit(f"{batch.id} is {batch.status}, with {len(reasons)} errors; the first: {reasons[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tickets", type=Path, default=Path(__file__).with_name("tickets.csv"), metavar="CSV")
    parser.add_argument("--out", type=Path, default=Path("answers.csv"), metavar="CSV", help="gets the answers")
    parser.add_argument("--count", type=int, help="only so many tickets")
    parser.add_argument("--workers", type=int, default=16, help="tickets that are asked about at once")
    parser.add_argument("--labels", default="sluice-desk-labels", help="model that is asked for labels; may be auto")
    parser.add_argument("--fields", default="sluice-desk", help="model that is asked for fields; may be auto")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--key", default=os.environ.get("SLUICE_API_KEY"), help="API key; $SLUICE_API_KEY if not given")
    parser.add_argument("--batch", action="store_true", help="make one batch of all requests")
    parser.add_argument("--poll", type=float, default=5, help="seconds between two looks at a batch")
    options = parser.parse_args()
    if not options.key or not options.tickets.is_file():
        parser.error("set SLUICE_API_KEY or give --key" if not options.key else f"there is no file {options.tickets}")
    answers = Answers(options.out, read(options.tickets, ("id", "ticket"))[: options.count])
    try:
        if answers.missing():
            as_batch(answers, options) if options.batch else asyncio.run(ask_all(answers, options))
    except KeyboardInterrupt:
        sys.exit("stopped: run it again to go on (a batch goes on by itself)")
    except OpenAIError as error:
        sys.exit(f"{options.base_url}: {error}")
    finally:
        print(f"\n{answers.told()}", file=sys.stderr)


if __name__ == "__main__":
    main()
