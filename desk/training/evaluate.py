"""Measure the specialist on the held-out file, through our own engine: labels, and fields as JSON.

    python -m desk.training.evaluate --labels FOLDER
    python -m desk.training.evaluate --chat FOLDER --adapter FOLDER

Answers are held by guided decoding to one of the labels, or to a JSON object with the asked fields. The held-out file
is a seed (`held_out`), and a test knows its digest: nothing is tuned on it. `--split dev` measures the development
split instead, for choices between ways of training.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from desk.training import corpus, texts
from desk.training.corpus import Example
from desk.training.texts import OTHER, Split
from inference.local.engine import LocalEngine
from inference.messages import Message
from inference.types import GenerationRequest, Guidance, GuidanceKind, Kind, SamplingParams

SEED, COUNT = 2026, 800
AT_ONCE = 16


def held_out(split: Split = "held_out") -> list[Example]:
    """Return the questions that are measured: 400 for labels and 400 for fields, each about a ticket of its own."""
    return list(corpus.examples(split, SEED, COUNT))


def digest(examples: Iterable[Example]) -> str:
    """Return what identifies questions and answers."""
    whole = hashlib.sha256()
    for example in examples:
        whole.update(json.dumps([example.task, example.prompt, example.answer, example.choices]).encode())
    return whole.hexdigest()


def labels_by_head(engine: LocalEngine, examples: Sequence[Example]) -> list[str]:
    """Return the most probable label of each question, asked as `/v1/classify` asks."""
    answers: dict[str, str] = {}
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
                    answers[output.request_id] = vector.labels[int(np.frombuffer(vector.data, "<f4").argmax())]
    return [answers[str(number)] for number in range(len(examples))]


def answers_by_chat(engine: LocalEngine, adapter: str, examples: Sequence[Example]) -> list[str]:
    """Return the guided answers of the chat model with that adapter ("": none)."""
    answers = {str(number): "" for number in range(len(examples))}
    waiting = iter(enumerate(examples))
    while True:
        for number, example in islice(waiting, AT_ONCE - engine.unfinished):
            engine.submit(engine.prepare(_chat(str(number), adapter, example)))
        if not engine.unfinished:
            return [answers[str(number)] for number in range(len(examples))]
        for output in engine.step():
            answers[output.request_id] += output.text


def _chat(name: str, adapter: str, example: Example) -> GenerationRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=200, guidance=_guidance(example))
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


def kinds(example: Example) -> Iterator[str]:
    """Yield the lines of the table that a question counts for."""
    if example.task == "extract":
        yield "fields"
        return
    own = set(texts.labels())
    offered = [name for name in example.choices if name != OTHER]
    yield "labels"
    if not own.issuperset(offered):
        yield "labels, renamed"
    elif len(offered) < len(own):
        yield "labels, a subset"
    else:
        yield "labels, all eight"
    if example.answer == OTHER:
        yield "labels, other"


def table(examples: Sequence[Example], answers: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return how many there are of each kind, and which share of them is right."""
    total: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for example, answer in zip(examples, answers, strict=True):
        for kind in kinds(example):
            total[kind] += 1
            right[kind] += is_right(example, answer)
    return {kind: {"questions": total[kind], "right": round(right[kind] / total[kind], 4)} for kind in sorted(total)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", help="the folder of an encoder with a head for labels")
    parser.add_argument("--chat", help="the folder of a chat model")
    parser.add_argument("--adapter", type=Path, help="the folder of its adapter; without: the model as it is")
    parser.add_argument("--split", choices=("held_out", "dev"), default="held_out")
    parser.add_argument("--tasks", nargs="+", choices=("classify", "extract"), default=("classify", "extract"))
    parser.add_argument("--count", type=int, default=COUNT, help="so many questions, half of each task")
    options = parser.parse_args()
    examples = held_out(options.split)[: options.count]
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
        if options.split == "dev" and not is_right(example, answer):
            print(json.dumps({"ticket": example.ticket.text, "right": example.answer, "answered": answer}))
    print(json.dumps({"seconds": round(time.monotonic() - began), **table(examples, answers)}, indent=2))


if __name__ == "__main__":
    main()
