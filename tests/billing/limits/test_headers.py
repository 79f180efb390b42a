from __future__ import annotations

import pytest

from billing.limits.types import BucketState, rate_headers, retry_after, seconds


def test_headers_name_limit_remaining_and_reset():
    states = [BucketState("requests", 60, 59, 1_000_000), BucketState("credits", 5_250_000, 70, 250_000)]
    assert rate_headers(states) == [
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-reset-requests", "1s"),
        ("x-ratelimit-limit-credits", "5.25"),
        ("x-ratelimit-remaining-credits", "0.00007"),
        ("x-ratelimit-reset-credits", "0.25s"),
    ]


@pytest.mark.parametrize(("microseconds", "text"), [(0, "0s"), (1, "0.001s"), (1_200_000, "1.2s"), (90_000_000, "90s")])
def test_seconds_round_up(microseconds, text):
    assert seconds(microseconds) == text


@pytest.mark.parametrize(("microseconds", "text"), [(1, "1"), (1_000_000, "1"), (1_000_001, "2")])
def test_retry_after_is_whole_seconds(microseconds, text):
    assert retry_after(microseconds) == text
