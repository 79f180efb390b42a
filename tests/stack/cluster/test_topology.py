"""Everything past one machine at once: charges are still the engines' own word, and nothing stays held."""

from __future__ import annotations

import asyncio

import pytest

from tests.stack.clients import KINDS, REMOTE_KINDS, mixed_jobs, run_jobs, whole
from tests.stack.stack import assert_books_are_right

pytestmark = [pytest.mark.stack, pytest.mark.slow]

REQUESTS, CONCURRENCY, SEED = 500, 32, 7


def new(found, before, name):
    """What was found under the name and wasn't before: other tests' requests, whose processes they killed, are not."""
    return {request: row for request, row in found[name].items() if request not in before[name]}


def test_500_mixed_requests_of_three_tenants_whose_clients_leave(cluster, stack):
    before, tracebacks = cluster.settled(), cluster.said().count("Traceback")
    sizes = [path.stat().st_size for path in stack.records]
    keys = [tenant["key"] for tenant in stack.tenants.values()]
    jobs = mixed_jobs(keys, REQUESTS, SEED, [*KINDS, *REMOTE_KINDS])
    answers = asyncio.run(run_jobs(stack.base_url, jobs, CONCURRENCY))
    answered = whole(answers)
    assert sum(answer.status == 0 for answer in answers) > 80, "the clients must really leave"

    found = cluster.settled()
    assert_books_are_right(found)
    usage, engine, foreign = (new(found, before, name) for name in ("usage", "engine", "foreign"))

    # Our own workers: every request to the token, also of those who left.
    ours = {name: row["classes"] for name, row in usage.items() if row["classes"] and row["model"] != "remote-chat"}
    assert ours == {request: classes for request, classes in engine.items() if classes}
    # The foreign server goes on until it notices that a client left: what had arrived is charged.
    # It may not have begun with one whose client left at once, but was sent it: the prompt, an estimate, is charged.
    theirs = {request: row for request, row in usage.items() if row["model"] == "remote-chat"}
    assert foreign.keys() <= theirs.keys()
    # Of one whose client left before it was sent, nothing is charged.
    unsent = {request for request, row in theirs.items() if not row["classes"] and request not in foreign}
    assert all(usage[request]["charge"] == 0 for request in unsent)
    apart = {request for request, row in theirs.items() if row["finish"] == "cancelled" or not row["exact"]}
    assert {name: row["classes"] for name, row in theirs.items() if name not in apart | unsent} == {
        name: ran for name, ran in foreign.items() if name not in apart
    }
    for request in apart:
        charged = theirs[request]["classes"]
        ran = foreign.get(request, {"input": charged.get("input", 0), "output": 0})
        assert all(count <= ran.get(name, 0) for name, count in charged.items()), (request, theirs[request], ran)
    agreed = [row for request, row in usage.items() if request not in apart]
    listed = sum(usage[request]["charge"] for request in apart)
    assert sum(row["engine_charge"] for row in agreed) + listed == found["ledger_sum"] - before["ledger_sum"]
    print(f"{len(agreed)} as the engines counted; apart {len(apart)} foreign ones left in the middle, {listed} µcr")

    told = sum(answer.credits_micro for answer in answered)
    assert told <= found["usage_sum"] - before["usage_sum"]
    for path, size in zip(stack.records, sizes, strict=True):
        assert path.stat().st_size > size + 1000, "both workers must have had work"
    cluster.wait_until(lambda: cluster.leases() == 0, "a lease is left")
    assert cluster.said().count("Traceback") == tracebacks
