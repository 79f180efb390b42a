"""Sealing: a tenant's days are closed by the database's clock, and each that has rows is sealed.

A day is closed under the locks of all wallets of the tenant: what was booked before has committed then, and whoever
books later sees `closed_until` under the same lock and books no earlier, even if the clock has gone back. So rows are
read without any lock, however many they are, and none can come to a day that was sealed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F, Max, Q, QuerySet

from base import clock
from base.heartbeat import touch_heartbeat
from billing.models import LedgerSeal, Wallet
from billing.seals import archived, tree
from billing.seals.keys import latest, private_key, text_of
from billing.seals.leaves import Books, Leaf, first_booked

SEAL_TEXT = "sluice-seal-1"
NOTHING = "0" * 64
"""What the first seal repeats of the one before it."""
BEGINNING = datetime.min.replace(tzinfo=UTC)
MOST_DAYS = 31
"""Days with rows that are sealed in one go: a tenant with years behind it delays no other for long."""
_DAY = timedelta(days=1)


def midnight(day: date) -> datetime:
    """Return when a UTC day begins."""
    return datetime.combine(day, time(), UTC)


def signed_text(seal: LedgerSeal) -> bytes:
    """Return the text that a seal's signature is of."""
    lines = (
        SEAL_TEXT, seal.tenant, seal.number, seal.first, seal.day, seal.size, seal.root, seal.balance, seal.previous,
        seal.key, text_of(seal.sealed_at),
    )  # fmt: skip
    return "\n".join(map(str, lines)).encode()


@transaction.atomic
def close(tenant: UUID) -> datetime | None:
    """Close the tenant's days before today, and return the moment before which nothing is booked any more.

    None for a tenant without a wallet.
    """
    mine = Wallet.objects.filter(tenant=tenant)
    for wallet in mine.order_by("pk").values_list("pk", flat=True):
        mine.filter(pk=wallet).update(version=F("version") + 1)  # the lock under which all credit moves
    until = midnight(clock.now().date())
    mine.filter(Q(closed_until=None) | Q(closed_until__lt=until)).update(closed_until=until)
    closed: datetime | None = mine.aggregate(until=Max("closed_until"))["until"]
    return closed


def seal_tenant(tenant: UUID, most: int = MOST_DAYS) -> datetime | None:
    """Close the tenant's days and seal those that have rows, at most so many; return up to when all is sealed."""
    until = close(tenant)
    if until is None:
        return None
    books, last = Books(tenant), last_seal(tenant)
    for _ in range(most):
        first, _ = first_booked(tenant, midnight(last.day + _DAY) if last else BEGINNING)
        if first is None or first >= until:
            return until
        seal_day(books, first.astimezone(UTC).date(), last)
        last = last_seal(tenant)
    return midnight(last.day + _DAY) if last else until


def last_seal(tenant: UUID) -> LedgerSeal | None:
    """Return the tenant's latest seal, without its blocks."""
    return LedgerSeal.objects.filter(tenant=tenant).order_by("-number").defer("blocks").first()


def seal_through(tenant: UUID, day: date) -> LedgerSeal | None:
    """Seal a closed day without rows too, as the end of a statement needs; return the seal that covers it.

    None for a tenant for which nothing was ever booked.
    """
    last = last_seal(tenant)
    if last is not None and last.day < day:
        seal_day(Books(tenant), day, last)
    return LedgerSeal.objects.filter(tenant=tenant, day__gte=day).order_by("number").defer("blocks").first()


def seal_day(books: Books, day: date, last: LedgerSeal | None) -> None:
    """Seal a closed day, and those without rows since the tenant's `last` seal, unless another process has."""
    leaves = books.leaves(midnight(day), midnight(day + _DAY))
    made = summed(leaves)
    seal = LedgerSeal(
        tenant=books.tenant,
        number=last.number + 1 if last else 1,
        first=last.day + _DAY if last else day,
        day=day,
        size=made.size,
        root=made.root,
        balance=(last.balance if last else 0) + made.moved,
        previous=last.digest if last else NOTHING,
        blocks=made.blocks,
    )
    try:
        with transaction.atomic():
            key = latest()
            seal.key, seal.sealed_at = key.number, clock.now()
            text = signed_text(seal)
            seal.signature, seal.digest = private_key(key).sign(text).hex(), hashlib.sha256(text).hexdigest()
            seal.save(force_insert=True)
    except IntegrityError:  # another process sealed it meanwhile
        if not LedgerSeal.objects.filter(tenant=books.tenant, number=seal.number).exists():
            raise


class Summed:
    """The tree over some leaves: its root, what they moved, and of each block its node and where it begins.

    A block begins at the leaf `skip` places behind the first that has its place: [node, moment, kind, id, skip].
    """

    def __init__(self) -> None:
        self.size = self.moved = 0
        self.blocks: list[list[Any]] = []
        self.nodes: list[bytes] = []

    @property
    def root(self) -> str:
        """The root in hex."""
        return tree.root(self.nodes).hex()


def summed(leaves: Iterator[Leaf]) -> Summed:
    """Return the tree over the leaves."""
    made, place, skip = Summed(), None, 0
    block: list[bytes] = []
    for leaf in leaves:
        skip = skip + 1 if leaf.place == place else 0
        place = leaf.place
        if not block:
            moment, kind, number = place
            made.blocks.append(["", text_of(moment), kind, f"{number:x}", skip])
        block.append(leaf.hash)
        made.moved += leaf.moved
        if len(block) == tree.BLOCK:
            _end_block(made, block)
            block = []
            if made.size % 8192 == 0:
                touch_heartbeat()
    if block:
        _end_block(made, block)
    return made


def _end_block(made: Summed, block: list[bytes]) -> None:
    node = tree.root(block)
    made.nodes.append(node)
    made.blocks[-1][0] = node.hex()
    made.size += len(block)


def block_of(books: Books, seal: LedgerSeal, number: int) -> list[Leaf]:
    """Return the leaves of one block of a seal, as they are now, or as the archive has them."""
    if (rows := archived.block_of(seal, number)) is not None:
        return [books.leaf_of(row, None) for row in rows]
    begins = [_place(one) for one in seal.blocks[number : number + 2]]
    (place, skip), until = begins[0], midnight(seal.day + _DAY)
    if number + 1 < len(seal.blocks):
        until = min(until, begins[1][0][0] + timedelta(microseconds=1))
    found: list[Leaf] = []
    # SQLite's clock writes times with fewer digits: such a row is found from a millisecond before on.
    for leaf in books.leaves(place[0] - timedelta(milliseconds=1), until, place):
        if skip:
            skip -= 1
            continue
        found.append(leaf)
        if len(found) == tree.BLOCK:
            break
    return found


def _place(block: list[Any]) -> tuple[tuple[datetime, int, int], int]:
    _, moment, kind, number, skip = block
    return (datetime.fromisoformat(moment), kind, int(number, 16)), skip


def due(now: datetime) -> QuerySet[Wallet]:
    """Return the wallets of tenants with a day that is over and not sealed."""
    return Wallet.objects.filter(Q(sealed_until=None) | Q(sealed_until__lt=midnight(now.date())))


def note_sealed(tenant: UUID, until: datetime) -> None:
    """Note up to when all of the tenant's days are sealed."""
    mine = Wallet.objects.filter(tenant=tenant)
    mine.filter(Q(sealed_until=None) | Q(sealed_until__lt=until)).update(sealed_until=until)
