"""A statement as JSON lines: whatever is needed to verify it, in one pass and with nothing else at hand.

docs/statements.md describes the lines for whoever writes another verifier.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec

from billing.models import LedgerSeal, RateCardVersion
from billing.rating import CardPrices
from billing.seals.keys import public_keys, text_of, told
from billing.seals.leaves import RECORD, Books, Leaf
from billing.seals.proofs import seal_told
from billing.seals.sealing import midnight
from billing.statements.months import Month, seals_of
from billing.statements.sums import Sums

FORMAT = 1
_DAY = timedelta(days=1)
_WRITTEN_AT_ONCE = 500
_encoder = msgspec.json.Encoder()


def lines(month: Month, name: str, slug: str) -> Generator[bytes]:
    """Yield the statement, some lines at a time; memory doesn't grow with the rows."""
    some: list[dict[str, Any]] = []
    for line in _lines(month, name, slug):
        some.append(line)
        if len(some) == _WRITTEN_AT_ONCE:
            yield _encoder.encode_lines(some)
            some = []
    yield _encoder.encode_lines(some)


def _lines(month: Month, name: str, slug: str) -> Iterator[dict[str, Any]]:
    statement = month.statement
    yield {
        "type": "statement",
        "format": FORMAT,
        "number": None if statement is None else statement.number,
        "tenant": month.tenant,
        "name": name,
        "slug": slug,
        "month": month.name,
        "time_zone": month.time_zone,
        "begins_at": text_of(month.begins_at),
        "ends_at": text_of(month.ends_at),
        "opening": month.opening,
    }
    for key in public_keys():
        yield {"type": "key", **told(key)}
    books, sums = Books(month.tenant), Sums(month.opening)
    for part in _parts(month, books, seals_of(month)):
        if isinstance(part, LedgerSeal):
            blocks = LedgerSeal.objects.values_list("blocks", flat=True).get(pk=part.pk)
            yield {"type": "seal", **seal_told(part), "blocks": [one[0] for one in blocks]}
        elif month.begins_at <= part.place[0] < month.ends_at:
            sums.add(part, books.cards)
            if part.kind == RECORD and part.card is not None and books.cards.is_new(part.card):
                yield from _card(books, part)
            yield {**part.told(), "leaf": part.hash.hex()}
        else:  # of a sealed day that lies in two months
            yield {"type": "leaf", "leaf": part.hash.hex()}
    told_sums = sums.told()
    yield from ({"type": "usage", **line} for line in told_sums["usage"])
    yield from ({"type": "movement", **line} for line in told_sums["movements"])
    yield {"type": "total", **told_sums["counts"], "closing": sums.closing}


def _parts(month: Month, books: Books, seals: list[LedgerSeal]) -> Iterator[Leaf | LedgerSeal]:
    """Yield the leaves of the month's days, each sealed day whole and with its seal behind it."""
    reached: datetime = month.begins_at
    for seal in seals:
        end = midnight(seal.day + _DAY)
        yield from books.leaves(midnight(seal.first), end)
        yield seal
        reached = end
    if reached < month.ends_at:
        yield from books.leaves(reached, month.ends_at)


def _card(books: Books, leaf: Leaf) -> Iterator[dict[str, Any]]:
    """Yield the card that a record is the first to name."""
    card = None if leaf.card is None else books.cards.of(leaf.card)
    if card is None:
        return
    version = RateCardVersion.objects.select_related("card").get(pk=card.id)
    yield {
        "type": "card",
        "digest": books.cards.digest(card.id),
        "name": version.card.name,
        "effective_from": text_of(version.effective_from),
        **card_told(card),
    }


def card_told(card: CardPrices) -> dict[str, Any]:
    """Return a card as statements and proofs have it."""
    return {
        "id": card.id,
        "request_fee": card.request_fee,
        "batch_bp": card.batch_bp,
        "tiers": [{"min_context": tier.min_context, "rates": dict(tier.rates)} for tier in card.tiers],
    }
