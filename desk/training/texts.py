"""The corpus' sentences and words, read from `data/`, by split."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

Split = Literal["train", "held_out", "fit", "dev"]
"""`train` and `held_out` share nothing. `dev` is each fifth text of `train`, for choices between ways of training; then
`fit`, the others, is what is trained on."""

DATA = Path(__file__).parent / "data"
OTHER = "other"
"""The label of a ticket that gives no ground for any."""


@cache
def read(name: str) -> Mapping[str, Any]:
    """Return the data of that name."""
    with (DATA / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


def of(given: Mapping[str, Sequence[str]], split: Split) -> tuple[str, ...]:
    """Return the texts of `split`."""
    if split in given:
        return tuple(given[split])
    return tuple(text for number, text in enumerate(given["train"]) if (number % 5 == 1) == (split == "dev"))


def labels() -> tuple[str, ...]:
    """Return the labels that are built in, without `OTHER`."""
    return tuple(label for label in read("situations") if label != OTHER)


def situations(label: str, split: Split) -> tuple[str, ...]:
    """Return the sentences that make a ticket one of `label`."""
    return of(read("situations")[label], split)


def details(split: Split) -> tuple[str, ...]:
    """Return sentences that carry fields and no label."""
    return of(read("details"), split)


def talk(kind: str, split: Split) -> tuple[str, ...]:
    """Return what people say around the matter: greetings, closings, chatter, anger."""
    return of(read("talk")[kind], split)


def asides(split: Split, *, but: str = "") -> tuple[str, ...]:
    """Return sentences that name another matter than `but` only to say that it isn't meant."""
    return tuple(text for label, given in read("talk")["asides"].items() if label != but for text in of(given, split))


def words(kind: str, split: Split) -> tuple[str, ...]:
    """Return the words that fill a slot of `kind`."""
    return of(read("fillers")[kind], split)


def names_of(label: str, split: Split) -> tuple[str, ...]:
    """Return other names that an instruction may use for `label`."""
    return of(read("fillers")["labels"][label], split)


def instructions(task: str, split: Split) -> tuple[str, ...]:
    """Return wordings of an instruction for `task`, with `{labels}` or `{fields}` in them."""
    return of(read("instructions")[task], split)
