"""Every charge is the engine's word, whatever clients do, on SQLite: on PostgreSQL in `cluster/test_topology.py`."""

from __future__ import annotations

import asyncio

import pytest

from tests.stack.clients import mixed_jobs, run_jobs, whole
from tests.stack.stack import assert_books_are_right

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def test_300_mixed_requests_with_clients_that_leave(stack):
    keys = [tenant["key"] for tenant in stack.tenants.values()]
    before = stack.audit()
    answers = asyncio.run(run_jobs(stack.base_url, mixed_jobs(keys, 300)))
    answered = whole(answers)
    found = stack.audit()
    assert_books_are_right(found)
    engine = {request: usage for request, usage in found["engine"].items() if usage}
    assert {request: row["classes"] for request, row in found["usage"].items() if row["classes"]} == engine
    assert all(answer.credits_micro is not None for answer in answered)
    assert sum(answer.credits_micro for answer in answered) <= found["usage_sum"] - before["usage_sum"]
    assert sum(1 for answer in answers if answer.status == 0) > 50, "the clients must really leave"
