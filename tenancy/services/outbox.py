"""The outbox: messages are rows in the transaction of what they tell of, sent by a sweep, at least once.

Taking a message postpones its next attempt in the same statement. So two sweeps never send one at the same time, no
lock is held while its receiver is spoken to, and what a killed process had taken is sent again later: a message comes
twice only where a process died between the receiver's yes and our note of it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db.models import F
from django.db.models.expressions import OrderBy

from base import clock
from tenancy.models.mail import Outgoing

BACK_OFF = [timedelta(minutes=minutes) for minutes in (1, 5, 15, 60, 120, 240, 480)]
"""How long after each attempt the next one comes; after one more than these a message is given up."""
M = TypeVar("M", bound=Outgoing)
_State = Outgoing.State


def take_due(model: type[M], *order: str | OrderBy) -> tuple[M | None, bool]:
    """Return the message that is due first, if any, and whether this attempt at it is ours."""
    now = clock.now()
    due = _rows(model).filter(state=_State.WAITING, next_attempt_at__lte=now)
    row = due.order_by(*order, "next_attempt_at", "id").first()
    return row, row is not None and _take(row, now)


def is_last(row: Outgoing) -> bool:
    """Return whether no attempt follows the one for which `row` was taken."""
    return row.attempts == len(BACK_OFF)


def again(row: Outgoing, **fields: Any) -> None:
    """Let a message that ended be tried anew from the first attempt."""
    fresh = {"state": _State.WAITING, "attempts": 0, "error": "", "next_attempt_at": clock.now(), "ended_at": None}
    _rows(type(row)).filter(pk=row.pk).exclude(state=_State.WAITING).update(**fresh, **fields)


def end(row: Outgoing, state: str, **fields: Any) -> None:
    """Note that a message was sent or is given up."""
    _rows(type(row)).filter(pk=row.pk).update(state=state, ended_at=clock.now(), **fields)


def _take(row: Outgoing, now: datetime) -> bool:
    """Count an attempt and postpone the next; return whether this attempt is ours."""
    if row.attempts > len(BACK_OFF):  # a process died in the last one
        end(row, _State.FAILED, error=row.error or "The last attempt was cut off.")
        return False
    wait = BACK_OFF[min(row.attempts, len(BACK_OFF) - 1)]
    same = _rows(type(row)).filter(pk=row.pk, state=_State.WAITING, attempts=row.attempts)
    return bool(same.update(attempts=F("attempts") + 1, next_attempt_at=now + wait))


def _rows(model: type[M]) -> Any:
    return model._default_manager  # noqa: SLF001 - documented
