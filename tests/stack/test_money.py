"""Every charge is the engine's word, whatever clients do: on SQLite and on PostgreSQL, against real processes."""

from __future__ import annotations

import asyncio

import pytest

from tests.stack.clients import mixed_jobs, run_jobs
from tests.stack.conftest import running_stack

pytestmark = [pytest.mark.money, pytest.mark.stack, pytest.mark.slow]


@pytest.fixture(scope="module")
def stack():
    with running_stack(chat={"step_seconds": 0.001}) as running:
        yield running
        assert running.stop() == 0, "".join(running.said[-40:])


def assert_books_balance(found):
    """Σ usage = Σ ledger = Σ recomputed from the engine's own records; nothing held, nobody below zero."""
    assert found["usage_sum"] == found["ledger_sum"] == found["recomputed_sum"]
    engine = {request: usage for request, usage in found["engine"].items() if usage}
    charged = {request: record["classes"] for request, record in found["usage"].items() if record["classes"]}
    assert charged == engine
    assert found["holds"] == 0
    assert all(wallet["held"] == 0 <= wallet["posted"] for wallet in found["wallets"].values())


def test_300_mixed_requests_with_clients_that_leave(stack):
    keys = [tenant["key"] for tenant in stack.tenants.values()]
    before = stack.audit()
    answers = asyncio.run(run_jobs(stack.base_url, mixed_jobs(keys, 300)))
    statuses = {answer.status for answer in answers}
    assert statuses == {0, 200}, [answer.body for answer in answers if answer.status not in {0, 200}][:3]
    found = stack.audit()
    assert_books_balance(found)
    told = sum(answer.credits_micro for answer in answers if answer.status == 200)
    left = {request: record["charge"] for request, record in found["usage"].items()}
    assert told <= found["usage_sum"] - before["usage_sum"] == sum(left.values()) - before["usage_sum"]
    assert all(answer.credits_micro is not None for answer in answers if answer.status == 200)
    assert sum(1 for answer in answers if answer.status == 0) > 50, "the clients must really leave"
