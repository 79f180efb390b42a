"""Limits of sign-ins and of the management API, counted by several gateways."""

from __future__ import annotations

import pytest
from django.test import Client
from rest_framework.throttling import SimpleRateThrottle

from base import shared_cache
from base.shared_cache import SharedCache
from tests.services.redis import RedisServer

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def redis():
    server = RedisServer.start()
    yield server
    server.stop()


@pytest.fixture
def gateways(redis):
    redis.ask("FLUSHALL")
    options = {"socket_timeout": 5.0, "socket_connect_timeout": 5.0}
    # By two addresses of one Redis, since what is a process's own goes by the address.
    urls = (redis.url, f"{redis.url}?db=0")
    made = [SharedCache([url], {"KEY_PREFIX": "sluice", "OPTIONS": options}) for url in urls]
    yield made
    for cache in made:
        cache.clear()


def test_what_one_gateway_counts_the_other_knows(gateways):
    one, other = gateways
    assert one.add("failures", 0, 60)
    assert not other.add("failures", 0, 60)
    assert [cache.incr("failures") for cache in (one, other, one)] == [1, 2, 3]
    one.set("history", [12.5, 11.25], 60)
    assert other.get("history") == [12.5, 11.25]
    assert other.delete("history")
    assert one.get("history", "none") == "none"


def test_whoever_asks_gateways_in_turn_has_one_limit_and_the_bystander_another(gateways, settings, monkeypatch):
    """Each gateway counted for itself, so that N of them let N times as many guesses in."""
    settings.SLUICE_API_RATE_ADDRESS = "4/minute"

    def ask(address, gateway):
        monkeypatch.setattr(SimpleRateThrottle, "cache", gateways[gateway])
        guesser = Client(REMOTE_ADDR=address, headers={"authorization": "Bearer sk-sluice-guess"})
        return guesser.get("/api/v1/keys/").status_code

    assert [ask("192.0.2.1", number % 2) for number in range(6)] == [401] * 4 + [429] * 2
    assert [ask("192.0.2.2", number % 2) for number in range(2)] == [401] * 2


def test_while_redis_is_lost_each_gateway_counts_for_itself_and_nothing_fails(gateways, redis, monkeypatch):
    monkeypatch.setattr(shared_cache, "AGAIN_SECONDS", 0.0)
    one, other = gateways
    one.add("failures", 0, 60)
    redis.kill()
    try:
        assert [one.incr("failures"), one.incr("failures"), one.incr("failures")] == [1, 2, 3]
        one.set("history", [1.0], 60)
        assert one.get("history") == [1.0]
    finally:
        redis.start_again()
    assert one.get("history") is None
    assert other.incr("failures") == 1


def test_requests_share_connections_and_what_is_known_of_redis(redis, monkeypatch):
    """Django makes a cache for each request: each connected anew, and waited anew for a Redis that is lost."""
    one, other = [SharedCache([redis.url], {"OPTIONS": {}}) for _ in range(2)]
    assert one._server is other._server
