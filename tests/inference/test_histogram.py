"""Durations in buckets: their percentiles, and how they are added up."""

from __future__ import annotations

import math

import pytest

from inference.core.load import Durations
from inference.types import BOUNDS, Histogram


def counted(*seconds: float) -> Histogram:
    durations = Durations()
    for each in seconds:
        durations.add(each)
    return durations.report()


def test_buckets_go_up_from_a_millisecond_and_have_their_bound() -> None:
    assert list(BOUNDS) == sorted(set(BOUNDS))
    assert (BOUNDS[:7], BOUNDS[-2:]) == ((0.001, 0.0015, 0.002, 0.003, 0.005, 0.007, 0.01), (70.0, 100.0))
    for place, bound in enumerate(BOUNDS):
        assert counted(bound).counts[place] == 1
        assert counted(bound * 1.001).counts[place + 1] == 1


@pytest.mark.parametrize(
    ("seconds", "half", "most"),
    [
        ([], None, None),
        ([0.0], 0.001, 0.001),
        ([0.004] * 99 + [4.0], 0.005, 0.005),
        ([0.004] * 98 + [4.0] * 2, 0.005, 5.0),
        ([0.004, 4.0], 0.005, 5.0),
        ([0.004, 0.04, 500.0], 0.05, math.inf),
    ],
)
def test_a_percentile_is_the_bound_below_which_that_part_lies(
    seconds: list[float], half: float | None, most: float | None
) -> None:
    found = counted(*seconds)
    assert (found.percentile(0.5), found.percentile(0.99)) == (half, most)
    assert found.total == len(seconds)
    assert found.seconds == pytest.approx(sum(seconds))


def test_two_are_added_bucket_by_bucket_also_where_one_counts_nothing() -> None:
    one, two = counted(0.004, 0.04), counted(0.004, 500.0)
    both = counted(0.004, 0.04, 0.004, 500.0)
    assert (one + two).counts == both.counts
    assert (one + two).seconds == pytest.approx(both.seconds)
    assert Histogram() + one == one + Histogram() == one
    assert Histogram() + Histogram() == Histogram()
