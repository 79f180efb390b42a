"""The generators of questions, and several of them in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from desk.training import corpus, inbox
from desk.training.corpus import Example
from desk.training.texts import Split

GENERATORS: Mapping[str, Callable[[Split, int, int | None], Iterator[Example]]] = {
    "corpus": corpus.examples,
    "inbox": inbox.examples,
}


def in_turn(split: Split, seed: int, names: Sequence[str] = tuple(GENERATORS)) -> Iterator[Example]:
    """Yield examples of each generator in turn, without end."""
    streams = [GENERATORS[name](split, seed, None) for name in names]
    while True:
        yield from (next(stream) for stream in streams)
