"""Wallets as this process's flushes left them: a flush of wallets that nobody else changed since need not read them.

On SQLite the file says under the lock whether another connection has written to it. On PostgreSQL a flush that is
decided from this is written in one round trip, behind a statement (`move_known_wallets`) that locks the wallets and
fails unless each is still as it was left, and the database's clock where it was taken to be. Then nothing is written,
and the flush reads and decides anew. Every writer of credit raises its wallet's `version`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from billing.writer.changes import Changes
from billing.writer.operations import Operation, Release, Reserve, Settle
from billing.writer.view import GrantRow, HoldRow, View, WalletRow, names_in

MOST_WALLETS = 4096


@dataclass(slots=True)
class _Known:
    """A wallet as the last flush left it, with the open holds that flushes saw since nobody else changed it.

    `row` is None after a flush that took it to be as it isn't; `grants` are None until a charge read them.
    """

    row: WalletRow | None
    holds: dict[UUID, HoldRow] = field(default_factory=dict)
    grants: list[GrantRow] | None = None
    is_ours: bool = True  # nobody else changed it between this process's last two flushes of it


def _windows(operation: Operation, hold: HoldRow | None, now: datetime) -> tuple[str, ...]:
    """Return the names of the windows of budgets in which it counts."""
    if hold is not None:
        return names_in(hold.windows) if hold.windows else ()
    return names_in(operation.budgets.windows(now)) if isinstance(operation, Reserve) else ()


class KnownWallets:
    """The wallets of the last flushes, those used longest ago forgotten first."""

    def __init__(self, most: int = MOST_WALLETS) -> None:
        self._most = most
        self._wallets: OrderedDict[UUID, _Known] = OrderedDict()

    def __len__(self) -> int:
        return len(self._wallets)

    def view(self, operations: Sequence[Operation], now: datetime) -> View | None:
        """Return what the operations need, as it was left; None where that isn't known or must be read all the same.

        `decide` changes it: afterwards the flush is noted by `committed`, or its wallets are forgotten.
        """
        view = View(now, {}, {}, {})
        for operation in operations:
            if not isinstance(operation, Reserve | Settle | Release):
                return None
            known = self._wallets.get(operation.wallet)
            if known is None or known.row is None or not known.is_ours or not known.row.is_open:
                return None
            change_at = known.row.next_grant_change_at
            hold = known.holds.get(operation.request)
            is_expected = (hold is None) is isinstance(operation, Reserve)
            if not is_expected or (change_at is not None and change_at <= now):
                return None
            if (names := _windows(operation, hold, now)) and not known.row.windows.keys() >= set(names):
                return None
            if isinstance(operation, Settle):
                if known.grants is None:
                    return None
                view.grants[operation.wallet] = known.grants
            view.wallets[operation.wallet] = known.row
            if hold is not None:
                view.holds[hold.id] = hold
        return view

    def committed(self, view: View, changes: Changes, burning: Container[UUID]) -> None:
        """Note what a flush left that has committed; `burning` are the wallets whose grants with credit it had."""
        for row in view.wallets.values():
            known = self._noted(row)
            if row.id in view.open_holds:
                known.grants = None  # some have ended
            elif row.id in burning:
                known.grants = [grant for grant in view.grants.get(row.id, ()) if grant.remaining]
            elif row.id in view.grants:
                known.grants = None  # a correction changed them
        for hold in view.holds.values():
            if hold.wallet in view.wallets:
                self._wallets[hold.wallet].holds[hold.id] = hold
        for closing in changes.closed:
            self._wallets[closing.operation.wallet].holds.pop(closing.operation.request, None)
        for identifier in changes.wallets:
            view.wallets[identifier].version += 1
        while len(self._wallets) > self._most:
            self._wallets.popitem(last=False)

    def _noted(self, row: WalletRow) -> _Known:
        """Return what is known of a wallet that a flush found as `row`, `row` noted."""
        known = self._wallets.get(row.id)
        if known is None:
            known = self._wallets[row.id] = _Known(row)
        elif known.row is None or known.row.version != row.version:
            known = self._wallets[row.id] = _Known(row, is_ours=False)
        else:
            known.row, known.is_ours = row, True
        self._wallets.move_to_end(row.id)
        return known

    def forget(self, wallets: Iterable[UUID]) -> None:
        """Forget wallets that somebody else seems to change: they are read until nobody does."""
        for identifier in wallets:
            self._wallets[identifier] = _Known(None)
