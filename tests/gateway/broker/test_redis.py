"""Celery reaches the same Redis as everything else, and as safely."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

import pytest
from kombu import Connection
from redis import ConnectionPool, Redis
from redis.connection import SSLConnection, UnixDomainSocketConnection, parse_url

from gateway.broker.redis import broker_url
from tests.services.ports import lease_port
from tests.services.redis import RedisServer

ALL = ("~*", "&*")
USERS = ("--user", "default", "on", "nopass", *ALL, "+ping", "--user", "sluice", "on", ">p@w/%", *ALL, "+@all")


@pytest.fixture
def guarded():
    """A server with a socket in its folder that lets the user "sluice" in, and others only ask for life."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-redis-", dir="/tmp"))
    server = RedisServer(folder, lease_port(), ("--unixsocket", str(folder / "socket"), *USERS))
    server.start_again()
    yield server
    server.stop()


def connection_to(address):
    """What kombu would connect with."""
    connection = Connection(address)
    transport = connection.create_transport()
    channel = object.__new__(transport.Channel)
    channel.connection = transport
    return channel._connparams()


@pytest.mark.parametrize(
    "address",
    [
        "redis://h",
        "redis://:pw@h:6380/3",
        "redis://u:p%40w@h:6380?db=4",
        "rediss://u:pw@h:6380/3",
        "unix:///run/redis.sock",
        "unix://u:pw@/run/redis.sock?db=2",
        "unix:///run/redis.sock?db=1&password=p%40%2Fw%25",
        "unix:///run/redis.sock?username=u%3A&password=pw",
        "unix://:first@/run/redis.sock?username=u&password=second",
        "redis://h:6380/3?username=u&password=p%40w",
        "redis://h/3?password=first&password=second&db=4&db=5",
        "rediss://h:6380?password=a%2Bb+c",
        "redis://h/1?socket_timeout=5&protocol=3",
    ],
)
def test_it_is_the_same_server_database_and_user(address):
    ours, found = parse_url(address), connection_to(broker_url(address))
    for name, least in (("host", None), ("path", None), ("db", 0), ("username", None), ("password", None)):
        assert found.get(name, least) == ours.get(name, least), name
    assert found.get("port", 6379) == ours.get("port", 6379)
    assert issubclass(found["connection_class"], UnixDomainSocketConnection) == address.startswith("unix")


@pytest.mark.parametrize("server", ["unix://{folder}/socket", "redis://127.0.0.1:{port}"])
def test_a_password_in_the_query_opens_the_server(guarded, server):
    """Celery was turned away at a socket, and couldn't even begin elsewhere."""
    address = server.format(folder=guarded.folder, port=guarded.port) + "?db=1&username=sluice&password=p%40w%2F%25"
    for pool in (ConnectionPool.from_url(address), ConnectionPool(**connection_to(broker_url(address)))):
        with Redis(connection_pool=pool) as client:
            assert client.dbsize() == 0
        pool.disconnect()


def test_a_certificate_is_checked():
    assert connection_to("rediss://h/0")["ssl_cert_reqs"] == ssl.CERT_NONE  # kombu's own default
    found = connection_to(broker_url("rediss://h/0?ssl_ca_certs=/etc/ca.pem"))
    assert found["ssl_ca_certs"] == "/etc/ca.pem"
    assert issubclass(found["connection_class"], SSLConnection)
    assert found["ssl_cert_reqs"] == ssl.CERT_REQUIRED
