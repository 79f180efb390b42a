"""Hints through Redis: "look now" instead of at the next poll. Nothing depends on one: each may be lost.

A process that changes what gateways cache publishes after its commit; each gateway listens, and reads the epoch at
once. The rate store's scripts publish when a lease may be had for which some wait.
"""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import Callable
from typing import Any

import structlog
from django.apps import apps
from django.conf import settings
from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from billing.limits.redis.store import LEASES_CHANNEL, PREFIX
from gateway.runtime.epoch_triggers import WATCHED

EPOCH_CHANNEL = f"{PREFIX}epoch"
QUIET_SECONDS = 30.0  # without a hint: the connection is made anew, since nobody tells when a peer has vanished
RETRY_SECONDS = 1.0
CONNECT_SECONDS = 1.0

log = structlog.get_logger(__name__)


class Hints:
    """Listens for hints until cancelled; `look` is called for the epoch's, `wake` with a leases' key."""

    def __init__(self, url: str, *, look: Callable[[], object], wake: Callable[[str], object]) -> None:
        self._url = url
        self._look = look
        self._wake = wake

    async def listen(self) -> None:
        """Pass hints on for ever; a connection that is lost is made anew."""
        while True:
            try:
                await self._listen_once()
            except (RedisError, OSError, TimeoutError) as error:
                log.info("no_hints", error=str(error) or type(error).__name__)
                await asyncio.sleep(RETRY_SECONDS)

    async def _listen_once(self) -> None:
        client = AsyncRedis.from_url(
            self._url,
            socket_timeout=None,
            socket_connect_timeout=CONNECT_SECONDS,
            retry=AsyncRetry(NoBackoff(), 0),
            client_name="sluice-hints",
        )
        async with client, client.pubsub(ignore_subscribe_messages=True) as subscription:
            async with asyncio.timeout(CONNECT_SECONDS):
                await subscription.subscribe(EPOCH_CHANNEL, LEASES_CHANNEL)
            self._look()  # what was published before went past us
            async with asyncio.timeout(QUIET_SECONDS) as quiet:
                async for message in subscription.listen():
                    quiet.reschedule(asyncio.get_running_loop().time() + QUIET_SECONDS)
                    if message["channel"] == EPOCH_CHANNEL.encode():
                        self._look()
                    else:
                        self._wake(message["data"].decode().removeprefix(PREFIX))


def hint_after_writes(sender: object, connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Receive `connection_created`: have writes to what gateways cache hinted at once they are committed."""
    if _hint_after_write not in connection.execute_wrappers:
        connection.execute_wrappers.append(_hint_after_write)


def _hint_after_write(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
    result = execute(sql, params, many, context)
    if isinstance(sql, str) and _watched_writes().match(sql):
        connection: BaseDatabaseWrapper = context["connection"]
        if not any(publish in entry for entry in connection.run_on_commit):
            transaction.on_commit(publish, using=connection.alias, robust=True)
    return result


@functools.cache
def _watched_writes() -> re.Pattern[str]:
    tables = "|".join(sorted({apps.get_model(watched.model)._meta.db_table for watched in WATCHED}))
    return re.compile(rf'\s*(?:INSERT INTO|UPDATE|DELETE FROM)\s+"?(?:{tables})\b', re.IGNORECASE)


def publish() -> None:
    """Tell all gateways to read the epoch now, if Redis answers within its time; whether it did is nobody's concern."""
    _publisher(settings.REDIS_URL).publish()


class _Publisher:
    """Publishes from any thread; after a failure it is silent for a while, so that a dead Redis costs little."""

    def __init__(self, url: str) -> None:
        patience = settings.SLUICE_REDIS_SECONDS
        self._client = Redis.from_url(
            url, socket_timeout=patience, socket_connect_timeout=patience, retry=Retry(NoBackoff(), 0)
        )
        self._silent_until = 0.0

    def publish(self) -> None:
        """Publish one hint."""
        if time.monotonic() < self._silent_until:
            return
        try:
            self._client.publish(EPOCH_CHANNEL, b"")
        except (RedisError, OSError) as error:
            self._silent_until = time.monotonic() + RETRY_SECONDS
            log.info("hint_lost", error=str(error) or type(error).__name__)


@functools.lru_cache(maxsize=1)
def _publisher(url: str) -> _Publisher:
    return _Publisher(url)
