"""The threads of the data plane's reads: bounded, since clients decide how often they ask."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gateway.database.threads import DatabaseThreads
from gateway.errors.faults import refusal_of
from gateway.errors.service import DatabaseBusyError


async def test_more_calls_than_may_wait_are_refused_and_a_place_is_free_again_afterwards():
    threads = DatabaseThreads(1, most=2)
    go = threading.Event()
    first, second = (asyncio.ensure_future(threads.run(lambda: go.wait(10))) for _ in range(2))
    await asyncio.sleep(0)
    with pytest.raises(DatabaseBusyError) as refused:
        await threads.run(lambda: None)
    answer = refusal_of(refused.value)
    assert answer is not None
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "database_unavailable", "1")
    second.cancel()  # had not begun, so it takes no place any more
    await asyncio.gather(second, return_exceptions=True)
    go.set()
    assert await first
    assert await threads.run(lambda: 7) == 7
    threads.close()
