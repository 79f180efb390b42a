"""Months counted from an anchor in a time zone, as half-open periods in UTC."""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


@dataclass(frozen=True, slots=True)
class Period:
    """From `start` to just before `end`, both in UTC."""

    start: datetime
    end: datetime


def month_of(anchor: datetime, time_zone: str, at: datetime) -> Period:
    """Return the month that `at` lies in, counted from `anchor` by the calendar and clock of `time_zone`.

    An anchor on day 29 to 31 falls on the last day of shorter months, and back on its own day afterwards. A local time
    that a change of clocks skips is moved on by the gap; one that comes twice means the first.
    """
    local = anchor.astimezone(zone(time_zone))
    months = (at.astimezone(local.tzinfo).year - local.year) * 12 + at.astimezone(local.tzinfo).month - local.month
    while _boundary(local, months) > at:
        months -= 1
    while _boundary(local, months + 1) <= at:
        months += 1
    return Period(_boundary(local, months), _boundary(local, months + 1))


def zone(name: str) -> ZoneInfo:
    """Return the time zone, or raise ValueError that names it."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"time_zone: {name!r} is not known") from error


def _boundary(anchor: datetime, months: int) -> datetime:
    """Return the moment `months` months after the local anchor, in UTC."""
    year, month = divmod(anchor.year * 12 + anchor.month - 1 + months, 12)
    day = min(anchor.day, calendar.monthrange(year, month + 1)[1])
    return anchor.replace(year=year, month=month + 1, day=day, fold=0).astimezone(UTC)
