"""What a flush knows and what it changes: rows as they were read under the lock, and the sums to be written."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from billing.writer.operations import Extend, Operation, Release, Renew, Reserve, Settle

LEASE_SECONDS = 30
HELD, ORPHANED = 0, 1  # Hold.State


@dataclass(slots=True)
class WalletRow:
    """A locked wallet; `decide` moves `posted` and `held` along as it walks the operations."""

    id: UUID
    posted: int
    held: int
    overdraft_limit: int
    is_open: bool
    next_grant_change_at: datetime | None

    @property
    def available(self) -> int:
        return self.posted - self.held + self.overdraft_limit


@dataclass(slots=True)
class HoldRow:
    """A locked open hold."""

    id: UUID
    wallet: UUID
    state: int
    amount: int
    owner: UUID
    reserved_at: datetime
    is_new: bool = False


@dataclass(slots=True)
class GrantRow:
    """A grant with credit left; a wallet's grants come in burn-down order."""

    id: UUID
    wallet: UUID
    remaining: int
    effective_at: datetime
    expires_at: datetime | None

    def is_live_at(self, moment: datetime) -> bool:
        return self.effective_at <= moment and (self.expires_at is None or self.expires_at > moment)


@dataclass(slots=True)
class View:
    """Everything a flush read, as of `now` by the database's clock, after the locks were in."""

    now: datetime
    wallets: dict[UUID, WalletRow]
    holds: dict[UUID, HoldRow]
    grants: dict[UUID, list[GrantRow]]
    charges: dict[UUID, int] = field(default_factory=dict)  # closed requests: the charge of the latest revision


@dataclass(frozen=True, slots=True)
class Demand:
    """Which rows a flush has to lock and read, without repetition, sorted: the order of locks."""

    wallets: list[UUID]
    holds: list[UUID]
    burning: list[UUID]  # wallets of settles: only their grants are read

    @classmethod
    def of(cls, operations: Iterable[Operation]) -> Demand:
        wallets: set[UUID] = set()
        holds: set[UUID] = set()
        burning: set[UUID] = set()
        for operation in operations:
            if isinstance(operation, Renew):
                holds.update(operation.checkpoints)
                continue
            holds.add(operation.request)
            wallets.add(operation.wallet)
            if isinstance(operation, Settle):
                burning.add(operation.wallet)
        by_value = operator.attrgetter("int")
        return cls(*(sorted(found, key=by_value) for found in (wallets, holds, burning)))


@dataclass(frozen=True, slots=True)
class Closing:
    """A hold to be closed: the usage record that takes its place."""

    operation: Settle | Release
    charge: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Burn:
    """One transfer of a charge: `amount` from a grant, or from the wallet's overdraft (`grant` is None)."""

    wallet: UUID
    request: UUID
    order: int
    amount: int
    grant: UUID | None


@dataclass(slots=True)
class Changes:
    """What a flush writes: inserts one by one, sums by row."""

    now: datetime
    reserved: list[tuple[Reserve, int]] = field(default_factory=list)
    amounts: dict[UUID, int] = field(default_factory=dict)  # extended holds
    renewed: dict[UUID, Mapping[str, int]] = field(default_factory=dict)
    wallets: dict[UUID, list[int]] = field(default_factory=dict)  # wallet → [Δposted, Δheld]
    grants: dict[UUID, int] = field(default_factory=dict)  # grant → taken
    closed: list[Closing] = field(default_factory=list)
    burns: list[Burn] = field(default_factory=list)

    def move(self, wallet: WalletRow, *, posted: int = 0, held: int = 0) -> None:
        """Change the wallet's sums, here and in the row that later operations of the flush see."""
        wallet.posted += posted
        wallet.held += held
        deltas = self.wallets.setdefault(wallet.id, [0, 0])
        deltas[0] += posted
        deltas[1] += held

    @property
    def is_empty(self) -> bool:
        return not (self.reserved or self.amounts or self.renewed or self.wallets or self.closed)


def groups_of_distinct(operations: Sequence[Operation], limit: int) -> Iterable[list[Operation]]:
    """Split into runs, in order, in which no request comes twice and none is longer than `limit`."""
    group: list[Operation] = []
    seen: set[UUID] = set()
    for operation in operations:
        identifiers = requests_of(operation)
        if len(group) == limit or not seen.isdisjoint(identifiers):
            yield group
            group, seen = [], set()
        group.append(operation)
        seen.update(identifiers)
    if group:
        yield group


def requests_of(operation: Operation) -> Iterable[UUID]:
    """The requests that an operation touches."""
    if isinstance(operation, Renew):
        return operation.checkpoints.keys()
    return (operation.request,)


__all__ = [
    "Burn",
    "Changes",
    "Closing",
    "Demand",
    "Extend",
    "GrantRow",
    "HoldRow",
    "View",
    "WalletRow",
    "groups_of_distinct",
    "requests_of",
]
