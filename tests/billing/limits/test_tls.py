"""Redis as it is set up where others are on the network: TLS, a user of its own, a database that isn't the first."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError  # noqa: A004 - redis-py's name

from billing.limits.redis.connection import RedisConnection
from billing.limits.redis.store import SCRIPTS, RedisRateStore
from billing.limits.redis.wire import Command, Wire
from billing.limits.types import Bucket, Take, Taken
from tests.services.ports import lease_port
from tests.services.proxies import certificate
from tests.services.redis import RedisServer

ALL = ("~*", "&*")
USERS = ("--user", "default", "on", "nopass", *ALL, "+ping", "--user", "sluice", "on", ">secret", *ALL, "+@all")


@pytest.fixture(scope="module")
def guarded():
    """A server that takes the user "sluice" over TLS; yields its TLS port and its certificate's file."""
    folder, port = Path(tempfile.mkdtemp(prefix="sluice-redis-", dir="/tmp")), lease_port()
    certificate(folder)
    files = ("--tls-cert-file", f"{folder}/sluice.crt", "--tls-key-file", f"{folder}/sluice.key")
    tls = ("--tls-port", str(port), *files, "--tls-ca-cert-file", f"{folder}/sluice.crt", "--tls-auth-clients", "no")
    server = RedisServer(folder, lease_port(), (*tls, *USERS))
    server.start_again()
    yield port, folder / "sluice.crt"
    server.stop()


def address(guarded, user="sluice:secret", query="?ssl_ca_certs={}"):
    port, file = guarded
    return f"rediss://{user}@127.0.0.1:{port}/3" + query.format(file)


async def test_limits_are_counted_over_tls_as_a_user_of_its_own(guarded):
    connection = RedisConnection(address(guarded), SCRIPTS, 5.0)
    await connection.open()
    try:
        assert connection.is_up
        store = RedisRateStore(connection)
        bucket = Bucket("test:guarded", "requests", limit=2, period_us=3_600_000_000, burst=2)
        taken = [isinstance(await store.take([Take(bucket, 1)]), Taken) for _ in range(3)]
        assert taken == [True, True, False]
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("user", "query", "said"),
    [
        ("sluice:secret", "", "certificate verify failed"),
        ("sluice:wrong", "?ssl_ca_certs={}", "invalid username-password pair"),
    ],
)
async def test_a_redis_that_refuses_or_cannot_prove_itself_is_named(guarded, capsys, user, query, said):
    connection = RedisConnection(address(guarded, user, query), SCRIPTS, 5.0)
    changes = []
    connection.on_change = changes.append
    await connection.open()
    try:
        assert not connection.is_up
        assert changes == [False]
        told = "".join(capsys.readouterr())
        assert "redis_unreachable" in told
        assert said.casefold() in told.casefold()
        assert "secret" not in told
        assert "sluice:wrong" not in told
    finally:
        await connection.close()


async def test_a_connection_that_is_given_up_while_it_opens_is_closed_at_once(guarded, monkeypatch):
    """TLS says goodbye first: a loop that ended right after left the socket open."""
    sockets, is_asking = [], asyncio.Event()

    class Seen(Wire):
        def __init__(self, connection, on_loss):
            sockets.append(connection._writer.get_extra_info("socket"))
            super().__init__(connection, on_loss)

    def greeting():
        is_asking.set()
        yield [Command("BLPOP", "nothing", "0")]

    monkeypatch.setattr("billing.limits.redis.connection.Wire", Seen)
    connection = RedisConnection(address(guarded), SCRIPTS, 5.0)
    connection.greeting = greeting
    opening = asyncio.create_task(connection.open())
    await is_asking.wait()
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    assert [socket.fileno() for socket in sockets] == [-1]
    await connection.close()


async def test_a_connection_that_is_lost_in_its_greeting_is_closed_before_that_is_told(guarded, monkeypatch):
    """redis-py closes it without waiting, and forgets it: TLS says goodbye in a later turn of the loop."""
    sockets = []

    async def lost(self, **_):
        sockets.append(self._writer.get_extra_info("socket"))
        await self.disconnect(nowait=True)
        raise ConnectionError("Connection closed by server.")

    monkeypatch.setattr(AbstractConnection, "on_connect_check_health", lost)
    connection = RedisConnection(address(guarded), SCRIPTS, 5.0)
    await connection.open()
    assert not connection.is_up
    assert [socket.fileno() for socket in sockets] == [-1]
    await connection.close()
