from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from billing.limits import gcra
from tests.billing.limits.contract import SECOND, bucket, buckets

amounts = st.integers(0, 10**11)


@given(one=buckets, parts=st.lists(amounts, min_size=1, max_size=5))
def test_cost_in_parts_is_never_less_than_at_once(one, parts):
    assert sum(gcra.cost_us(one, part) for part in parts) >= gcra.cost_us(one, sum(parts))


@given(one=buckets, amount=amounts)
def test_giving_back_is_never_more_than_was_taken(one, amount):
    assert 0 <= -gcra.cost_us(one, -amount) <= gcra.cost_us(one, amount) <= -gcra.cost_us(one, -amount) + 1


def test_whole_numbers_of_microseconds_cost_exactly():
    assert gcra.cost_us(bucket(limit=10, period_us=10 * SECOND), 3) == 3 * SECOND
    assert gcra.cost_us(bucket(limit=3, period_us=10), 1) == 4


def test_state_of_a_debtor_is_nothing_left():
    one = bucket(limit=1, period_us=SECOND, burst=2)
    state = gcra.state_of(one, tat=10 * SECOND, now=0)
    assert (state.remaining, state.reset_us) == (0, 10 * SECOND)


def test_a_bucket_that_is_long_full_starts_from_now():
    assert gcra.taken_at(0, now=100, spent_us=5) == 105
    assert gcra.taken_at(120, now=100, spent_us=5) == 125
