"""The rows that a flush reads under the lock, and which rows it has to read. Amounts are µcr."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from uuid import UUID

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


@dataclass(slots=True)
class BudgetRow:
    """A budget (`billing.models.Budget`); `decide` keeps it up to date as it walks the operations. Amounts are µcr."""

    id: UUID
    wallet: UUID
    day_limit: int | None
    month_limit: int | None
    total_limit: int | None
    held: int
    day: date
    day_spent: int
    month: date
    month_spent: int
    total_spent: int

    def turn(self, now: datetime) -> None:
        """Begin the day and the month that `now` is in, where they are later than those that were counted last."""
        today = now.astimezone(UTC).date()
        if today > self.day:
            self.day, self.day_spent = today, 0
        if (month := today.replace(day=1)) > self.month:
            self.month, self.month_spent = month, 0

    def rests(self) -> Iterator[tuple[int, str]]:
        """Yield how much a new hold may take under each limit, and which that is: ``day``, ``month``, ``total``."""
        for window, limit, spent in (
            ("day", self.day_limit, self.day_spent),
            ("month", self.month_limit, self.month_spent),
            ("total", self.total_limit, self.total_spent),
        ):
            if limit is not None:
                yield limit - spent - self.held, window

    def spend(self, charge: int) -> None:
        """Count a charge in all periods."""
        self.day_spent += charge
        self.month_spent += charge
        self.total_spent += charge

    def correct(self, difference: int, begun_at: datetime) -> None:
        """Count a correction of the charge of a request that began at `begun_at`.

        What is given back counts only in a period in which the request began: in another it would make room beyond the
        limit.
        """
        begun = begun_at.astimezone(UTC).date()
        if difference > 0 or begun >= self.day:
            self.day_spent += difference
        if difference > 0 or begun >= self.month:
            self.month_spent += difference
        self.total_spent += difference


CREDIT = ExpireGrants | Grant | Void | Adjust
"""Operations on a wallet and its grants, by no request: its open holds and scheduled grants are read for each."""

CORRECTION = TrueUp | Refund | Rerate
"""Operations on a closed request: its record, the transfers of its charge and all grants of its wallet are read."""

HELD = 0  # Hold.State
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(slots=True)
class WalletRow:
    """A locked wallet; `decide` keeps `posted` and `held` up to date as it walks the operations."""

    id: UUID
    posted: int
    held: int
    overdraft_limit: int
    is_open: bool
    next_grant_change_at: datetime | None
    version: int = 0  # raised by everybody who changes its credit, holds or grants
    closed_until: datetime | None = None  # nothing is booked before it any more

    @property
    def available(self) -> int:
        """The µcr that a new hold may take; negative when the wallet is below its limit."""
        return self.posted - self.held + self.overdraft_limit


@dataclass(slots=True)
class HoldRow:
    """An open hold."""

    id: UUID
    wallet: UUID
    state: int
    amount: int
    owner: UUID
    reserved_at: datetime
    budget: UUID | None = None


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

    @property
    def order(self) -> tuple[int, datetime, bool, datetime, UUID]:
        """The key of the burn order: priority, expiry (never last), anything before paid, age, id."""
        return self.priority, self.expires_at or _NEVER, self.kind == "paid", self.effective_at, self.id

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
    budget: UUID | None = None
    refunded: int = 0
    rerating: UUID | None = None  # the last run that re-rated it
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
    budgets: dict[UUID, BudgetRow] = field(default_factory=dict)  # in which these operations count

    def wallet(self, identifier: UUID) -> WalletRow:
        """Return the wallet, or raise ValueError: an operation on none can never be applied."""
        wallet = self.wallets.get(identifier)
        if wallet is None:
            raise ValueError(f"no wallet {identifier}")
        return wallet

    def budget(self, identifier: UUID | None, wallet: UUID) -> BudgetRow | None:
        """Return the budget, its periods up to date; None where there is none (any more).

        Raise ValueError for one of another wallet, which isn't locked.
        """
        budget = None if identifier is None else self.budgets.get(identifier)
        if budget is None:
            return None
        if budget.wallet != wallet:
            raise ValueError(f"budget {identifier}: it is of wallet {budget.wallet}, not of {wallet}")
        budget.turn(self.now)
        return budget

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

    def open_hold(self, hold: HoldRow) -> None:
        """Add a hold, made now, that later operations of the flush see; it keeps nothing of what has ended."""
        self.holds[hold.id] = hold

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

    due: list[UUID]  # wallets with a grant that may have ended or begun, or by CREDIT: open holds, scheduled are read
    unread: list[UUID]  # those of `due` whose grants weren't read yet
    closed: list[tuple[UUID, date]]  # requests to be closed that have no open hold: their charges are read
    absent: list[UUID]  # wallets and holds that were not read: locked by others, or not there
    budgets: list[UUID]  # of new holds, and of the holds and the records that were read

    @classmethod
    def of(cls, operations: Sequence[Operation], demand: Demand, view: View) -> FollowUp:
        """Return what `view`, read by `demand`, still lacks for the operations."""
        by_credit = {operation.wallet for operation in operations if isinstance(operation, CREDIT)}
        due = [
            wallet.id
            for wallet in view.wallets.values()
            if wallet.id in by_credit
            or (wallet.next_grant_change_at is not None and wallet.next_grant_change_at <= view.now)
        ]
        read = {*demand.burning, *demand.restoring}
        closed: list[tuple[UUID, date]] = []
        absent = [wallet for wallet in demand.wallets if wallet not in view.wallets]
        budgets = {record.budget for record in view.records.values() if record.budget is not None}
        for operation in operations:
            if isinstance(operation, Reserve):
                budgets.update(() if operation.budget is None else (operation.budget,))
            elif isinstance(operation, Renew):
                absent += [request for request in operation.checkpoints if request not in view.holds]
            elif isinstance(operation, Extend | Repin | Settle | Release):
                hold = view.holds.get(operation.request)
                if hold is not None:
                    budgets.update(() if hold.budget is None else (hold.budget,))
                    continue
                absent.append(operation.request)
                if not isinstance(operation, Extend | Repin):
                    closed.append((operation.request, day_of(operation.request)))
        unread = [wallet for wallet in due if wallet not in read]
        return cls(due, unread, closed, absent, _sorted(budgets))


def _sorted(identifiers: Iterable[UUID]) -> list[UUID]:
    return sorted(identifiers, key=operator.attrgetter("int"))
