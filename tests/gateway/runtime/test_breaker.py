"""The circuit breaker: three failures in a row open it, one request at a time closes it again."""

from __future__ import annotations

import pytest

from gateway.runtime.breaker import FAILURES, FIRST_SECONDS, LONGEST_SECONDS, Breaker


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def broken(clock):
    breaker = Breaker(clock)
    for _ in range(FAILURES):
        breaker.failed(is_probe=False)
    return breaker


def test_only_failures_in_a_row_open_it(clock):
    breaker = Breaker(clock)
    for _ in range(FAILURES - 1):
        breaker.failed(is_probe=False)
    breaker.succeeded()
    breaker.failed(is_probe=False)
    assert (breaker.state, breaker.obstacle) == ("closed", "")


def test_open_takes_nothing_until_its_wait_is_over(broken, clock):
    assert broken.state == "open"
    assert broken.obstacle == "circuit open after 3 failures, next try in 5 s"
    clock.now += FIRST_SECONDS
    assert (broken.state, broken.obstacle) == ("half-open", "")


def test_half_open_takes_one_request_at_a_time(broken, clock):
    clock.now += FIRST_SECONDS
    assert broken.enter()
    assert broken.obstacle
    broken.leave(is_probe=True)  # it was cancelled: nothing is known
    assert broken.obstacle == ""
    assert broken.enter()
    broken.succeeded()
    assert (broken.state, broken.obstacle) == ("closed", "")
    assert not broken.enter()


def test_each_failed_probe_doubles_the_wait_to_a_bound(broken, clock):
    waits = []
    for _ in range(6):
        start = clock.now
        while broken.state == "open":
            clock.now += 1
        waits.append(clock.now - start)
        broken.failed(is_probe=broken.enter())
    assert waits == [5, 10, 20, 40, 60, LONGEST_SECONDS]
    clock.now += LONGEST_SECONDS
    broken.enter()
    broken.succeeded()
    for _ in range(FAILURES):
        broken.failed(is_probe=False)
    assert broken.obstacle.endswith("in 5 s")


def test_requests_that_began_before_it_opened_change_nothing(broken, clock):
    broken.failed(is_probe=False)
    clock.now += FIRST_SECONDS
    assert broken.state == "half-open"


def test_a_failure_of_a_request_that_is_no_proof_leaves_the_one_that_is_alone(broken, clock):
    clock.now += FIRST_SECONDS
    assert broken.enter()
    broken.failed(is_probe=False)  # it was sent before the circuit opened
    assert broken.state == "half-open"
    assert not broken.enter()
    broken.failed(is_probe=True)
    clock.now += 2 * FIRST_SECONDS - 1
    assert broken.state == "open"
    clock.now += 1
    assert broken.state == "half-open", "the wait is twice the first, not four times"


def test_a_circuit_that_waits_for_its_proof_says_so(broken, clock):
    assert broken.remark == ""
    clock.now += FIRST_SECONDS
    assert broken.remark == "circuit half-open after 3 failures: the next request proves it"
    broken.enter()
    assert broken.remark == "", "what is in the way says it"
    broken.succeeded()
    assert broken.remark == ""
