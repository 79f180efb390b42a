"""Celery reaches the same Redis as everything else, and as safely."""

from __future__ import annotations

import ssl

import pytest
from kombu import Connection
from redis.connection import SSLConnection, UnixDomainSocketConnection, parse_url

from gateway.broker.redis import broker_url


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
    ],
)
def test_it_is_the_same_server_database_and_user(address):
    ours, found = parse_url(address), connection_to(broker_url(address))
    for name, least in (("host", None), ("path", None), ("db", 0), ("username", None), ("password", None)):
        assert found.get(name, least) == ours.get(name, least), name
    assert found.get("port", 6379) == ours.get("port", 6379)
    assert issubclass(found["connection_class"], UnixDomainSocketConnection) == address.startswith("unix")


def test_a_certificate_is_checked():
    assert connection_to("rediss://h/0")["ssl_cert_reqs"] == ssl.CERT_NONE  # kombu's own default
    found = connection_to(broker_url("rediss://h/0?ssl_ca_certs=/etc/ca.pem"))
    assert found["ssl_ca_certs"] == "/etc/ca.pem"
    assert issubclass(found["connection_class"], SSLConnection)
    assert found["ssl_cert_reqs"] == ssl.CERT_REQUIRED
