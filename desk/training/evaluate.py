"""Measure the specialists on the held-out half of a generator, through our own engine: labels, and fields as JSON.

    python -m desk.training.evaluate --generator inbox --labels FOLDER
    python -m desk.training.evaluate --generator inbox --chat FOLDER --adapter FOLDER

Answers are held by guided decoding to one of the labels, or to a JSON object with the asked fields. A held-out file
is a seed (`held_out`), and a test knows its digest: nothing is tuned on it. `--split dev` measures the development
split instead, for choices between ways of training. For each kind of question it tells how many are right, of fields
also how many values are missing (null where the ticket has one) or wrong, and what remains where an answer is given
only from a confidence on: of a label its probability, of fields the least probability of a token of a value.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from desk.training import inbox, texts
from desk.training.corpus import Example
from desk.training.generators import GENERATORS
from desk.training.texts import OTHER, Split
from inference.local.engine import LocalEngine
from inference.messages import Message
from inference.types import GenerationRequest, Guidance, GuidanceKind, Kind, SamplingParams

SEED, COUNT = 2026, 800
AT_ONCE = 16
THRESHOLDS = (0.5, 0.7, 0.9, 0.97)
_VALUE = re.compile(r':\s*("(?:[^"\\]|\\.)*"|null)')


@dataclass(frozen=True)
class Answer:
    """An answer, and how sure the model is of it (0 to 1)."""

    text: str
    confidence: float


def held_out(split: Split = "held_out", generator: str = "corpus") -> list[Example]:
    """Return the questions that are measured: 400 for labels and 400 for fields, each about a ticket of its own."""
    return list(GENERATORS[generator](split, SEED, COUNT))


def digest(examples: Iterable[Example]) -> str:
    """Return what identifies questions and answers."""
    whole = hashlib.sha256()
    for example in examples:
        whole.update(json.dumps([example.task, example.prompt, example.answer, example.choices]).encode())
    return whole.hexdigest()


def labels_by_head(engine: LocalEngine, examples: Sequence[Example]) -> list[Answer]:
    """Return the most probable label of each question, asked as `/v1/classify` asks."""
    answers: dict[str, Answer] = {}
    for number, example in enumerate(examples):
        request = GenerationRequest(
            str(number),
            "desk",
            "desk",
            kind=Kind.CLASSIFICATION,
            inputs=(example.ticket.text,),
            labels=tuple(name for name in example.choices if name != OTHER),
            truncate=True,
        )
        engine.submit(engine.prepare(request))
        while engine.unfinished == AT_ONCE or (engine.unfinished and number + 1 == len(examples)):
            for output in engine.step():
                for vector in output.vectors:
                    shares = np.frombuffer(vector.data, "<f4")
                    best = int(shares.argmax())
                    answers[output.request_id] = Answer(vector.labels[best], float(shares[best]))
    return [answers[str(number)] for number in range(len(examples))]


def answers_by_chat(engine: LocalEngine, adapter: str, examples: Sequence[Example]) -> list[Answer]:
    """Return the guided answers of the chat model with that adapter ("": none)."""
    tokens: list[list[tuple[str, float]]] = [[] for _ in examples]
    waiting = iter(enumerate(examples))
    while True:
        for number, example in islice(waiting, AT_ONCE - engine.unfinished):
            engine.submit(engine.prepare(_chat(str(number), adapter, example)))
        if not engine.unfinished:
            return [_answer(example, told) for example, told in zip(examples, tokens, strict=True)]
        for output in engine.step():
            tokens[int(output.request_id)] += [(one.chosen.text, one.chosen.logprob) for one in output.logprobs]


def _answer(example: Example, tokens: Sequence[tuple[str, float]]) -> Answer:
    """Return the text of `tokens`, as sure as its least probable token, of JSON that of a value."""
    text = "".join(piece for piece, _ in tokens)
    spans = [found.span(1) for found in _VALUE.finditer(text)] if example.task == "extract" else [(0, len(text))]
    least, end = 0.0, 0
    for piece, logprob in tokens:
        begin, end = end, end + len(piece)
        if any(begin < span_end and end > span_begin for span_begin, span_end in spans):
            least = min(least, logprob)
    return Answer(text, math.exp(least))


def _chat(name: str, adapter: str, example: Example) -> GenerationRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=200, logprobs=0, guidance=_guidance(example))
    messages = (Message("user", (example.prompt,)),)
    return GenerationRequest(name, "desk", "desk", messages=messages, sampling=sampling, adapter=adapter)


def _guidance(example: Example) -> Guidance:
    if example.task == "classify":
        return Guidance(GuidanceKind.CHOICE, choices=example.choices)
    schema = {
        "type": "object",
        "properties": {name: {"type": ["string", "null"]} for name in example.choices},
        "required": list(example.choices),
        "additionalProperties": False,
    }
    return Guidance(GuidanceKind.JSON_SCHEMA, json.dumps(schema))


def is_right(example: Example, answer: str) -> bool:
    """Whether it is the label, or JSON with exactly the right values."""
    if example.task == "classify":
        return answer == example.answer
    try:
        return bool(json.loads(answer) == json.loads(example.answer))
    except ValueError:  # cut off at its longest
        return False


def faults(example: Example, answer: str) -> tuple[int, int]:
    """Return how many values an answer with fields has null that the ticket says, and how many wrong."""
    right = json.loads(example.answer)
    try:
        given = json.loads(answer)
    except ValueError:
        return 0, len(right)
    missing = sum(given[name] is None and value is not None for name, value in right.items())
    return missing, sum(given[name] not in (None, value) for name, value in right.items())


def kinds(example: Example) -> Iterator[str]:
    """Yield the lines of the table that a question counts for."""
    task = "fields" if example.task == "extract" else "labels"
    yield task
    if example.ticket.register in inbox.FRAMES:
        yield f"{task}, {example.ticket.language}"
        yield f"{task}, {example.ticket.register}"
        yield f"{task}, instruction {'behind' if example.is_behind else 'before'}"
    if task == "fields":
        return
    own = set(texts.labels())
    offered = [name for name in example.choices if name != OTHER]
    if not own.issuperset(offered):
        yield "labels, renamed"
    elif len(offered) < len(own):
        yield "labels, a subset"
    else:
        yield "labels, all eight"
    if example.answer == OTHER:
        yield "labels, other"


def table(examples: Sequence[Example], answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """Return of each kind how many questions there are, and which shares of them are right, and given or right from
    a confidence on; of fields how many of all values are missing or wrong.
    """
    grouped: dict[str, list[tuple[Example, Answer]]] = {}
    for example, answer in zip(examples, answers, strict=True):
        for kind in kinds(example):
            grouped.setdefault(kind, []).append((example, answer))
    return {kind: _line(grouped[kind]) for kind in sorted(grouped)}


def _line(group: Sequence[tuple[Example, Answer]]) -> dict[str, float]:
    line: dict[str, float] = {"questions": len(group), "right": _share_right(group)}
    if group[0][0].task == "extract":
        values = sum(len(example.choices) for example, _ in group)
        missing, wrong = (sum(each) for each in zip(*(faults(one, said.text) for one, said in group), strict=True))
        line |= {"values": values, "missing": round(missing / values, 4), "wrong": round(wrong / values, 4)}
    for least in THRESHOLDS:
        given = [one for one in group if one[1].confidence >= least]
        line[f"given from {least}"] = round(len(given) / len(group), 4)
        line[f"right of these from {least}"] = _share_right(given)
    return line


def _share_right(group: Sequence[tuple[Example, Answer]]) -> float:
    return round(sum(is_right(one, answer.text) for one, answer in group) / len(group), 4) if group else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", help="the folder of an encoder with a head for labels")
    parser.add_argument("--chat", help="the folder of a chat model")
    parser.add_argument("--adapter", type=Path, help="the folder of its adapter; without: the model as it is")
    parser.add_argument("--generator", choices=tuple(GENERATORS), default="corpus")
    parser.add_argument("--split", choices=("held_out", "dev"), default="held_out")
    parser.add_argument("--tasks", nargs="+", choices=("classify", "extract"), default=("classify", "extract"))
    parser.add_argument("--count", type=int, default=COUNT, help="so many questions, half of each task")
    options = parser.parse_args()
    examples = held_out(options.split, options.generator)[: options.count]
    began = time.monotonic()
    if options.labels:
        examples = [example for example in examples if example.task == "classify"]
        answers = labels_by_head(LocalEngine.load(options.labels), examples)
    else:
        examples = [example for example in examples if example.task in options.tasks]
        engine = LocalEngine.load(options.chat, max_rows=AT_ONCE, max_context=1024)
        if options.adapter:
            engine.offer({"desk": options.adapter})
        answers = answers_by_chat(engine, "desk" if options.adapter else "", examples)
    for example, answer in zip(examples, answers, strict=True):
        if options.split == "dev" and not is_right(example, answer.text):
            print(json.dumps({"ticket": example.ticket.text, "right": example.answer, "answered": answer.text}))
    print(json.dumps({"seconds": round(time.monotonic() - began), **table(examples, answers)}, indent=2))


if __name__ == "__main__":
    main()
