"""Leases: something is one process's until a moment, and for as long as that renews it; then it is anybody's.

Rows have the moment in a field, by the database's clock. Who takes one does so by an update that only succeeds where it
is still free, so that of several processes one gets it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Q
from django.db.models.functions import Least

from base import clock

SECONDS = 30
LEASE = timedelta(seconds=SECONDS)


def lease_end() -> datetime:
    """Return when a lease ends that is taken or renewed now."""
    return clock.now() + LEASE


def is_free(field: str, now: datetime) -> Q:
    """Rows whose lease, in `field`, nobody took, or is over."""
    return Q(**{field: None}) | Q(**{f"{field}__lte": now})


def ended(since: str, now: datetime) -> Least:
    """Return the end of a lease that is to be over now, of a row made at `since`: a clock that went back may have left
    rows of the future.
    """
    return Least(since, now)
