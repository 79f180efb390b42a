"""The circuit breaker: three failures in a row of two tenants open it, one request at a time closes it again."""

from __future__ import annotations

from uuid import uuid4

import pytest

from gateway.runtime.engines import FAILURES, FIRST_SECONDS, LONGEST_SECONDS, PROOF_SECONDS, TENANTS, Breaker
from tests.gateway.doubles import break_circuit


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
    break_circuit(breaker)
    return breaker


def test_only_failures_in_a_row_open_it(clock):
    breaker = Breaker(clock)
    break_circuit(breaker, FAILURES - 1)
    breaker.succeeded(breaker.enter(uuid4()))
    break_circuit(breaker, 1)
    assert (breaker.state, breaker.obstacle) == ("closed", "")


def test_a_request_that_only_begins_clears_nothing(clock):
    """An endpoint that broke off each stream behind its first token took almost all requests, and stayed closed."""
    breaker = Breaker(clock)
    for _ in range(FAILURES):
        ticket = breaker.enter(uuid4())
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
    cancelled = broken.enter(uuid4())
    assert broken.obstacle
    broken.leave(cancelled)  # nothing is known
    assert broken.obstacle == ""
    proof = broken.enter(uuid4())
    assert broken.obstacle
    broken.succeeded(proof)
    assert (broken.state, broken.obstacle) == ("closed", "")


def test_a_proof_that_begins_lets_others_in_and_failures_of_two_tenants_open_it_for_twice_as_long(broken, clock):
    clock.now += FIRST_SECONDS
    proof = broken.enter(uuid4())
    broken.began(proof)
    assert (broken.state, broken.obstacle) == ("half-open", "")
    assert broken.remark == "circuit half-open after 3 failures: no request has ended well yet"
    other = broken.enter(uuid4())
    broken.failed(proof)
    assert broken.state == "half-open"
    break_circuit(broken, 1)
    assert broken.obstacle.endswith(f"in {2 * FIRST_SECONDS:.0f} s")
    broken.failed(other)
    assert broken.obstacle.endswith(f"in {2 * FIRST_SECONDS:.0f} s"), "it was sent before the circuit opened"


def test_one_tenant_opens_no_circuit_however_much_fails_it(clock):
    """Three failures of one tenant's adapter, or prompts, took the engine from everybody."""
    breaker, tenant = Breaker(clock), uuid4()
    for _ in range(3 * FAILURES):
        breaker.failed(breaker.enter(tenant))
    assert (breaker.state, breaker.obstacle, breaker.remark) == ("closed", "", "")
    break_circuit(breaker, 1)
    assert breaker.obstacle == f"circuit open after {3 * FAILURES + 1} failures, next try in 5 s"


def test_a_tenant_that_fails_as_the_proof_keeps_nobody_out(broken, clock):
    """Its next requests would be the proof again and again, and each failure would open the circuit for longer."""
    clock.now += FIRST_SECONDS
    tenant = uuid4()
    for _ in range(2 * FAILURES):
        ticket = broken.enter(tenant)
        broken.failed(ticket)
        broken.leave(ticket)
        broken.enter(tenant)
        assert (broken.state, broken.obstacle) == ("half-open", "")
    broken.succeeded(broken.enter(uuid4()))
    assert broken.state == "closed"


def test_each_failed_probe_doubles_the_wait_to_a_bound(broken, clock):
    waits = []
    for _ in range(6):
        start = clock.now
        while broken.state == "open":
            clock.now += 1
        waits.append(clock.now - start)
        break_circuit(broken, TENANTS)
    assert waits == [5, 10, 20, 40, 60, LONGEST_SECONDS]
    clock.now += LONGEST_SECONDS
    broken.succeeded(broken.enter(uuid4()))
    break_circuit(broken)
    assert broken.obstacle.endswith("in 5 s")


def test_requests_that_began_before_it_opened_change_nothing(clock):
    breaker = Breaker(clock)
    tickets = [breaker.enter(uuid4()) for _ in range(FAILURES + 2)]
    for ticket in tickets[: FAILURES + 1]:
        breaker.failed(ticket)
    breaker.succeeded(tickets[-1])
    assert breaker.state == "open"
    clock.now += FIRST_SECONDS
    assert breaker.state == "half-open"


def test_an_old_proof_that_ends_leaves_the_new_one_alone(broken, clock):
    clock.now += FIRST_SECONDS
    old = broken.enter(uuid4())
    broken.reset()  # its worker is another process now
    break_circuit(broken)
    clock.now += FIRST_SECONDS
    new = broken.enter(uuid4())
    broken.leave(old)
    assert broken.obstacle == "circuit half-open: a request is proving it"
    broken.failed(old)
    assert broken.state == "half-open"
    broken.failed(new)
    break_circuit(broken, 1)
    assert broken.obstacle.endswith(f"in {2 * FIRST_SECONDS:.0f} s"), "twice the first, not four times"


def test_a_circuit_that_waits_for_its_proof_says_so(broken, clock):
    assert broken.remark == ""
    clock.now += FIRST_SECONDS
    assert broken.remark == "circuit half-open after 3 failures: the next request proves it"
    ticket = broken.enter(uuid4())
    assert broken.remark == "", "what is in the way says it"
    broken.succeeded(ticket)
    assert broken.remark == ""


def test_a_proof_that_does_not_begin_is_joined_by_another_each_second(broken, clock):
    """One that waited in its own tenant's line, or as the last of a queue, kept a sound engine from all others."""
    clock.now += FIRST_SECONDS
    waiting = broken.enter(uuid4())
    assert broken.obstacle
    clock.now += PROOF_SECONDS
    assert (broken.state, broken.obstacle) == ("half-open", "")
    second = broken.enter(uuid4())
    assert broken.obstacle
    broken.leave(waiting)
    assert broken.obstacle, "the second one proves it still"
    broken.began(second)
    assert broken.obstacle == ""
    broken.succeeded(second)
    assert broken.state == "closed"


def test_the_second_tenants_of_several_proofs_that_fail_opens_it(broken, clock):
    clock.now += FIRST_SECONDS
    proofs = []
    for _ in range(TENANTS + 1):
        proofs.append(broken.enter(uuid4()))
        clock.now += PROOF_SECONDS
    for proof in proofs[1:]:
        assert broken.state == "half-open"
        broken.failed(proof)
    assert broken.obstacle == "circuit open after 5 failures, next try in 10 s"
    broken.failed(proofs[0])
    assert broken.obstacle == "circuit open after 5 failures, next try in 10 s"


def test_whichever_of_several_proofs_begins_first_lets_others_in(broken, clock):
    clock.now += FIRST_SECONDS
    first = broken.enter(uuid4())
    clock.now += PROOF_SECONDS
    broken.enter(uuid4())
    broken.began(first)
    assert broken.obstacle == ""
