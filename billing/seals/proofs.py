"""Proofs that a row is in a sealed day, and checks of the seals against the rows."""

from __future__ import annotations

import bisect
import hashlib
import random
from collections.abc import Iterator
from datetime import UTC, timedelta
from typing import Any
from uuid import UUID

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from billing.models import LedgerSeal, SigningKey, UsageRecord
from billing.seals import tree
from billing.seals.archived import ArchiveMissingError, edge
from billing.seals.keys import public_keys, text_of, told
from billing.seals.leaves import RECORD, Books
from billing.seals.sealing import NOTHING, block_of, midnight, signed_text, summed

_DAY = timedelta(days=1)
SAMPLED_BLOCKS = 20
SAMPLED_SEALS = 200


def seal_told(seal: LedgerSeal) -> dict[str, Any]:
    """Return a seal as statements and proofs have it, without its blocks."""
    return {
        "number": seal.number,
        "first": seal.first.isoformat(),
        "day": seal.day.isoformat(),
        "size": seal.size,
        "root": seal.root,
        "balance": seal.balance,
        "previous": seal.previous,
        "key": seal.key,
        "sealed_at": text_of(seal.sealed_at),
        "signature": seal.signature,
    }


def proof_of(record: UsageRecord) -> dict[str, Any] | None:
    """Return the proof that a record is in a sealed day: the row as a statement has it, its path, the seal and its key.

    None while its day isn't sealed. It reads one block of the day's rows.
    """
    day = record.settled_at.astimezone(UTC).date()
    seal = LedgerSeal.objects.filter(tenant=record.tenant, day=day).first()
    if seal is None:
        return None
    place = (text_of(record.settled_at), RECORD, record.pk.int)
    starts = [(moment, kind, int(number, 16)) for _, moment, kind, number, _ in seal.blocks]
    books = Books(record.tenant)
    for block in range(bisect.bisect_right(starts, place) - 1, -1, -1):
        leaves = block_of(books, seal, block)
        index = next(
            (at for at, leaf in enumerate(leaves) if leaf.kind == RECORD and leaf.place[2] == record.pk.int), None
        )
        if index is not None:
            below = tree.path([leaf.hash for leaf in leaves], index)
            above = tree.path([bytes.fromhex(one[0]) for one in seal.blocks], block)
            path = [{"side": side, "hash": beside.hex()} for side, beside in (*below, *above)]
            key = told(SigningKey.objects.get(pk=seal.key))
            return {"leaf": leaves[index].told(), "path": path, "seal": seal_told(seal), "key": key}
    return None


def contradictions(*, whole: bool) -> Iterator[tuple[str, str]]:
    """Yield (seal, what is wrong) of the seals that don't fit the rows, their signature or the seal before.

    All seals if it is to be `whole`; else the signatures and the chain of some of them, and a
    few blocks of their rows.
    """
    keys = {key.number: Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.public_key)) for key in public_keys()}
    for seal in _sealed() if whole else _some():
        yield from ((str(seal.pk), fault) for fault in _of_itself(seal, keys))
        if whole:
            try:
                made = summed(Books(seal.tenant).leaves(midnight(seal.first), midnight(seal.day + _DAY)))
            except ArchiveMissingError as error:
                yield str(seal.pk), f"{seal.day} of tenant {seal.tenant}: {error}"
                continue
            if (made.root, made.size) != (seal.root, seal.size):
                yield str(seal.pk), f"{seal.day} of tenant {seal.tenant}: its rows are not those that were sealed"
    if not whole:
        for seal, block in _blocks():
            leaves = block_of(Books(seal.tenant), seal, block)
            if tree.root([leaf.hash for leaf in leaves]).hex() != seal.blocks[block][0]:
                where = f"{leaves[0].fields[2]}" if leaves else "no rows"
                yield str(seal.pk), f"{seal.day} of tenant {seal.tenant}: rows from {where} on are not those sealed"


def _of_itself(seal: LedgerSeal, keys: dict[int, Ed25519PublicKey]) -> Iterator[str]:
    text = signed_text(seal)
    if hashlib.sha256(text).hexdigest() != seal.digest:
        yield f"{seal.day} of tenant {seal.tenant}: its digest is not that of its text"
    try:
        keys[seal.key].verify(bytes.fromhex(seal.signature), text)
    except (KeyError, InvalidSignature):
        yield f"{seal.day} of tenant {seal.tenant}: its signature is not that of key {seal.key}"
    if tree.root([bytes.fromhex(one[0]) for one in seal.blocks]).hex() != seal.root:
        yield f"{seal.day} of tenant {seal.tenant}: its blocks don't make its root"
    before = LedgerSeal.objects.filter(tenant=seal.tenant, number=seal.number - 1).defer("blocks").first()
    if seal.previous != (before.digest if before else NOTHING) or (before is None and seal.number > 1):
        yield f"{seal.day} of tenant {seal.tenant}: it is not chained to seal {seal.number - 1}"


def _sealed() -> Iterator[LedgerSeal]:
    yield from LedgerSeal.objects.order_by("tenant", "number").iterator(chunk_size=100)


def _some() -> list[LedgerSeal]:
    """Return the first seal, the last one, and some between, which are found by random ids: each is next to one."""
    by_id = LedgerSeal.objects.order_by("pk")
    first, last = by_id.first(), by_id.last()
    if first is None or last is None:
        return []
    found = {first.pk: first, last.pk: last}
    for drawn in range(SAMPLED_SEALS):
        place = UUID(int=random.randint(first.pk.int, last.pk.int))
        seal = by_id.filter(pk__gte=place).first() if drawn % 2 else by_id.filter(pk__lte=place).last()
        if seal is not None:
            found[seal.pk] = seal
    return list(found.values())


def _blocks() -> Iterator[tuple[LedgerSeal, int]]:
    until = edge()  # archived ones are known by their files' checksums, which a check of all rows computes
    some = [seal for seal in _some() if seal.size and (until is None or midnight(seal.day) >= until)]
    for seal in random.sample(some, min(SAMPLED_BLOCKS, len(some))):
        yield seal, random.randrange(len(seal.blocks))
