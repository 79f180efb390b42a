"""The circuit breaker: three failures in a row open it, one request at a time closes it again."""

from __future__ import annotations

import pytest

from gateway.runtime.breaker import FAILURES, FIRST_SECONDS, LONGEST_SECONDS, PROOF_SECONDS, Breaker


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
        breaker.failed(breaker.enter())
    return breaker


def test_only_failures_in_a_row_open_it(clock):
    breaker = Breaker(clock)
    for _ in range(FAILURES - 1):
        breaker.failed(breaker.enter())
    breaker.succeeded(breaker.enter())
    breaker.failed(breaker.enter())
    assert (breaker.state, breaker.obstacle) == ("closed", "")


def test_a_request_that_only_begins_clears_nothing(clock):
    """An endpoint that broke off each stream behind its first token took almost all requests, and stayed closed."""
    breaker = Breaker(clock)
    for _ in range(FAILURES):
        ticket = breaker.enter()
        breaker.began(ticket)
        breaker.failed(ticket)
        breaker.leave(ticket)
    assert breaker.state == "open"


def test_open_takes_nothing_until_its_wait_is_over(broken, clock):
    assert broken.state == "open"
    assert broken.obstacle == "circuit open after 3 failures, next try in 5 s"
    clock.now += FIRST_SECONDS
    assert (broken.state, broken.obstacle) == ("half-open", "")


def test_half_open_takes_one_request_at_a_time(broken, clock):
    clock.now += FIRST_SECONDS
    cancelled = broken.enter()
    assert broken.obstacle
    broken.leave(cancelled)  # nothing is known
    assert broken.obstacle == ""
    proof = broken.enter()
    assert broken.obstacle
    broken.succeeded(proof)
    assert (broken.state, broken.obstacle) == ("closed", "")


def test_a_proof_that_begins_lets_others_in_and_one_more_failure_opens_it_for_twice_as_long(broken, clock):
    clock.now += FIRST_SECONDS
    proof = broken.enter()
    broken.began(proof)
    assert (broken.state, broken.obstacle) == ("half-open", "")
    assert broken.remark == "circuit half-open after 3 failures: no request has ended well yet"
    other = broken.enter()
    broken.failed(proof)
    assert broken.obstacle.endswith(f"in {2 * FIRST_SECONDS:.0f} s")
    broken.failed(other)
    assert broken.obstacle.endswith(f"in {2 * FIRST_SECONDS:.0f} s"), "it was sent before the circuit opened"


def test_each_failed_probe_doubles_the_wait_to_a_bound(broken, clock):
    waits = []
    for _ in range(6):
        start = clock.now
        while broken.state == "open":
            clock.now += 1
        waits.append(clock.now - start)
        broken.failed(broken.enter())
    assert waits == [5, 10, 20, 40, 60, LONGEST_SECONDS]
    clock.now += LONGEST_SECONDS
    broken.succeeded(broken.enter())
    for _ in range(FAILURES):
        broken.failed(broken.enter())
    assert broken.obstacle.endswith("in 5 s")


def test_requests_that_began_before_it_opened_change_nothing(clock):
    breaker = Breaker(clock)
    tickets = [breaker.enter() for _ in range(FAILURES + 2)]
    for ticket in tickets[: FAILURES + 1]:
        breaker.failed(ticket)
    breaker.succeeded(tickets[-1])
    assert breaker.state == "open"
    clock.now += FIRST_SECONDS
    assert breaker.state == "half-open"


def test_an_old_proof_that_ends_leaves_the_new_one_alone(broken, clock):
    clock.now += FIRST_SECONDS
    old = broken.enter()
    broken.reset()  # its worker is another process now
    for _ in range(FAILURES):
        broken.failed(broken.enter())
    clock.now += FIRST_SECONDS
    new = broken.enter()
    broken.leave(old)
    assert broken.obstacle == "circuit half-open: a request is proving it"
    broken.failed(old)
    assert broken.state == "half-open"
    broken.failed(new)
    assert broken.obstacle.endswith(f"in {2 * FIRST_SECONDS:.0f} s"), "twice the first, not four times"


def test_a_circuit_that_waits_for_its_proof_says_so(broken, clock):
    assert broken.remark == ""
    clock.now += FIRST_SECONDS
    assert broken.remark == "circuit half-open after 3 failures: the next request proves it"
    ticket = broken.enter()
    assert broken.remark == "", "what is in the way says it"
    broken.succeeded(ticket)
    assert broken.remark == ""


def test_a_proof_that_does_not_begin_is_joined_by_another_each_second(broken, clock):
    """One that waited in its own tenant's line, or as the last of a queue, kept a sound engine from all others."""
    clock.now += FIRST_SECONDS
    waiting = broken.enter()
    assert broken.obstacle
    clock.now += PROOF_SECONDS
    assert (broken.state, broken.obstacle) == ("half-open", "")
    second = broken.enter()
    assert broken.obstacle
    broken.leave(waiting)
    assert broken.obstacle, "the second one proves it still"
    broken.began(second)
    assert broken.obstacle == ""
    broken.succeeded(second)
    assert broken.state == "closed"


def test_whichever_of_several_proofs_fails_first_opens_it(broken, clock):
    clock.now += FIRST_SECONDS
    first = broken.enter()
    clock.now += PROOF_SECONDS
    second = broken.enter()
    broken.failed(first)
    assert broken.obstacle == "circuit open after 4 failures, next try in 10 s"
    broken.failed(second)
    assert broken.obstacle == "circuit open after 4 failures, next try in 10 s"


def test_whichever_of_several_proofs_begins_first_lets_others_in(broken, clock):
    clock.now += FIRST_SECONDS
    first = broken.enter()
    clock.now += PROOF_SECONDS
    broken.enter()
    broken.began(first)
    assert broken.obstacle == ""
