"""Questions as the chat model reads them: ids, and where the answer begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from random import Random
from typing import Any

from desk.training.corpus import Example
from desk.training.course import numbered
from desk.training.generators import GENERATORS, in_turn
from desk.training.texts import Split

BUCKET = 8
"""Batches that are drawn together, so that each has examples of about one length."""
CLASSIFIED = 0.1
"""The share of questions for a label: their answers have few tokens, whose loss weighs more for it."""
CLASSIFIED_WEIGHT = 4.0


@dataclass(frozen=True)
class Conversation:
    """Token ids of a question with its answer and the end of the turn; `begin` is the answer's first."""

    ids: Sequence[int]
    begin: int
    weight: float


def messages(example: Example, *, as_system: bool = False) -> list[dict[str, str]]:
    """Return the question, its instruction above the ticket or as the system's message."""
    if not as_system:
        return [{"role": "user", "content": example.prompt}]
    return [{"role": "system", "content": example.instruction}, {"role": "user", "content": example.ticket.text}]


def conversation(example: Example, tokenizer: Any, *, as_system: bool) -> Conversation:
    """Return `example` in the tokenizer's chat template."""
    asked = messages(example, as_system=as_system)
    text = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    answer = tokenizer(example.answer + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
    return Conversation((*prompt, *answer), len(prompt), CLASSIFIED_WEIGHT if example.task == "classify" else 1.0)


def batches(
    split: Split,
    seed: int,
    size: int,
    tokenizer: Any,
    *,
    first: int = 0,
    generators: Sequence[str] = tuple(GENERATORS),
    workers: int = 0,
) -> Iterator[list[Conversation]]:
    """Yield batches of `size` from number `first` on, without end; each is a function of seed and number alone."""

    def drawn(bucket: int) -> list[list[Conversation]]:
        random = Random(f"conversations {split} {seed} {bucket}")
        stream = in_turn(split, random.randrange(2**62), generators)
        together = sorted(
            (
                conversation(example, tokenizer, as_system=random.random() < 0.5)
                for example in islice(_mixed(stream, random), BUCKET * size)
            ),
            key=lambda one: len(one.ids),
        )
        grouped = [together[start : start + size] for start in range(0, len(together), size)]
        random.shuffle(grouped)
        return grouped

    buckets = numbered(drawn, first // BUCKET, workers)
    return islice(chain.from_iterable(buckets), first % BUCKET, None)


def _mixed(stream: Iterator[Example], random: Random) -> Iterator[Example]:
    """Leave out so many classifications that their share is `CLASSIFIED`; the stream has as many of both tasks."""
    kept = CLASSIFIED / (1 - CLASSIFIED)
    for example in stream:
        if example.task != "classify" or random.random() < kept:
            yield example
