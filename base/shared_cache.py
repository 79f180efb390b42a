"""Django's cache, in which sign-ins and calls of the management API are counted: in Redis for all gateways together."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import structlog
from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache
from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.redis import RedisCache
from redis.exceptions import RedisError

AGAIN_SECONDS = 1.0  # between two looks at a Redis that is lost

log = structlog.get_logger(__name__)


class JSONSerializer:
    """Values in JSON: whoever writes to Redis could have the pickles that Django makes run anything."""

    def dumps(self, value: Any) -> str:
        """Return the value as it is stored; Redis counts whole numbers on."""
        return json.dumps(value)

    def loads(self, stored: bytes) -> Any:
        """Return the stored value."""
        return json.loads(stored)


class _Server:
    """A Redis with its connections, and until when it is taken to be lost: the same for all requests of the process."""

    def __init__(self, server: list[str], params: dict[str, Any]) -> None:
        options = {**params.get("OPTIONS", {}), "serializer": JSONSerializer()}
        self.cache = RedisCache(server, {**params, "OPTIONS": options})
        self.lost_until = 0.0


_servers: dict[tuple[str, ...], _Server] = {}


class SharedCache(BaseCache):
    """A cache in Redis; while Redis is lost, one of this process's own: who signs in then is counted by it alone.

    Django makes one for each request.
    """

    def __init__(self, server: list[str], params: dict[str, Any]) -> None:
        super().__init__(params)
        known = tuple(server)
        if known not in _servers:
            _servers[known] = _Server(server, params)
        self._server = _servers[known]
        self._own = LocMemCache(server[0], {**params, "OPTIONS": {"MAX_ENTRIES": 100_000}})

    def add(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Store a value that isn't there yet."""
        return bool(self._ask(lambda cache: cache.add(key, value, timeout, version)))

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        """Return a value."""
        return self._ask(lambda cache: cache.get(key, default, version))

    def set(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> None:
        """Store a value."""
        self._ask(lambda cache: cache.set(key, value, timeout, version))

    def touch(self, key: str, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Keep a value for longer."""
        return bool(self._ask(lambda cache: cache.touch(key, timeout, version)))

    def delete(self, key: str, version: int | None = None) -> bool:
        """Forget a value."""
        return bool(self._ask(lambda cache: cache.delete(key, version)))

    def incr(self, key: str, delta: int = 1, version: int | None = None) -> int:
        """Count on from a number, from 0 where Redis was lost since it was stored, or came back."""

        def counted(cache: BaseCache) -> int:
            cache.add(key, 0, version=version)
            return int(cache.incr(key, delta, version))

        return int(self._ask(counted))

    def clear(self) -> None:
        """Forget what is this process's own."""
        self._own.clear()

    def _ask(self, call: Callable[[BaseCache], Any]) -> Any:
        if time.monotonic() >= self._server.lost_until:
            try:
                return call(self._server.cache)
            except RedisError as error:
                self._server.lost_until = time.monotonic() + AGAIN_SECONDS
                log.warning("limits_not_shared", error=type(error).__name__)
        return call(self._own)
