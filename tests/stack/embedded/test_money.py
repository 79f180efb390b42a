"""Every charge is the engine's word, whatever clients do, on SQLite: on PostgreSQL in `cluster/test_topology.py`."""

from __future__ import annotations

import asyncio

import pytest

from tests.stack.clients import mixed_jobs, run_jobs
from tests.stack.stack import assert_books_are_right

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def test_300_mixed_requests_with_clients_that_leave(stack):
    keys = [tenant["key"] for tenant in stack.tenants.values()]
    before = stack.audit()
    answers = asyncio.run(run_jobs(stack.base_url, mixed_jobs(keys, 300)))
    statuses = {answer.status for answer in answers}
    assert statuses == {0, 200}, [answer.body for answer in answers if answer.status not in {0, 200}][:3]
    found = stack.audit()
    assert_books_are_right(found)
    engine = {request: usage for request, usage in found["engine"].items() if usage}
    assert {request: row["classes"] for request, row in found["usage"].items() if row["classes"]} == engine
    told = sum(answer.credits_micro for answer in answers if answer.status == 200)
    assert told <= found["usage_sum"] - before["usage_sum"]
    assert all(answer.credits_micro is not None for answer in answers if answer.status == 200)
    assert sum(1 for answer in answers if answer.status == 0) > 50, "the clients must really leave"
