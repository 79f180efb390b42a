"""What a flush knows and what it changes: rows as they were read under the lock, and the sums to be written."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import Enum
from uuid import UUID

from billing.ids import day_of
from billing.rating import CLASSES
from billing.writer.operations import Operation, Release, Renew, Reserve, Settle, TrueUp

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
    amount: int
    is_voided: bool

    def is_live_at(self, moment: datetime) -> bool:
        return self.effective_at <= moment and (self.expires_at is None or self.expires_at > moment)

    @property
    def room(self) -> int:
        """How much may be given back to it."""
        return self.amount - self.remaining


@dataclass(frozen=True, slots=True)
class Taking:
    """One transfer of a charge that was posted before: from a grant, or from the overdraft (`grant` is None)."""

    amount: int
    grant: UUID | None


@dataclass(slots=True)
class RecordRow:
    """The latest revision of a closed request's usage record, and what its charge was taken from, in that order."""

    request: UUID
    wallet: UUID
    revision: int
    charge: int
    is_exact: bool
    reserved_at: datetime
    takings: list[Taking] = field(default_factory=list)


@dataclass(slots=True)
class View:
    """Everything a flush read, as of `now` by the database's clock, after the locks were in."""

    now: datetime
    wallets: dict[UUID, WalletRow]
    holds: dict[UUID, HoldRow]
    grants: dict[UUID, list[GrantRow]]
    charges: dict[UUID, int] = field(default_factory=dict)  # closed requests: the charge of the latest revision
    records: dict[UUID, RecordRow] = field(default_factory=dict)  # of requests to be corrected

    def wallet(self, identifier: UUID) -> WalletRow:
        """Return the wallet, or raise ValueError: an operation on none can never be applied."""
        wallet = self.wallets.get(identifier)
        if wallet is None:
            raise ValueError(f"no wallet {identifier}")
        return wallet


@dataclass(frozen=True, slots=True)
class Demand:
    """Which rows a flush has to lock and read, without repetition, sorted: the order of locks."""

    wallets: list[UUID]
    holds: list[UUID]
    burning: list[UUID]  # wallets of settles: their grants with credit left are read
    restoring: list[UUID]  # wallets of true-ups: all of their grants are read
    closed: list[tuple[UUID, date]]  # requests of true-ups: their records are read

    @classmethod
    def of(cls, operations: Iterable[Operation]) -> Demand:
        wallets: set[UUID] = set()
        holds: set[UUID] = set()
        burning: set[UUID] = set()
        restoring: set[UUID] = set()
        closed: set[UUID] = set()
        for operation in operations:
            if isinstance(operation, Renew):
                holds.update(operation.checkpoints)
                continue
            holds.add(operation.request)
            wallets.add(operation.wallet)
            if isinstance(operation, Settle):
                burning.add(operation.wallet)
            elif isinstance(operation, TrueUp):
                restoring.add(operation.wallet)
                closed.add(operation.request)
        by_value = operator.attrgetter("int")
        return cls(
            wallets=sorted(wallets, key=by_value),
            holds=sorted(holds, key=by_value),
            burning=sorted(burning - restoring, key=by_value),
            restoring=sorted(restoring, key=by_value),
            closed=[(request, day_of(request)) for request in sorted(closed, key=by_value)],
        )


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


@dataclass(frozen=True, slots=True)
class Correction:
    """The next revision of a usage record."""

    operation: TrueUp
    revision: int


class Way(Enum):
    """Between which kinds of ledger account (debit, credit) a part of a true-up's difference goes."""

    TAKEN = ("wallet", "usage")
    RESTORED = ("usage", "wallet")
    LOST = ("usage", "breakage")  # restored to a grant that has ended


@dataclass(frozen=True, slots=True)
class Adjustment:
    """One transfer of a true-up's difference, from or to a grant, or the wallet's overdraft (`grant` is None)."""

    way: Way
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
    grants: dict[UUID, int] = field(default_factory=dict)  # grant → taken (restored when negative)
    closed: list[Closing] = field(default_factory=list)
    burns: list[Burn] = field(default_factory=list)
    corrections: list[Correction] = field(default_factory=list)
    adjustments: list[Adjustment] = field(default_factory=list)
    grant_changes: dict[UUID, datetime] = field(default_factory=dict)  # wallet → when its grants change next

    @property
    def tells(self) -> bool:
        """True when there is something for the consumers of the outbox."""
        return bool(self.closed or self.corrections)

    def move(self, wallet: WalletRow, *, posted: int = 0, held: int = 0) -> None:
        """Change the wallet's sums, here and in the row that later operations of the flush see."""
        wallet.posted += posted
        wallet.held += held
        deltas = self.wallets.setdefault(wallet.id, [0, 0])
        deltas[0] += posted
        deltas[1] += held

    def take(self, grant: GrantRow, amount: int) -> None:
        """Take `amount` from a grant, or give it back when negative, here and in the row that later operations see."""
        grant.remaining -= amount
        self.grants[grant.id] = self.grants.get(grant.id, 0) + amount


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


def counted(request: UUID, classes: Mapping[str, int]) -> Mapping[str, int]:
    """Return the classes after checking that they can stand in a usage record; raise ValueError otherwise."""
    for name, count in classes.items():
        if name not in CLASSES or not 0 <= count < 2**31:
            raise ValueError(f"request {request}: {count!r} tokens of class {name!r}")
    return classes
