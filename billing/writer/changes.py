"""The writes of a flush: new rows one by one, and one sum of changes for each updated row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import msgspec

from billing.codes import Code
from billing.rating import CLASSES
from billing.writer.operations import Refund, Release, Repin, Rerate, Reserve, Settle, TrueUp
from billing.writer.view import GrantRow, WalletRow, parts_of

MOST_KEPT = 32
"""Windows that a wallet's row keeps, so that counting in them takes no row of their own; all others have one."""

_encode = msgspec.json.Encoder().encode


class Closing(msgspec.Struct, frozen=True):
    """A hold to be closed: the usage record that takes its place, with its charge in µcr."""

    operation: Settle | Release
    charge: int
    exact: bool


class Burn(msgspec.Struct, frozen=True):
    """One transfer of a charge: `amount` µcr from a grant, or from the wallet's overdraft (`grant` is None)."""

    wallet: UUID
    request: UUID
    order: int
    amount: int
    grant: UUID | None


class Transfer(msgspec.Struct, frozen=True):
    """One transfer other than a charge's, between two kinds of ledger account: "wallet" is the wallet's own.

    `grant` is the grant that it draws from or fills; None: the wallet's overdraft.
    """

    code: Code
    wallet: UUID
    debit: str
    credit: str
    amount: int
    grant: UUID | None
    effective_at: datetime
    order: int = 0
    request: UUID | None = None
    key: str | None = None
    actor: str = ""
    reason: str = ""


class NewGrant(msgspec.Struct, frozen=True):
    """A grant to be made, with the terms that only the database keeps; it is inserted with nothing taken from it."""

    row: GrantRow
    source: str
    paid_amount: int | None = None
    currency: str = ""
    paid_reference: str = ""


@dataclass(frozen=True, slots=True)
class Correction:
    """The next revision of a usage record: what is charged by it, and how much of the price is refunded."""

    operation: TrueUp | Refund | Rerate
    revision: int
    charge: int
    refunded: int


@dataclass(slots=True)
class Changes:
    """Everything that a flush writes, as of `now`; its records and transfers are booked at `booked_at`."""

    now: datetime
    booked_at: datetime
    reserved: list[tuple[Reserve, int, str | None]] = field(default_factory=list)  # its amount and windows
    extended: dict[UUID, int] = field(default_factory=dict)  # hold → its new amount
    repinned: dict[UUID, Repin] = field(default_factory=dict)  # hold → the last of this flush
    renewed: dict[UUID, Mapping[str, int]] = field(default_factory=dict)
    wallets: dict[UUID, list[int]] = field(default_factory=dict)  # wallet → [Δposted, Δheld]
    grants: dict[UUID, int] = field(default_factory=dict)  # grant → µcr taken (given back when negative)
    given: list[NewGrant] = field(default_factory=list)
    begun: list[UUID] = field(default_factory=list)  # scheduled grants that are among them
    closed: list[Closing] = field(default_factory=list)
    burns: list[Burn] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    expired: dict[UUID, tuple[GrantRow, int]] = field(default_factory=dict)  # grant → µcr of it that went to breakage
    rolled: dict[UUID, int] = field(default_factory=dict)  # grant → µcr that it may still roll over
    voided: dict[UUID, GrantRow] = field(default_factory=dict)  # that end at another moment than before
    corrections: list[Correction] = field(default_factory=list)
    grant_changes: dict[UUID, datetime | None] = field(default_factory=dict)  # wallet → when its grants change next
    counted: dict[UUID, set[str]] = field(default_factory=dict)  # wallet → windows in which something was counted
    windows: dict[UUID, str] = field(default_factory=dict)  # wallet → the windows that its row keeps from now on
    pooled: set[UUID] = field(default_factory=set)  # wallets of whose pools something changed
    pools: dict[UUID, str] = field(default_factory=dict)  # wallet → the pools that its row keeps from now on
    put_away: list[tuple[UUID, int, int, int, int]] = field(default_factory=list)  # wallet, number, start, spent, held

    @property
    def has_transfers(self) -> bool:
        """True when transfers other than charges' have to be written."""
        return bool(self.transfers or self.expired)

    @property
    def has_usage_events(self) -> bool:
        """True when the flush has to write an outbox event of topic ``usage``."""
        return bool(self.closed or self.corrections)

    def move(self, wallet: WalletRow, *, posted: int = 0, held: int = 0, model: str = "") -> None:
        """Change the wallet's sums by so many µcr, here and in the row that later operations of the flush see; what is
        `held` is so for a request of the model.
        """
        wallet.posted += posted
        wallet.held += held
        if wallet.pools and (pool := wallet.pool_of(model)):
            wallet.pools[pool].held += held
            self.pooled.add(wallet.id)
        deltas = self.wallets.setdefault(wallet.id, [0, 0])
        deltas[0] += posted
        deltas[1] += held

    def count(self, wallet: WalletRow, names: Iterable[str], *, held: int = 0, spent: int = 0) -> None:
        """Change what counts in these windows of the wallet's budgets, here and for later operations of the flush."""
        found = wallet.windows
        for name in names:
            if (count := found.get(name)) is not None:
                count.held += held
                count.spent += spent
        self.counted.setdefault(wallet.id, set()).update(names)
        self.wallets.setdefault(wallet.id, [0, 0])

    def keep_windows(self, wallet: WalletRow) -> None:
        """Note what the wallet's row keeps of its windows, and put those away that were used longest ago."""
        found, touched = wallet.windows, self.counted[wallet.id] & wallet.windows.keys()
        for name in touched:
            found[name] = found.pop(name)  # the last: those used longest ago are the first
        most = max(MOST_KEPT, len(touched))
        if len(found) > most:
            for name in [name for name in found if name not in touched][: len(found) - most // 2]:
                count = found.pop(name)
                self.put_away.append((wallet.id, *parts_of(name), count.spent, count.held))
        self.windows[wallet.id] = wallet.kept = _encode(found).decode()

    def keep_pools(self, wallet: WalletRow) -> None:
        """Note what the wallet's row keeps of its pools: those of which something is left."""
        left = {models: pool for models, pool in wallet.pools.items() if pool.rest}
        wallet.counted_pools = left
        self.pools[wallet.id] = wallet.kept_pools = _encode(left).decode() if left else ""
        self.wallets.setdefault(wallet.id, [0, 0])

    def take(self, grant: GrantRow, amount: int, wallet: WalletRow) -> None:
        """Take `amount` µcr from a grant of the wallet (give it back when negative), here and in the rows that later
        operations see.
        """
        grant.remaining -= amount
        self.grants[grant.id] = self.grants.get(grant.id, 0) + amount
        if grant.models and (pool := wallet.pools.get(grant.models)) is not None:
            pool.rest -= amount
            self.pooled.add(wallet.id)

    def expire(self, grant: GrantRow, amount: int, wallet: WalletRow) -> None:
        """Move `amount` µcr of a grant that has ended from the wallet to breakage."""
        self.take(grant, amount, wallet)
        _, before = self.expired.get(grant.id, (grant, 0))
        self.expired[grant.id] = grant, before + amount
        self.move(wallet, posted=-amount)

    def roll_over(self, grant: GrantRow, amount: int, wallet: WalletRow) -> None:
        """Take `amount` µcr of a grant that has ended out of the wallet, to come in as another grant."""
        self.take(grant, amount, wallet)
        self.move(wallet, posted=-amount)
        grant.rollover = self.rolled[grant.id] = (grant.rollover or 0) - amount

    def note_next_change(self, wallet: WalletRow, moment: datetime | None) -> None:
        """Note when the wallet's next grant ends or begins (None: none will), unless its row says so already."""
        if wallet.next_grant_change_at != moment:
            wallet.next_grant_change_at = self.grant_changes[wallet.id] = moment


def counted(request: UUID, classes: Mapping[str, int]) -> Mapping[str, int]:
    """Return the classes after checking that they can stand in a usage record; raise ValueError otherwise."""
    for name, count in classes.items():
        if name not in CLASSES or not 0 <= count < 2**31:
            raise ValueError(f"request {request}: {count!r} tokens of class {name!r}")
    return classes
