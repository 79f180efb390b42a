from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.periods import CALENDAR, FOR_EVER, Period, minute_of, month_of, window_of

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Pacific/Apia", "Australia/Lord_Howe"]
moments = st.datetimes(datetime(2005, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def utc(*parts):
    return datetime(*parts, tzinfo=UTC)


@pytest.mark.parametrize(
    ("at", "start", "end"),
    [
        (utc(2026, 1, 31, 12), utc(2026, 1, 31, 12), utc(2026, 2, 28, 12)),
        (utc(2026, 2, 28, 11, 59, 59), utc(2026, 1, 31, 12), utc(2026, 2, 28, 12)),
        (utc(2026, 2, 28, 12), utc(2026, 2, 28, 12), utc(2026, 3, 31, 12)),
        (utc(2028, 2, 29, 13), utc(2028, 2, 29, 12), utc(2028, 3, 31, 12)),
        (utc(2026, 5, 1), utc(2026, 4, 30, 12), utc(2026, 5, 31, 12)),
        (utc(2025, 12, 31, 12), utc(2025, 12, 31, 12), utc(2026, 1, 31, 12)),
    ],
)
def test_day_31_falls_on_the_last_day_of_shorter_months(at, start, end):
    assert month_of(utc(2026, 1, 31, 12), "UTC", at) == Period(start, end)


def test_months_keep_their_local_hour_over_a_change_of_clocks():
    anchor = datetime(2026, 3, 15, tzinfo=ZoneInfo("Europe/Berlin"))
    period = month_of(anchor, "Europe/Berlin", utc(2026, 3, 20))
    assert period == Period(utc(2026, 3, 14, 23), utc(2026, 4, 14, 22))


def test_a_local_time_that_the_clocks_skip_moves_on_by_the_gap():
    anchor = datetime(2026, 2, 28, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    skipped = month_of(anchor.replace(day=28, month=1) + timedelta(days=1), "Europe/Berlin", utc(2026, 3, 29, 12))
    assert skipped.start == utc(2026, 3, 29, 1, 30)  # 02:30 doesn't exist on that day: 03:30 CEST


def test_an_unknown_zone_is_named():
    with pytest.raises(ValueError, match=r"time_zone: 'Mars/Olympus'"):
        month_of(utc(2026, 1, 1), "Mars/Olympus", utc(2026, 1, 1))


@given(anchor=moments, at=moments, zone=st.sampled_from(ZONES))
def test_months_hold_the_moment_and_join_without_gap(anchor, at, zone):
    period = month_of(anchor, zone, at)
    assert period.start <= at < period.end
    assert timedelta(days=26) < period.end - period.start < timedelta(days=33)
    assert month_of(anchor, zone, period.end).start == period.end
    assert month_of(anchor, zone, period.end - timedelta(microseconds=1)) == period


def calendar(zone):
    return minute_of(CALENDAR.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC))


@pytest.mark.parametrize(
    ("window", "at", "start", "hours"),
    [
        ("day", utc(2026, 3, 29, 12), utc(2026, 3, 28, 23), 23),
        ("day", utc(2026, 10, 25, 12), utc(2026, 10, 24, 22), 25),
        ("day", utc(2026, 10, 24, 22), utc(2026, 10, 24, 22), 25),
        ("day", utc(2026, 10, 24, 21, 59, 59), utc(2026, 10, 23, 22), 24),
        ("week", utc(2026, 3, 29, 12), utc(2026, 3, 22, 23), 7 * 24 - 1),
        ("month", utc(2026, 3, 29, 12), utc(2026, 2, 28, 23), 31 * 24 - 1),
    ],
)
def test_windows_of_the_calendar_have_days_of_23_and_25_hours(window, at, start, hours):
    period = window_of(window, calendar("Europe/Berlin"), "Europe/Berlin", at)
    assert period == Period(start, start + timedelta(hours=hours))


def test_a_total_has_neither_beginning_nor_end():
    assert window_of("total", 0, "UTC", utc(2026, 1, 1)) == FOR_EVER


@given(
    window=st.sampled_from(["day", "week", "month"]), zone=st.sampled_from(ZONES), anchor=moments, at=moments,
    later=st.timedeltas(timedelta(), timedelta(days=2)),
)  # fmt: skip
def test_windows_follow_each_other_without_a_gap_and_are_remembered_right(window, zone, anchor, at, later):
    terms = window, minute_of(anchor), zone
    period = window_of(*terms, at)
    assert period.start <= at < period.end
    assert window_of(*terms, period.end).start == period.end
    assert window_of(*terms, period.end - timedelta(microseconds=1)) == period
    after = window_of(*terms, at + later)
    assert after.start <= at + later < after.end
