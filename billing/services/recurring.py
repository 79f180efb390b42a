"""Recurring grants: credit that a wallet gets at the beginning of each day, week or month.

The credit of one window is always scheduled ahead, as a plan's month is: the ledger's writer makes the grant of it at
the moment at which the window begins.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db import transaction

from base import clock
from base.units import format_credits
from billing.models import CreditGrant, RecurringGrant, ScheduledGrant, Wallet
from billing.periods import Period, minute_of, moment_of_minute, window_of, zone
from billing.services import credits
from billing.services.errors import KeyReusedError
from billing.services.wallets import lock
from billing.writer.grants import GIFTS, MAX_POSTED

MOST_OF_A_WALLET = 20
MOST_WINDOWS = 12
"""Windows that one grant lasts for: so a wallet's charge is taken from no more grants than it has patience for."""
MOST_COUNT = 1000

State = RecurringGrant.State


@transaction.atomic
def make(
    *,
    wallet_id: UUID,
    amount: int,
    kind: CreditGrant.Kind,
    window: RecurringGrant.Window,
    key: str,
    reason: str,
    actor: str = "",
    begins_at: datetime | None = None,
    time_zone: str = "UTC",
    until: datetime | None = None,
    count: int | None = None,
    windows: int = 1,
    rollover: int | None = None,
    priority: int = 50,
) -> RecurringGrant:
    """Give the wallet `amount` µcr at the beginning of each window from `begins_at` (None: now) on, or return what
    `key` made before.

    It ends before `until`, or after `count` grants. Each lasts for so many `windows`, and up to `rollover` of what is
    left of it for one more. Raises ValueError that names the field for terms that can't be, KeyReusedError when `key`
    made one of other terms.
    """
    wallet, now = lock(wallet_id), clock.now()
    if (before := RecurringGrant.objects.filter(wallet=wallet, key=key).first()) is not None:
        ends = _after(before, before.anchor, count) if count is not None else until
        begins = before.anchor if begins_at is None else moment_of_minute(minute_of(begins_at))
        asked = (amount, window, kind, priority, windows, rollover, time_zone, begins, ends)
        names = ("amount", "window", "kind", "priority", "windows", "rollover", "time_zone", "anchor", "until")
        if tuple(getattr(before, name) for name in names) != asked:
            raise KeyReusedError(key)
        return before
    _check(amount=amount, kind=kind, reason=reason, windows=windows, rollover=rollover, count=count, until=until)
    credits.check_ahead(begins_at=begins_at, until=until)
    zone(time_zone)
    if begins_at is not None and begins_at < now:
        raise ValueError("begins_at: must not be in the past")
    if wallet.recurring_grants.exclude(state=State.ENDED).count() >= MOST_OF_A_WALLET:
        raise ValueError(f"wallet: it has {MOST_OF_A_WALLET} recurring grants that go on; end one first")
    anchor = moment_of_minute(minute_of(begins_at or now))
    one = RecurringGrant(
        wallet=wallet,
        key=key,
        kind=kind,
        amount=amount,
        priority=priority,
        window=window,
        anchor=anchor,
        time_zone=time_zone,
        until=until,
        windows=windows,
        rollover=rollover,
        next_at=anchor,
        reason=reason,
        made_by=actor,
    )
    if count is not None:
        one.until = _after(one, anchor, count)
    if one.until is not None and one.until <= anchor:
        raise ValueError("until: must be after the beginning")
    one.save(force_insert=True)
    _schedule(one, wallet, anchor)
    _advance(one, wallet, now)
    return one


@transaction.atomic
def advance(pk: UUID, now: datetime) -> None:
    """Schedule the credit of the window after that of `now`, unless that was done; end what has reached its end.

    Windows that went by unnoticed are made up for where their credit would still last. Safe to repeat and to overlap.
    """
    wallet = lock(RecurringGrant.objects.values_list("wallet_id", flat=True).get(pk=pk))
    _advance(RecurringGrant.objects.get(pk=pk), wallet, now)


@transaction.atomic
def set_state(pk: UUID, state: RecurringGrant.State) -> RecurringGrant:
    """Pause a recurring grant, let it go on or end it, and return it; what it gave stays as long as it would have.

    The windows that begin while it is paused have no grant. Raises ValueError for one that has ended.
    """
    wallet = lock(RecurringGrant.objects.values_list("wallet_id", flat=True).get(pk=pk))
    one, now = RecurringGrant.objects.get(pk=pk), clock.now()
    if one.state == state:
        return one
    if one.state == State.ENDED:
        raise ValueError("state: it has ended; make a new one")
    one.state = state
    if state == State.ACTIVE:
        if one.next_at > now:
            _schedule(one, wallet, one.next_at)
        else:
            one.next_at = _window(one, now).start
    else:
        credits.withdraw(wallet, ScheduledGrant.objects.filter(wallet=wallet, source__startswith=_source(one)))
    one.save(update_fields=["state", "next_at"])
    _advance(one, wallet, now)
    return one


def _advance(one: RecurringGrant, wallet: Wallet, now: datetime) -> None:
    before = one.state, one.next_at
    while one.state == State.ACTIVE and one.next_at <= now:
        following = _window(one, one.next_at).end
        if one.until is not None and following >= one.until:
            one.state = State.ENDED
        else:
            one.next_at = following
            if _after(one, following, one.windows) > now:
                _schedule(one, wallet, following)
    if (one.state, one.next_at) != before:
        one.save(update_fields=["state", "next_at"])


def _schedule(one: RecurringGrant, wallet: Wallet, begins_at: datetime) -> None:
    ends = _after(one, begins_at, one.windows)
    credits.schedule(
        wallet,
        amount=one.amount,
        kind=one.kind,
        begins_at=begins_at,
        expires_at=ends,
        priority=one.priority,
        source=f"{_source(one)}{minute_of(begins_at)}",
        reason=one.reason,
        rollover=one.rollover,
        rollover_until=_after(one, ends, 1) if one.rollover else None,
    )


def _source(one: RecurringGrant) -> str:
    return f"recurring:{one.pk.hex}:"


def _window(one: RecurringGrant, at: datetime) -> Period:
    return window_of(one.window, minute_of(one.anchor), one.time_zone, at)


def _after(one: RecurringGrant, begins_at: datetime, count: int) -> datetime:
    """Return the end of the last of so many windows."""
    for _ in range(count):
        begins_at = _window(one, begins_at).end
    return begins_at


def _check(
    *,
    amount: int,
    kind: CreditGrant.Kind,
    reason: str,
    windows: int,
    rollover: int | None,
    count: int | None,
    until: datetime | None,
) -> None:
    if not 0 < amount <= MAX_POSTED:
        most = format_credits(MAX_POSTED, separator=",")
        raise ValueError(f"amount: must be above zero, and a wallet holds at most {most} credits")
    if kind not in GIFTS:
        raise ValueError("kind: what recurs is promotional or goodwill; a plan gives its own credit")
    if not reason.strip():
        raise ValueError("reason: a recurring grant needs one")
    if not 1 <= windows <= MOST_WINDOWS:
        raise ValueError(f"windows: a grant lasts for 1 to {MOST_WINDOWS} of them")
    if rollover is not None and rollover <= 0:
        raise ValueError("rollover: must be above zero, or empty")
    if count is not None and until is not None:
        raise ValueError("count: give either a number of grants or an end")
    if count is not None and not 1 <= count <= MOST_COUNT:
        raise ValueError(f"count: between 1 and {MOST_COUNT} grants")
