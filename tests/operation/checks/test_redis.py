"""What the check of Redis finds."""

from __future__ import annotations

import pytest
from django.conf import settings as configured

from operation.checks import services

pytestmark = [pytest.mark.contract, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _configured(redis_server, settings):
    settings.REDIS_URL = redis_server.url


def findings():
    return {finding.subject or "redis": finding for finding in services._redis(None)}


def test_a_redis_that_answers_and_forgets_nothing_is_fine():
    found = findings()
    assert found["redis"].is_fine
    assert "noeviction" in found["redis"].text
    if not configured.SLUICE_EMBEDDED:
        assert found["gateways"].is_fine
        assert found["gateways"].text.startswith("0 serve")


def test_a_redis_that_evicts_is_a_limit_forgotten(redis_server):
    redis_server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        assert "noeviction" in findings()["redis"].mend
    finally:
        redis_server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


def test_a_redis_that_is_gone_is_said_with_what_limits_are_meanwhile(redis_server):
    redis_server.kill()
    assert "share of the limits" in findings()["redis"].mend


def test_a_redis_that_answers_and_writes_nothing_is_said(redis_server):
    redis_server.ask("CONFIG", "SET", "maxmemory", "1")
    try:
        found = findings()["redis"]
        assert "used memory > 'maxmemory'" in found.text
        assert "share of the limits" in found.mend
    finally:
        redis_server.ask("CONFIG", "SET", "maxmemory", "0")


def test_a_gateway_that_does_not_listen_at_this_redis_is_said(monkeypatch):
    if configured.SLUICE_EMBEDDED:
        pytest.skip("SQLite has one gateway")
    monkeypatch.setattr(services, "count_gateways", lambda _: 2)
    assert "give every gateway of this database this REDIS_URL" in findings()["gateways"].mend


def test_without_redis_nothing_is_said(settings):
    settings.REDIS_URL = ""
    assert findings() == {}
