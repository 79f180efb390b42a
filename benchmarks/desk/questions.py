"""The ways to ask the held-out questions over HTTP, and how their answers are judged: `benchmarks/desk/run.py`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from desk.training.corpus import Example
from desk.training.texts import OTHER

GENERAL, ADAPTER, HEAD = "smollm2-135m-instruct", "sluice-desk", "sluice-desk-labels"
MOST_TOKENS = 200


@dataclass(frozen=True)
class Way:
    """How questions are answered; `slug` is its tenant."""

    slug: str
    told: str
    model: str
    is_guided: bool = True
    tasks: tuple[str, ...] = ("classify", "extract")


WAYS = (
    Way("free", "generalist, free", GENERAL, is_guided=False),
    Way("guided", "generalist, guided", GENERAL),
    Way("adapter", f"specialist `{ADAPTER}`, guided", ADAPTER),
    Way("head", f"head `{HEAD}`", HEAD, tasks=("classify",)),
)


def request_of(way: Way, example: Example) -> tuple[str, dict[str, Any]]:
    """Return path and body of a question."""
    body: dict[str, Any]
    if way.model == HEAD:
        labels = [name for name in example.choices if name != OTHER]
        body = {"model": HEAD, "input": example.ticket.text, "labels": labels, "truncate_prompt_tokens": -1}
        return "/v1/classify", body
    body = {
        "model": way.model,
        "messages": [{"role": "user", "content": example.prompt}],
        "temperature": 0,
        "max_tokens": MOST_TOKENS,
    }
    if way.is_guided and example.task == "classify":
        body["structured_outputs"] = {"choice": list(example.choices)}
    elif way.is_guided:
        schema = {
            "type": "object",
            "properties": {name: {"type": ["string", "null"]} for name in example.choices},
            "required": list(example.choices),
            "additionalProperties": False,
        }
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "fields", "schema": schema}}
    return "/v1/chat/completions", body


def is_right(example: Example, answer: str) -> bool:
    """Whether it has the label, or an object with exactly the right values."""
    if example.task == "classify":
        return answer.strip().strip("\"'`.").strip().casefold() == example.answer.casefold()
    try:
        found, _ = json.JSONDecoder().raw_decode(answer, answer.index("{"))
    except ValueError:  # no object, or none that ends
        return False
    return bool(found == json.loads(example.answer))
