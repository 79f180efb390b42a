"""Labels that texts can be classified by: a model's own, and those of one request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Labels:
    """A classifier's own labels. Where they are open (`is_open`) a request may name any others instead.

    `none` is what an input of which no label is true is called: "" where the model always chooses one.
    """

    names: tuple[str, ...]
    is_open: bool = False
    none: str = ""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LabelSet:
    """The labels of one classification: what its probabilities are of, and the labels as the model reads them.

    `ids` are each label's token ids where labels are open, else its number among the model's own. `names` has `none`
    behind them. `tokens` are those that are computed for labels, and what is kept of them is the `domain`'s alone, as
    prefixes are. It equals no other, so that what is computed for it can be kept as long as its request lives.
    """

    names: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    tokens: int = 0
    domain: str = ""
