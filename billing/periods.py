"""Days, weeks and months counted from an anchor in a time zone, as half-open periods in UTC."""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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


NO_END = datetime.max.replace(tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FOR_EVER = Period(_EPOCH, NO_END)
CALENDAR = datetime(2001, 1, 1)  # noqa: DTZ001 - a local time: a Monday and the first of a year
"""The anchor of calendar days, of weeks that begin on Monday, and of calendar months."""

_MOST_KNOWN = 4096
_known: dict[tuple[str, int, str], Period] = {}


def minute_of(moment: datetime) -> int:
    """Return the minutes from 1970 to a moment: so periods are named."""
    return int((moment - _EPOCH) // timedelta(minutes=1))


def moment_of_minute(minute: int) -> datetime:
    """Return the moment that `minute_of` names."""
    return _EPOCH + timedelta(minutes=minute)


def window_of(window: str, anchor: int, time_zone: str, at: datetime) -> Period:
    """Return the ``day``, ``week`` or ``month`` that `at` lies in, counted from the minute `anchor` by the clock of
    `time_zone`; ``total`` has neither beginning nor end. A day may have 23 or 25 hours.

    The last answer for the same terms is remembered.
    """
    if window == "total":
        return FOR_EVER
    terms = window, anchor, time_zone
    period = _known.get(terms)
    if period is None or not period.start <= at < period.end:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        begun = moment_of_minute(anchor)
        days = {"day": 1, "week": 7}.get(window)
        period = _known[terms] = (
            month_of(begun, time_zone, at) if days is None else _days_of(begun, time_zone, at, days)
        )
    return period


def _days_of(anchor: datetime, time_zone: str, at: datetime, days: int) -> Period:
    """Return the period of so many days that `at` lies in; a skipped or doubled local time as in `month_of`."""
    local = anchor.astimezone(zone(time_zone))
    naive = local.replace(tzinfo=None, fold=0)

    def boundary(number: int) -> datetime:
        return (naive + timedelta(days=days * number)).replace(tzinfo=local.tzinfo).astimezone(UTC)

    number = (at.astimezone(local.tzinfo).replace(tzinfo=None) - naive) // timedelta(days=days)
    while boundary(number) > at:
        number -= 1
    while boundary(number + 1) <= at:
        number += 1
    return Period(boundary(number), boundary(number + 1))


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
