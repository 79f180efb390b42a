"""The rows that a flush reads under the lock, and which rows it has to read. Amounts are µcr."""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from uuid import UUID

import msgspec

from base.ids import day_of
from billing.codes import Code
from billing.writer.operations import (
    Adjust,
    ExpireGrants,
    Extend,
    Grant,
    Operation,
    Refund,
    Release,
    Renew,
    Repin,
    Rerate,
    Reserve,
    Settle,
    TrueUp,
    Void,
)


class Count(msgspec.Struct, array_like=True):
    """What counts in one window of a budget, with the budget's terms of now; `decide` keeps it up to date as it walks
    the operations. Amounts are µcr.
    """

    spent: int
    held: int
    limit: int | None  # None limits nothing
    is_hard: bool = True


Windows = dict[str, Count]
"""Windows by their names: the budget's number in its wallet, a point, and the minute of the window's beginning."""

_decode = msgspec.json.Decoder(Windows).decode


def read_windows(text: str) -> Windows:
    """Return the windows that a wallet's row keeps."""
    return _decode(text) if text else {}


class Pool(msgspec.Struct, array_like=True):
    """What is left of the grants that are restricted to the same models, and what the open holds of these models have;
    `decide` keeps it up to date as it walks the operations. Amounts are µcr.
    """

    rest: int
    held: int

    @property
    def free(self) -> int:
        """The µcr that a hold of another model can't take."""
        return max(self.rest - self.held, 0)


Pools = dict[str, Pool]
"""Pools by their models, as grants name them: of one wallet, no model is in two."""

_decode_pools = msgspec.json.Decoder(Pools).decode


def read_pools(text: str) -> Pools:
    """Return the pools that a wallet's row keeps: those of which something is left."""
    return _decode_pools(text) if text else {}


def free_of(pools: str | None) -> int:
    """Return how many µcr of the pools that a wallet's row keeps are free, and so for their models alone."""
    return sum(pool.free for pool in read_pools(pools or "").values())


@functools.lru_cache(maxsize=4096)
def models_in(text: str) -> frozenset[str]:
    """Return the models that a grant is restricted to: none where it pays for all."""
    return frozenset(text.split("\n")) if text else frozenset()


def overlapping(models: str, others: Iterable[str]) -> str | None:
    """Return which of the `others` names some of the models that a grant is restricted to without naming the same."""
    mine = models_in(models)
    return next((one for one in others if one != models and not mine.isdisjoint(models_in(one))), None)


@functools.lru_cache(maxsize=4096)
def names_in(text: str) -> tuple[str, ...]:
    """Return the names of windows in the text of a hold or record."""
    return tuple(text.split())


def parts_of(name: str) -> tuple[int, int]:
    """Return a window's number of the budget and minute of the beginning."""
    number, _, start = name.partition(".")
    return int(number), int(start)


CREDIT = ExpireGrants | Grant | Void | Adjust
"""Operations on a wallet and its grants, by no request: its open holds and scheduled grants are read for each."""

CORRECTION = TrueUp | Refund | Rerate
"""Operations on a closed request: its record, the transfers of its charge and all grants of its wallet are read."""

RANKS = {"rollover": 0, "paid": 2}
"""The places of kinds of grant in the burn order; 1 of all others."""

HELD = 0  # Hold.State
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(slots=True)
class WalletRow:
    """A locked wallet; `decide` keeps `posted`, `held` and `windows` up to date as it walks the operations."""

    id: UUID
    posted: int
    held: int
    overdraft_limit: int
    is_open: bool
    next_grant_change_at: datetime | None
    version: int = 0  # raised by everybody who changes its credit, holds, grants or budgets
    closed_until: datetime | None = None  # nothing is booked before it any more
    kept: str = ""  # its windows of late as the row has them
    kept_pools: str = ""  # its pools likewise
    read: Windows | None = None
    counted_pools: Pools | None = None

    @property
    def available(self) -> int:
        """The µcr that aren't held, whatever models they are for, with the overdraft; negative below its limit."""
        return self.posted - self.held + self.overdraft_limit

    def available_for(self, model: str, besides: HoldRow | None = None) -> int:
        """The µcr that a hold of the model may take, where `besides` gives back what it has.

        What is free of a pool is for its models alone. What its holds have beyond its rest counts against all.
        """
        given_back = 0 if besides is None else besides.amount
        room = self.posted - self.held + self.overdraft_limit + given_back
        if not self.pools:
            return room
        for models, pool in self.pools.items():
            names = models_in(models)
            if model not in names:
                own = given_back if besides is not None and besides.model in names else 0
                room -= max(pool.rest - pool.held + own, 0)
        return room

    @property
    def restricted(self) -> int:
        """The µcr that aren't held and are for some models alone."""
        return sum(pool.free for pool in self.pools.values()) if self.pools else 0

    def freed_for(self, model: str) -> int:
        """The µcr that a hold of the model might take if all open holds gave back what they have."""
        others = sum(pool.rest for models, pool in self.pools.items() if model not in models_in(models))
        return self.posted + self.overdraft_limit - others

    @property
    def pools(self) -> Pools:
        """The pools of its restricted grants."""
        if self.counted_pools is None:
            self.counted_pools = read_pools(self.kept_pools)
        return self.counted_pools

    def pool_of(self, model: str) -> str:
        """Return the pool that a model is in, "" where it is in none."""
        return next((models for models in self.pools if model in models_in(models)), "")

    @property
    def windows(self) -> Windows:
        """The windows of its budgets that were used of late, the latest last, and those that the flush read besides."""
        if self.read is None:
            self.read = read_windows(self.kept)
        return self.read


@dataclass(slots=True)
class HoldRow:
    """An open hold."""

    id: UUID
    wallet: UUID
    state: int
    amount: int
    owner: UUID
    reserved_at: datetime
    windows: str | None = None  # the names of those that it counts in
    model: str = ""


@dataclass(slots=True)
class GrantRow:
    """A grant of a wallet."""

    id: UUID
    wallet: UUID
    remaining: int
    effective_at: datetime
    expires_at: datetime | None
    amount: int
    is_voided: bool
    priority: int = 50
    kind: str = "promotional"
    models: str = ""  # those it is restricted to, a line each; "" for all
    rollover: int | None = None  # µcr that its end may still roll over
    rollover_until: datetime | None = None

    @property
    def order(self) -> tuple[int, datetime, int, datetime, UUID]:
        """The key of the burn order: priority, expiry (never last), what rolled over first and paid last, age, id."""
        return self.priority, self.expires_at or _NEVER, RANKS.get(self.kind, 1), self.effective_at, self.id

    def has_ended_by(self, moment: datetime) -> bool:
        """Return whether its end is at or before `moment`."""
        return self.expires_at is not None and self.expires_at <= moment

    @property
    def used(self) -> int:
        """The µcr taken from it so far: as much can be given back to it."""
        return self.amount - self.remaining


def in_burn_order(grants: Iterable[GrantRow]) -> dict[UUID, list[GrantRow]]:
    """Return the grants of each wallet, those first that are burnt first."""
    found: dict[UUID, list[GrantRow]] = defaultdict(list)
    for grant in grants:
        found[grant.wallet].append(grant)
    for of_one in found.values():
        if len(of_one) > 1:
            of_one.sort(key=operator.attrgetter("order"))
    return found


@dataclass(frozen=True, slots=True)
class ScheduledRow:
    """A grant that a wallet gets at `begins_at`."""

    id: UUID
    wallet: UUID
    amount: int
    begins_at: datetime
    expires_at: datetime | None
    priority: int
    kind: str
    source: str
    reason: str
    models: str = ""
    actor: str = "sluice"
    rollover: int | None = None
    rollover_until: datetime | None = None
    paid_amount: int | None = None
    currency: str = ""
    paid_reference: str = ""


@dataclass(frozen=True, slots=True)
class PostedBurn:
    """One transfer of a charge that an earlier flush posted: from a grant, or from the overdraft (`grant` is None)."""

    amount: int
    grant: UUID | None


@dataclass(slots=True)
class RecordRow:
    """The latest revision of a closed request's usage record, and where its charge stands: `burns` is what it took, in
    order, less what was given back.
    """

    request: UUID
    wallet: UUID
    revision: int
    charge: int
    is_exact: bool
    reserved_at: datetime
    windows: str | None = None
    refunded: int = 0
    rerating: UUID | None = None  # the last run that re-rated it
    model: str = ""
    burns: list[PostedBurn] = field(default_factory=list)
    corrected: int = 0  # transfers of its corrections so far, which are numbered one after the other

    def book(self, amount: int, grant: UUID | None, code: int) -> None:
        """Note its next transfer: `amount` µcr taken, or given back where negative: the last taken first."""
        self.corrected += code != Code.CHARGE
        if amount > 0:
            self.burns.append(PostedBurn(amount, grant))
            return
        left = -amount
        while left and self.burns:
            last = self.burns.pop()
            if last.amount > left:
                self.burns.append(PostedBurn(last.amount - left, last.grant))
            left -= min(left, last.amount)


@dataclass(slots=True)
class View:
    """Everything a flush read, as of `now` by the database's clock, after the locks were in."""

    now: datetime
    wallets: dict[UUID, WalletRow]
    holds: dict[UUID, HoldRow]
    grants: dict[UUID, list[GrantRow]]  # of a wallet, in burn order
    charges: dict[UUID, int] = field(default_factory=dict)  # closed requests: the charge of the latest revision
    records: dict[UUID, RecordRow] = field(default_factory=dict)  # of requests to be corrected
    open_holds: dict[UUID, dict[UUID, HoldRow]] = field(default_factory=dict)  # of wallets whose grants changed
    scheduled: dict[UUID, list[ScheduledRow]] = field(default_factory=dict)  # of the same wallets, the first first
    locked: frozenset[UUID] = frozenset()  # wallets and holds that somebody else has locked

    def wallet(self, identifier: UUID) -> WalletRow:
        """Return the wallet, or raise ValueError: an operation on none can never be applied."""
        wallet = self.wallets.get(identifier)
        if wallet is None:
            raise ValueError(f"no wallet {identifier}")
        return wallet

    @property
    def booked_at(self) -> datetime:
        """When the flush's records and transfers are booked: now, unless the clock went back behind a closed day."""
        return max([self.now, *(one.closed_until for one in self.wallets.values() if one.closed_until is not None)])

    def is_locked(self, operation: Operation) -> bool:
        """Return whether another transaction has locked a row that the operation needs; a Renew skips such holds
        itself.
        """
        if not self.locked or isinstance(operation, Renew):
            return False
        return operation.wallet in self.locked or (
            isinstance(operation, Extend | Repin | Settle | Release) and operation.request in self.locked
        )

    def redate_holds(self) -> None:
        """Let no hold that was read have been reserved after `now`: the clock went back since.

        Otherwise such a hold could not burn what newer ones can, and the wallet would end below its limit.
        """
        for hold in self.holds.values():
            hold.reserved_at = min(hold.reserved_at, self.now)

    def add_open_holds(self, wallets: Iterable[UUID], holds: Iterable[HoldRow]) -> None:
        """Add all open holds of these wallets; those that were read before stay the same objects."""
        self.open_holds = {wallet: {} for wallet in wallets}
        for hold in holds:
            self.open_holds[hold.wallet][hold.id] = self.holds.get(hold.id, hold)

    def add_scheduled(self, grants: Iterable[ScheduledRow]) -> None:
        """Add what these wallets get by time, in its order."""
        for one in grants:
            self.scheduled.setdefault(one.wallet, []).append(one)

    def add_windows(self, rows: Iterable[tuple[UUID, int, int, int | None, bool, int, int]]) -> None:
        """Add windows that their wallets' rows don't keep: wallet, number, start, limit, hard, spent, held."""
        for wallet, number, start, limit, is_hard, spent, held in rows:
            self.wallets[wallet].windows.setdefault(f"{number}.{start}", Count(spent, held, limit, bool(is_hard)))

    def open_hold(self, hold: HoldRow) -> None:
        """Add a hold, made now, that later operations of the flush see."""
        self.holds[hold.id] = hold
        if (others := self.open_holds.get(hold.wallet)) is not None:
            others[hold.id] = hold

    def close_hold(self, hold: HoldRow) -> None:
        """Remove a hold for later operations of the flush."""
        del self.holds[hold.id]
        self.open_holds.get(hold.wallet, {}).pop(hold.id, None)


@dataclass(frozen=True, slots=True)
class Demand:
    """Keys of the rows that a flush locks and reads, each once and sorted by id: the order of locks."""

    wallets: list[UUID]
    holds: list[UUID]
    burning: list[UUID]  # wallets of settles: their grants with credit left are read
    restoring: list[UUID]  # wallets of corrections: all of their grants are read
    closed: list[tuple[UUID, date]]  # requests of corrections: their records are read

    @classmethod
    def of(cls, operations: Iterable[Operation]) -> Demand:
        """Return the rows that the operations need."""
        wallets: set[UUID] = set()
        holds: set[UUID] = set()
        burning: set[UUID] = set()
        restoring: set[UUID] = set()
        closed: set[UUID] = set()
        for operation in operations:
            if isinstance(operation, Renew):
                holds.update(operation.checkpoints)
                continue
            wallets.add(operation.wallet)
            if isinstance(operation, CORRECTION):
                restoring.add(operation.wallet)
                closed.add(operation.request)
            elif not isinstance(operation, CREDIT):
                holds.add(operation.request)
                if isinstance(operation, Settle):
                    burning.add(operation.wallet)
        return cls(
            wallets=_sorted(wallets),
            holds=_sorted(holds),
            burning=_sorted(burning - restoring),
            restoring=_sorted(restoring),
            closed=[(request, day_of(request)) for request in _sorted(closed)],
        )


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Rows that only the answers to a Demand show to be needed; mostly none."""

    due: list[UUID]  # wallets with a grant that may have ended or begun, by CREDIT, or with a pool to be counted anew:
    # their open holds and scheduled grants are read
    unread: list[UUID]  # those of `due` whose grants weren't read yet
    closed: list[tuple[UUID, date]]  # requests to be closed that have no open hold: their charges are read
    absent: list[UUID]  # wallets and holds that were not read: locked by others, or not there
    windows: list[tuple[UUID, int, int]]  # wallet, number, start: of new holds, of holds and records that were read

    @classmethod
    def of(cls, operations: Sequence[Operation], demand: Demand, view: View) -> FollowUp:
        """Return what `view`, read by `demand`, still lacks for the operations."""
        counted = {operation.wallet for operation in operations if isinstance(operation, CREDIT)}
        counted.update(record.wallet for record in view.records.values() if _may_fill_a_used_up_pool(record, view))
        due = [
            wallet.id
            for wallet in view.wallets.values()
            if wallet.id in counted
            or (wallet.next_grant_change_at is not None and wallet.next_grant_change_at <= view.now)
        ]
        read = {*demand.burning, *demand.restoring}
        closed: list[tuple[UUID, date]] = []
        absent = [wallet for wallet in demand.wallets if wallet not in view.wallets]
        for operation in operations:
            if isinstance(operation, Renew):
                absent += [request for request in operation.checkpoints if request not in view.holds]
            elif isinstance(operation, Extend | Repin | Settle | Release):
                hold = view.holds.get(operation.request)
                if hold is not None:
                    continue
                absent.append(operation.request)
                if not isinstance(operation, Extend | Repin):
                    closed.append((operation.request, day_of(operation.request)))
        unread = [wallet for wallet in due if wallet not in read]
        return cls(due, unread, closed, absent, sorted(_windows_away(operations, view)))


def _may_fill_a_used_up_pool(record: RecordRow, view: View) -> bool:
    """Return whether a correction may give back to a restricted grant whose pool is counted no more, as nothing is left
    of it: the holds of its models are to be read.
    """
    wallet = view.wallets.get(record.wallet)
    if wallet is None or not record.burns:
        return False
    paid = {burn.grant for burn in record.burns}
    grants = view.grants.get(record.wallet, ())
    return any(grant.id in paid and grant.models and grant.models not in wallet.pools for grant in grants)


def _windows_away(operations: Iterable[Operation], view: View) -> Iterator[tuple[UUID, int, int]]:
    """Yield the windows in which the operations count and that their wallets' rows don't keep."""
    named: dict[UUID, set[str]] = defaultdict(set)
    for operation in operations:
        if isinstance(operation, Reserve) and (text := operation.budgets.windows(view.now)):
            named[operation.wallet].update(names_in(text))
    counted: list[HoldRow | RecordRow] = [*view.holds.values(), *view.records.values()]
    for held in counted:
        if held.windows:
            named[held.wallet].update(names_in(held.windows))
    for wallet, names in named.items():
        if (row := view.wallets.get(wallet)) is not None:
            yield from [(wallet, *parts_of(name)) for name in names if name not in row.windows]


def _sorted(identifiers: Iterable[UUID]) -> list[UUID]:
    return sorted(identifiers, key=operator.attrgetter("int"))
