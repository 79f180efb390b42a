"""Grants whose time has come or ended: those that begin are given, and of those that have ended it is told how much
expires, and how much is kept for open holds made before their end.

Why no wallet falls below its limit by time alone: a hold may burn every grant that had not ended when it was made
(`burnable`), so an earlier hold may burn whatever a later one may. As long as the holds made at or after any moment
have no more than the grants that ended later, every hold can be paid. A reserve keeps that, since it stands on what is
free once each ended grant has lost all that no hold can need; a charge keeps it, since it burns ended grants before
live ones; and expiry keeps it, since what it leaves covers as much of the holds as can be covered.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from billing.writer.changes import Changes
from billing.writer.view import GrantRow, HoldRow, View, WalletRow


def roll(wallet: WalletRow, view: View, changes: Changes) -> int:
    """Give the wallet its scheduled grants that begin by now, move to breakage what no open hold can need of its ended
    ones, and return the latter sum in µcr.
    """
    if wallet.id not in view.open_holds:
        return 0
    grants = view.grants.setdefault(wallet.id, [])
    waiting = view.scheduled.get(wallet.id, [])
    while waiting and waiting[0].begins_at <= view.now:
        overdrawn = sum(grant.remaining for grant in grants) - wallet.posted
        bisect.insort(grants, changes.begin(waiting.pop(0), wallet, overdrawn), key=operator.attrgetter("order"))
    ended = [grant for grant in grants if grant.remaining and grant.has_ended_by(view.now)]
    holds = [(hold.reserved_at, hold.amount) for hold in view.open_holds[wallet.id].values()]
    kept = kept_for_holds([(grant.id, grant.expires_at, grant.remaining) for grant in ended], holds)
    lost = 0
    for grant in ended:
        part = grant.remaining - kept[grant.id]
        if part:
            changes.expire(grant, part, wallet)
            lost += part
    return lost


def note_next_changes(view: View, changes: Changes) -> None:
    """Note when the next grant ends or begins of each wallet where one did: in the past while holds keep some of it."""
    for identifier in view.open_holds:
        ends = [grant.expires_at for grant in view.grants.get(identifier, ()) if grant.remaining and grant.expires_at]
        begins = [one.begins_at for one in view.scheduled.get(identifier, ())]
        changes.note_next_change(view.wallets[identifier], min(ends + begins, default=None))


def kept_for_holds(
    ended: Iterable[tuple[UUID, datetime | None, int]], holds: Iterable[tuple[datetime, int]]
) -> dict[UUID, int]:
    """Return per ended grant (id, end, µcr left) how much of it the open holds (reserved at, µcr) may need.

    A hold counts for a grant if it was made before the grant's end, and only once over all grants: together they keep
    no more than these holds have, and as much of it as can be. Earlier grants in the order given keep first.
    """
    # The latest holds first: earlier ones may burn more grants.
    latest_first = sorted(holds, reverse=True)
    need = [amount for _, amount in latest_first]
    kept: dict[UUID, int] = {}
    for identifier, end, remaining in ended:
        left = remaining
        for position, (reserved_at, _) in enumerate(latest_first):
            if left and (end is None or reserved_at < end):
                part = min(left, need[position])
                need[position] -= part
                left -= part
        kept[identifier] = remaining - left
    return kept


def burnable(hold: HoldRow, view: View) -> Sequence[GrantRow]:
    """Return the grants that a charge under the hold is taken from, in order.

    First the grants that ended since the hold was made, by their end: no later hold can burn them. Then the live ones
    that the hold was made over, then the live ones that came after it, both in burn-down order.
    """
    ended: list[GrantRow] = []
    before: list[GrantRow] = []
    since: list[GrantRow] = []
    for grant in view.grants.get(hold.wallet, ()):
        if not grant.has_ended_by(view.now):
            (before if grant.effective_at <= hold.reserved_at else since).append(grant)
        elif not grant.has_ended_by(hold.reserved_at):
            ended.append(grant)
    if ended:
        ended.sort(key=lambda grant: grant.expires_at or view.now)
    return [*ended, *before, *since]
