"""The threads of the data plane's reads: bounded, since clients decide how often they ask."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connection

from base.database.threads import DatabaseThreads, ThreadConnections
from base.errors import DatabaseBusyError
from base.ids import uuid7
from gateway.errors.faults import refusal_of
from gateway.http import callers
from tests.gateway.apis.client import ask
from tests.gateway.apis.server import with_runtime
from tests.gateway.world import in_database, make_world, opened


async def test_more_calls_than_may_wait_are_refused_and_a_place_is_free_again_afterwards():
    threads = DatabaseThreads(1, most=2)
    go = threading.Event()
    first, second = (asyncio.ensure_future(threads.run(lambda: go.wait(120))) for _ in range(2))
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


async def test_one_tenant_gets_a_quarter_of_the_places():
    threads, go = DatabaseThreads(1, most=8), threading.Event()
    greedy, other = uuid7(), uuid7()
    waiting = [asyncio.ensure_future(threads.run(lambda: go.wait(120), owner=greedy)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(DatabaseBusyError, match="your requests"):
        await threads.run(lambda: None, owner=greedy)
    waiting += [asyncio.ensure_future(threads.run(lambda: True, owner=whose)) for whose in (other, None)]
    await asyncio.sleep(0)
    assert threads.calls == 4
    go.set()
    assert all(await asyncio.gather(*waiting))
    assert await threads.run(lambda: 7, owner=greedy) == 7  # its places are free again
    threads.close()


async def test_tenants_that_wait_are_answered_in_turn():
    threads, go, order = DatabaseThreads(1), threading.Event(), []
    much, little = uuid7(), uuid7()
    waiting = [asyncio.ensure_future(threads.run(lambda: go.wait(120)))]
    calls = [*[(much, number) for number in range(3)], (little, 3), (None, 4)]
    for owner, number in calls:
        waiting.append(asyncio.ensure_future(threads.run(partial(order.append, number), owner=owner)))
    await asyncio.sleep(0)
    waiting[2].cancel()
    await asyncio.gather(waiting[2], return_exceptions=True)
    go.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == [0, 3, 4, 2]
    threads.close()


READS = ["files", "files/file-0", "batches", "responses/{}", "responses/{}/input_items", "adapters", "usage/{}"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", READS)
async def test_reads_of_one_tenant_leave_places_to_others(path, tmp_path):
    worlds = await in_database(lambda: [make_world(), make_world()])
    go, path = threading.Event(), f"/v1/{path}".format(f"resp_{uuid7().hex}").replace("file-0", f"file-{uuid7().hex}")
    async with opened(tmp_path) as runtime:
        app = with_runtime(runtime)
        before = [(await ask(app, path, method="GET", key=world.secret)).status for world in worlds]
        size = runtime.threads._most // 4
        waits = [runtime.threads.run(lambda: go.wait(120), owner=worlds[0].tenant.id) for _ in range(size)]
        waiting = [asyncio.ensure_future(wait) for wait in waits]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(120):
                refused = await ask(app, path, method="GET", key=worlds[0].secret)
            other = asyncio.ensure_future(ask(app, path, method="GET", key=worlds[1].secret))
            await asyncio.sleep(0.01)
        finally:
            go.set()
        assert all(await asyncio.gather(*waiting))
        assert (refused.status, refused.json()["error"]["code"]) == (503, "database_unavailable")
        assert (await other).status == before[1]


async def test_each_message_of_a_signed_in_user_is_looked_up_in_their_share(monkeypatch):
    user, owners = uuid7(), []
    monkeypatch.setattr(callers, "_user_of", lambda _: user)

    async def run(function, *, owner=None):
        owners.append(owner)
        return function()

    runtime = SimpleNamespace(threads=SimpleNamespace(run=run))
    caller = await callers.SessionCaller.enter(runtime, "session", project=None)
    await caller.user()
    assert owners == [None, user]


async def test_a_connection_that_fails_to_close_is_told_to_the_caller_and_holds_no_place(monkeypatch):
    def fail(_):
        raise OperationalError("lost")

    monkeypatch.setattr(ThreadConnections, "rest", fail)
    threads = DatabaseThreads(1, most=1)
    for _ in range(2):
        with pytest.raises(OperationalError, match="lost"):
            await threads.run(lambda: 1)
    threads.close()


@pytest.mark.django_db(transaction=True)
async def test_between_two_calls_sqlite_s_connection_stays_open_unless_it_failed():
    threads = DatabaseThreads(1)

    def opened():
        connection.ensure_connection()
        return connection.connection

    def failed():
        connection.errors_occurred = True
        return opened()

    first, second, third = [await threads.run(one) for one in (opened, failed, opened)]
    threads.close()
    if connection.vendor == "sqlite":
        assert first is second
        assert third is not second or connection.is_in_memory_db()
