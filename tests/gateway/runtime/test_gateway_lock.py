"""One gateway for a database, whatever its home; a lock that may be lost stops new requests until it is ours again."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from django.conf import settings
from django.db import connection

from base.ids import uuid7
from gateway.bootstrap import open_runtime
from gateway.errors.refusal import Refusal
from gateway.generation.generation import start_generation
from gateway.runtime import gateway_lock
from gateway.runtime.gateway_lock import FileLock, GatewayRunningError, SessionLock
from tests.gateway.doubles import collect, make_intent
from tests.gateway.world import in_database, make_world, opened, principal_of
from tests.waiting import until

pytestmark = [pytest.mark.contract, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(gateway_lock, "TRY_SECONDS", 0.01)
    monkeypatch.setattr(gateway_lock, "CHECK_SECONDS", 0.01)


async def test_second_gateway_on_a_database_is_refused_and_says_who_has_it(tmp_path):
    await in_database(make_world)
    async with opened(tmp_path / "one") as runtime:
        with pytest.raises(GatewayRunningError, match="already served by"):
            await open_runtime()
        assert runtime.requests.has_lock
    async with opened(tmp_path / "two") as runtime:
        assert runtime.engines.any_ready()


def test_lock_is_on_the_database_and_not_on_a_way_to_it(tmp_path):
    database, link = tmp_path / "a.sqlite3", tmp_path / "elsewhere" / "b.sqlite3"
    database.touch()
    link.parent.mkdir()
    link.symlink_to(database)
    first = FileLock.take(database)
    with pytest.raises(GatewayRunningError, match="process"):
        FileLock.take(link)
    first.release()
    FileLock.take(link).release()


async def test_gateway_whose_lock_another_one_has_takes_no_requests_until_it_is_its_own_again(tmp_path):
    if settings.SLUICE_EMBEDDED:
        pytest.skip("a lock on a file can't be lost")
    world = await in_database(make_world)
    async with opened(tmp_path) as runtime:
        principal = await principal_of(runtime, world)
        other = SessionLock(connection.settings_dict, uuid7())
        await in_database(end_session_of, runtime.requests.incarnation)
        while not other.is_held:
            await in_database(end_session_of, runtime.requests.incarnation)
            await other._attempt()
        await until(lambda: not runtime.requests.has_lock)
        with pytest.raises(Refusal) as caught:
            await start_generation(runtime, principal, make_intent(), uuid7())
        assert (caught.value.status, caught.value.code) == (503, "gateway_lock_lost")
        assert (await runtime.readiness())["server"] == "the lock of the database is lost"
        await other.close()
        await until(lambda: runtime.requests.has_lock)
        await collect(await start_generation(runtime, principal, make_intent(), uuid7()))


@pytest.fixture
def sharing():
    """A way to take the lock as a gateway with Redis does; what it took is released."""
    if settings.SLUICE_EMBEDDED:
        pytest.skip("SQLite has one gateway")

    @asynccontextmanager
    async def take(*, is_shared=True):
        lock = await gateway_lock.take_lock(connection.settings_dict, uuid7(), is_shared=is_shared)
        try:
            yield lock
        finally:
            await lock.close()

    return take


async def test_gateways_with_redis_share_the_lock_and_know_how_many_they_are(sharing):
    async with sharing() as first:
        assert first.gateways == 1
        async with sharing() as second:
            assert second.gateways == 2
            keeping = asyncio.create_task(first.keep())
            await until(lambda: first.gateways == 2)
            assert {first.rank, second.rank} == {0, 1}, "no two take the same part of what they share"
        await until(lambda: first.gateways == 1)
        assert first.rank == 0
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def test_gateway_without_redis_is_refused_beside_one_with_it_and_the_other_way_round(sharing):
    async with sharing():
        with pytest.raises(GatewayRunningError, match="Without REDIS_URL a database takes one gateway"):
            async with sharing(is_shared=False):
                pass
    async with sharing(is_shared=False):
        with pytest.raises(GatewayRunningError, match="That one has no REDIS_URL"):
            async with sharing():
                pass


async def test_shared_lock_that_was_lost_is_taken_again(sharing):
    async with sharing() as lock, sharing() as other:
        keeping = asyncio.create_task(lock.keep())
        lock._session.pgconn.finish()
        await until(lambda: not lock.is_held)
        await until(lambda: lock.is_held and lock.gateways == 2)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        assert other.is_held


def test_sqlite_has_one_gateway_with_redis_too(tmp_path):
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "a.sqlite3")}
    first = asyncio.run(gateway_lock.take_lock(database, uuid7(), is_shared=True))
    with pytest.raises(GatewayRunningError):
        asyncio.run(gateway_lock.take_lock(database, uuid7(), is_shared=True))
    asyncio.run(first.close())


def end_session_of(incarnation):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s",
            [f"sluice % lock {incarnation}"],
        )


async def test_session_that_went_deaf_is_ended_and_the_lock_taken_anew():
    """The server doesn't know that nobody hears the session any more, so it would keep the lock for hours."""
    if settings.SLUICE_EMBEDDED:
        pytest.skip("a lock on a file can't be lost")
    lock = SessionLock(connection.settings_dict, uuid7())
    await lock.take()
    deaf, lock._session, lock.is_held = lock._session, None, False
    keeping = asyncio.create_task(lock.keep())
    await until(lambda: lock.is_held)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await lock.close()
    await deaf.close()


async def test_keeping_ends_when_it_is_cancelled_as_a_look_ends(monkeypatch):
    """On Python 3.11 `asyncio.wait_for` answers such a cancel with what it waited for, and the loop would go on."""
    monkeypatch.setattr(gateway_lock, "CHECK_SECONDS", 0)
    lock = SessionLock({}, uuid7(), is_shared=True)
    lock.is_held, lock._session = True, object()
    looked = asyncio.Event()

    async def count(session):
        looked.set()

    monkeypatch.setattr(lock, "_count", count)
    keeping = asyncio.create_task(lock.keep())
    await looked.wait()
    keeping.cancel()
    done, _ = await asyncio.wait({keeping}, timeout=10)
    assert done
    assert keeping.cancelled()
