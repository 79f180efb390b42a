"""The events of running answers in Redis, sealed, so that other gateways can read them while they are made.

Redis only makes it quick: what is finished is in the database. Where Redis doesn't answer, an answer isn't mirrored
any more, and readers elsewhere wait for its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from uuid import UUID

import msgspec
import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from base.sealing import SealError, seal_bytes, unseal_bytes
from billing.limits.redis.store import PREFIX
from gateway.durable.log import Batch, EventLog, Head
from gateway.errors.refusal import Refusal

ALIVE_SECONDS = 600  # a stream of events in Redis without a new one, or whose gateway died, is gone after these
ENDED_SECONDS = 60  # then everything is in the database
MOST_BYTES = 16 * 1024 * 1024  # of one answer; what is longer is read at its end
BLOCK_MS = 1000
CONNECT_SECONDS = 1.0

_ERRORS = (RedisError, OSError, TimeoutError)

log = structlog.get_logger(__name__)


class Mirror:
    """Writes the logs of this gateway's answers to Redis, each call within `patience` seconds, and reads others'."""

    def __init__(self, url: str, patience: float) -> None:
        self._patience = patience
        self._redis = Redis.from_url(
            url,
            socket_timeout=None,
            socket_connect_timeout=CONNECT_SECONDS,
            retry=Retry(NoBackoff(), 0),
            client_name="sluice-replay",
        )

    async def write(self, run: UUID, event_log: EventLog) -> None:
        """Mirror the log until its end, which is told however it ended; a failure ends the mirroring."""
        name, size = _name(run), 0
        try:
            try:
                await event_log.begun()
                async with aclosing(event_log.read()) as batches:
                    async for batch in batches:
                        assert event_log.head is not None, "events follow a head"
                        size += sum(map(len, batch.events))
                        if not event_log.head.is_stream or size > MOST_BYTES:
                            continue  # one in one piece is there with its end
                        entry = msgspec.msgpack.encode((event_log.head, batch.first, batch.events))
                        await self._add(name, {"batch": seal_bytes(entry)}, ALIVE_SECONDS)
            finally:
                if event_log.is_ended:
                    await self._add(name, {"end": b""}, ENDED_SECONDS)
        except _ERRORS as error:
            log.warning("answer_not_mirrored", run=str(run), error=str(error) or type(error).__name__)
        except Refusal:
            return  # why the log ended, which its readers are told

    async def read(self, run: UUID) -> AsyncGenerator[tuple[Head, Batch], None]:
        """Yield what there is of the run, and what comes, until its end; raise an OSError when Redis doesn't answer, or
        has what can't be read here.
        """
        name, last = _name(run), "0"
        while True:
            try:
                async with asyncio.timeout(self._patience + BLOCK_MS / 1000):
                    found: Any = await self._redis.xread({name: last}, block=BLOCK_MS)
            except RedisError as error:
                raise ConnectionError(str(error)) from error
            for _, entries in found or ():
                for number, fields in entries:
                    last = number
                    if b"end" in fields:
                        return
                    try:
                        entry = unseal_bytes(fields[b"batch"])
                    except SealError as error:
                        raise ConnectionError(str(error)) from error
                    head, first, events = msgspec.msgpack.decode(entry, type=tuple[Head, int, list[bytes]])
                    yield head, Batch(first, events)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _add(self, name: str, entry: dict[Any, Any], seconds: int) -> None:
        async with asyncio.timeout(self._patience), self._redis.pipeline(transaction=False) as pipe:
            pipe.xadd(name, entry)
            pipe.expire(name, seconds)
            await pipe.execute()


def _name(run: UUID) -> str:
    return f"{PREFIX}kept:{run.hex}"
