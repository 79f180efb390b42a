"""The catalogue epoch: one number that rises with every change to what gateways cache.

A thread with a connection of its own reads the one row each 500 ms. A cache entry keeps the epoch that was read
*before* its query and is valid only while that is the current one, so a change is felt by every process within a
second. A process that has not read the epoch for a second doesn't know what is still true and refuses.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import structlog
from django.db import connection

from gateway.models import CatalogueEpoch

INTERVAL = 0.5
STALE_AFTER = 1.0

log = structlog.get_logger(__name__)


class EpochStaleError(Exception):
    """The epoch could not be read for `STALE_AFTER` seconds: nothing that is cached may be used."""


def read_epoch() -> int:
    """Return the epoch as the database has it; 0 before the first change."""
    return CatalogueEpoch.objects.filter(id=1).values_list("epoch", flat=True).first() or 0


class Epoch:
    """What a poller publishes, for readers on one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._value = 0
        self._read_at = float("-inf")
        self._published = asyncio.Event()

    def publish(self, value: int, read_at: float) -> None:
        """Take note that the epoch was `value` at `read_at` or later."""
        self._value = value
        self._read_at = read_at
        self._published.set()
        self._published = asyncio.Event()

    @property
    def is_fresh(self) -> bool:
        """True when the epoch was read within the last `STALE_AFTER` seconds."""
        return self._clock() - self._read_at <= STALE_AFTER

    async def current(self) -> int:
        """Return the epoch, waiting for at most one more reading when the last one is too old.

        Raise `EpochStaleError` when there is none.
        """
        if not self.is_fresh:
            try:
                await asyncio.wait_for(self._published.wait(), INTERVAL)
            except TimeoutError:
                raise EpochStaleError("the catalogue epoch can't be read") from None
        return self._value

    async def next(self) -> int:
        """Wait for the next reading and return it."""
        await self._published.wait()
        return self._value


class EpochPoller:
    """Reads the epoch each `INTERVAL` seconds on its own thread and publishes it on the event loop."""

    def __init__(self, epoch: Epoch, read: Callable[[], int] = read_epoch, interval: float = INTERVAL) -> None:
        self._epoch = epoch
        self._read = read
        self._interval = interval
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        """Return when the first reading is published; raise what it raised when it failed."""
        loop = asyncio.get_running_loop()
        first: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._poll, args=(loop, first), name="gateway-epoch", daemon=True)
        self._thread.start()
        try:
            await first
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop reading and close the connection."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _poll(self, loop: asyncio.AbstractEventLoop, first: asyncio.Future[None]) -> None:
        try:
            while not self._stop.is_set():
                read_at = time.monotonic()
                try:
                    value = self._read()
                except Exception as error:  # noqa: BLE001 - whatever it is, the next reading may succeed
                    log.warning("epoch_unreadable", error=str(error))
                    connection.close()
                    _on_loop(loop, _fail, first, error)
                else:
                    _on_loop(loop, self._epoch.publish, value, read_at)
                    _on_loop(loop, _succeed, first)
                self._stop.wait(self._interval)
        finally:
            connection.close()


def _on_loop(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: object) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback, *args)


def _succeed(first: asyncio.Future[None]) -> None:
    if not first.done():
        first.set_result(None)


def _fail(first: asyncio.Future[None], error: Exception) -> None:
    if not first.done():
        first.set_exception(error)
