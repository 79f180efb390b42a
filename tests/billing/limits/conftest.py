"""A real redis-server for the stores that use one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.redis import RedisServer


@pytest.fixture(scope="package")
def _redis_server() -> Iterator[RedisServer]:
    server = RedisServer.start()
    yield server
    server.stop()


@pytest.fixture
def redis_server(_redis_server) -> RedisServer:
    """An empty server that runs; a test may end it."""
    if _redis_server.process is None:
        _redis_server.start_again()
    _redis_server.flush()
    return _redis_server
