"""What a request adds to its replica's load, and what it teaches of the replica."""

from __future__ import annotations

from uuid import uuid4

from gateway.runtime.engines import CHUNK_TOKENS, FIRST_SECONDS, RUNNING_TOKENS, Breaker, EngineEntry, Flight
from inference.errors import EngineError
from inference.types import Health
from routing.catalogue import DeploymentEntry, NodeEntry, ReplicaEntry

FAILED = EngineError("no")


def make_entry():
    deployment = DeploymentEntry(uuid4(), "d", "m", "fake", "", {})
    return EngineEntry(deployment, ReplicaEntry(uuid4(), NodeEntry("n")), spec=None, engine=None)


def test_load_is_uncached_tokens_until_the_prompt_is_computed_and_then_little():
    entry = make_entry()
    first, second = Flight(entry, 1000, uuid4(), matched=640), Flight(entry, 100, uuid4())
    assert entry.load == 360 + 100 + 2 * RUNNING_TOKENS
    first.started(640)
    assert entry.load == 100 + 2 * RUNNING_TOKENS
    for flight in (first, second, first, second):
        flight.close()
    assert (entry.load, entry.requests, entry.uncached) == (0, 0, 0)


def test_requests_of_other_gateways_count_by_the_engines_own_number():
    entry = make_entry()
    entry.health = Health(ready=True, running=3, waiting=2)
    assert entry.load == 5 * RUNNING_TOKENS
    flight = Flight(entry, 0, uuid4())
    assert entry.load == 5 * RUNNING_TOKENS, "ours is among them"
    flight.close()


def test_answer_that_found_less_in_the_cache_corrects_the_index():
    entry = make_entry()
    chunks = tuple(bytes([number]) for number in range(4))
    Flight(entry, 1000, uuid4(), prefix=chunks[:2]).close()
    Flight(entry, 1000, uuid4(), prefix=(b"other",)).close()
    flight = Flight(entry, 1000, uuid4(), matched=2 * CHUNK_TOKENS, prefix=chunks)
    flight.started(0)
    assert entry.prefixes.matched(chunks) == 4, "now it has them"
    assert entry.prefixes.matched((b"other",)) == 1, "used later than what was gone"
    again = Flight(entry, 1000, uuid4(), matched=4 * CHUNK_TOKENS, prefix=chunks)
    again.started(0)
    assert entry.prefixes.matched((b"other",)) == 0, "as old as what was gone"
    again.close()
    flight.close()


def test_a_failure_that_is_the_engines_opens_its_breaker():
    entry = make_entry()
    entry.health = Health(ready=True)
    for _ in range(3):
        flight = Flight(entry, 10, uuid4())
        flight.ended(FAILED)
        flight.close()
    assert entry.obstacle.startswith("circuit open")


def test_a_failure_of_what_was_sent_before_lets_no_second_request_prove_the_engine():
    now = 0.0
    entry = make_entry()
    entry.health, entry.breaker = Health(ready=True), Breaker(lambda: now)
    flights = [Flight(entry, 10, uuid4()) for _ in range(4)]
    for flight in flights[:3]:
        flight.ended(FAILED)
    now = FIRST_SECONDS
    proof = Flight(entry, 10, uuid4())
    flights[3].ended(FAILED)
    flights[3].close()
    assert entry.obstacle == "circuit half-open: a request is proving it"
    proof.ended(FAILED)
    Flight(entry, 10, uuid4()).ended(FAILED)
    assert entry.obstacle.endswith(f"in {2 * FIRST_SECONDS:.0f} s")
    proof.close()
