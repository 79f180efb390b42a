"""Everything past one machine at once: charges are still the engines' own word, and nothing stays held."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.stack.clients import KINDS, REMOTE_KINDS, mixed_jobs, run_jobs
from tests.stack.topology import NODE, running_topology

pytestmark = [pytest.mark.money, pytest.mark.stack, pytest.mark.slow]

REQUESTS, CONCURRENCY, SEED = 500, 32, 7


@pytest.fixture(scope="module")
def topology():
    if not os.environ.get("DATABASE_URL"):
        pytest.skip("several gateways need PostgreSQL")
    with running_topology(chat={"step_seconds": 0.001}) as running:
        yield running
        assert running.stack.stop() == 0, running.said()[-8000:]
        assert "Traceback" not in running.said()


def test_500_mixed_requests_of_three_tenants_whose_clients_leave(topology):
    keys = [tenant["key"] for tenant in topology.stack.tenants.values()]
    jobs = mixed_jobs(keys, REQUESTS, SEED, [*KINDS, *REMOTE_KINDS])
    answers = asyncio.run(run_jobs(topology.stack.base_url, jobs, CONCURRENCY))
    assert {answer.status for answer in answers} == {0, 200}, [one for one in answers if one.status not in {0, 200}][:3]
    assert sum(answer.status == 0 for answer in answers) > 80, "the clients must really leave"

    found = topology.settled()
    usage, engine, foreign = found["usage"], found["engine"], found["foreign"]
    assert found["holds"] == 0
    assert found["usage_sum"] == found["ledger_sum"] == found["recomputed_sum"]
    assert all(wallet["held"] == 0 <= wallet["posted"] for wallet in found["wallets"].values())

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
    assert sum(row["engine_charge"] for row in agreed) + listed == found["ledger_sum"]
    print(f"{len(agreed)} as the engines counted; apart {len(apart)} foreign ones left in the middle, {listed} µcr")

    told = sum(answer.credits_micro for answer in answers if answer.status == 200)
    assert told <= found["usage_sum"]
    assert all(both_worked(topology).values()), "both workers must have had work"
    topology.wait_until(lambda: topology.leases() == 0, "a lease is left")


def both_worked(topology):
    homes = {"local": topology.stack.home, NODE: topology.far_home}
    return {node: (home / f"worker-{node}.record").stat().st_size > 1000 for node, home in homes.items()}
