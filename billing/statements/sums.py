"""The sums of a statement: lines by model and class of tokens, and what moved by its reason."""

from __future__ import annotations

from collections import Counter
from typing import Any

from billing.rating import CLASSES, shares
from billing.seals.leaves import RECORD, RECORD_FIELDS, TRANSFER_FIELDS, Cards, Leaf

_FIRST = RECORD_FIELDS.index("input")
_AT = {name: RECORD_FIELDS.index(name) for name in ("revision", "multiplier_bp", "was", "charge", "exact", "waived")}
_CODE, _DEBIT, _CREDIT = (TRANSFER_FIELDS.index(name) for name in ("code", "debit", "credit"))
CORRECTION = "correction"
"""The class of a line that holds what corrections changed of charges: more, or less below zero."""


class Sums:
    """The sums of the rows added so far, on top of an opening balance."""

    def __init__(self, opening: int) -> None:
        self.opening = self.closing = opening
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._charges: Counter[tuple[str, str]] = Counter()
        self._movements: Counter[tuple[str, str]] = Counter()
        self._counts: Counter[str] = Counter()

    def add(self, leaf: Leaf, cards: Cards) -> None:
        """Add a row."""
        if leaf.kind == RECORD:
            self._add_record(leaf, cards)
            return
        self.closing += leaf.moved
        if leaf.moved:
            # the account on the other side: usage, breakage, an issuance
            other = leaf.fields[_DEBIT if leaf.moved > 0 else _CREDIT]
            self._movements[leaf.fields[_CODE], other] += leaf.moved

    def _add_record(self, leaf: Leaf, cards: Cards) -> None:
        fields, model = leaf.fields, leaf.said[0]
        charge = fields[_AT["charge"]]
        if fields[_AT["revision"]]:
            self._charges[model, CORRECTION] += charge - fields[_AT["was"]]
            self._counts["corrections"] += 1
            return
        self._counts["requests"] += 1
        self._counts["waived"] += fields[_AT["waived"]]
        self._counts["estimated"] += 1 - fields[_AT["exact"]]
        classes = {name: tokens for name, tokens in zip(CLASSES, fields[_FIRST : _FIRST + 6], strict=True) if tokens}
        self._tokens.update({(model, name): tokens for name, tokens in classes.items()})
        card = cards.of(leaf.card) if leaf.card is not None else None
        if classes and card is not None:
            parts = shares(classes, card, fields[_AT["multiplier_bp"]])
            self._charges.update({(model, name): part for name, part in parts.items()})

    def told(self) -> dict[str, Any]:
        """Return the sums as a statement keeps them: plain values, in a fixed order."""
        names = sorted({*self._tokens, *self._charges}, key=lambda one: (one[0], _place(one[1])))
        return {
            "usage": [
                {
                    "model": model,
                    "class": name,
                    "tokens": self._tokens[model, name],
                    "charge": self._charges[model, name],
                }
                for model, name in names
            ],
            "movements": [
                {"code": code, "account": account, "amount": amount}
                for (code, account), amount in sorted(self._movements.items())
            ],
            "counts": {name: self._counts[name] for name in ("requests", "corrections", "waived", "estimated")},
        }


def _place(name: str) -> int:
    return (*CLASSES, "request", CORRECTION).index(name)
