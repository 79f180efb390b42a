"""The catalogue epoch: numbers in the database by which gateways notice that their caches are out of date.

One number rises with every change that matters to all tenants (catalogue, prices, plans), and each tenant has one of
its own for its keys, memberships, projects and subscription: one tenant's changes leave all other entries alone. A
thread with a connection of its own reads both by one query each 500 ms: the number, and the tenants that changed since
the last reading. A cache entry keeps what was read *before* its query (a `Stamp`) and is valid only while nothing that
it rests on has changed since, so a change is felt by every process within a second. A process that has not read the
epoch for a second may have stale caches and refuses requests.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import structlog
from django.db import connection

from base import clock
from base.database.bounded_connection import answered_within

INTERVAL = 0.5
STALE_AFTER = 1.0
FELT_AFTER = 2 * STALE_AFTER
"""Seconds from a change until no gateway goes by a cache of before, and what was let in by one has its hold."""
SILENT_AFTER = 3.0
TOGETHER = 0.01  # hints within it are answered by one reading
_NEVER = 2**62  # a sequence number that nothing comes after

_CHANGES = """
SELECT e.epoch, e.sequence, (%(clock)s), t.tenant, t.sequence
FROM gateway_catalogueepoch e LEFT JOIN gateway_tenantepoch t ON t.sequence > %%s
WHERE e.id = 1
"""

log = structlog.get_logger(__name__)


class EpochStaleError(Exception):
    """The epoch could not be read for `STALE_AFTER` seconds: nothing that is cached may be used."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """The version of a cache entry: the epoch, and the sequence number of the last change to any tenant."""

    epoch: int
    sequence: int = 0


UNKNOWN = Stamp(-1, _NEVER)
"""Of what was read under no stamp: it stands under none."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of one query; `changed` are the tenants that changed since the one before.

    `now` is what the database's clock said, None where nobody asked.
    """

    epoch: int
    sequence: int = 0
    changed: Mapping[UUID, int] = field(default_factory=dict)
    now: datetime | None = field(default=None, compare=False)

    @property
    def stamp(self) -> Stamp:
        """The stamp of what is read after this reading."""
        return Stamp(self.epoch, self.sequence)


def read_epoch(since: int | None = None) -> Reading:
    """Return the epoch, and the tenants that changed after sequence number `since`; without it none are asked for.

    All is zero before the first change.
    """
    text = _CHANGES % {"clock": clock.STATEMENTS[connection.vendor].replace("%", "%%")}
    with connection.cursor() as cursor:
        cursor.execute(text, [_NEVER if since is None else since])
        rows = cursor.fetchall()
    if not rows:
        return Reading(0)
    changed = {
        tenant if isinstance(tenant, UUID) else UUID(tenant): at for *_, tenant, at in rows if tenant is not None
    }
    return Reading(rows[0][0], rows[0][1], changed, clock.parsed(rows[0][2]))


class Epoch:
    """The last reading that the poller published, for one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stamp: Stamp | None = None
        self.now: datetime | None = None  # the database's, at the last reading
        self._tenants: dict[UUID, int] = {}  # when each last changed, for those that did under this epoch
        self._read_at = float("-inf")
        self._published = asyncio.Event()

    def publish(self, reading: Reading, read_at: float) -> None:
        """Publish a reading, made at `read_at` or later."""
        if self._stamp is None or reading.epoch != self._stamp.epoch:
            self._tenants.clear()  # no entry of another epoch is valid anyway
        self._tenants.update(reading.changed)
        self._stamp = reading.stamp
        self.now = reading.now
        self._read_at = read_at
        self._published.set()
        self._published = asyncio.Event()

    @property
    def sequence(self) -> int | None:
        """The sequence number of the last reading; None before the first."""
        return None if self._stamp is None else self._stamp.sequence

    @property
    def age(self) -> float:
        """Seconds since the epoch was read; infinite before the first reading."""
        return self._clock() - self._read_at

    @property
    def is_fresh(self) -> bool:
        """True when the epoch was read within the last `STALE_AFTER` seconds."""
        return self.age <= STALE_AFTER

    async def stamp(self) -> Stamp:
        """Return the stamp for what is read from now on, waiting for at most one more reading when the last is too old.

        Raise `EpochStaleError` when there is none.
        """
        if not self.is_fresh:
            try:
                await asyncio.wait_for(self._published.wait(), INTERVAL)
            except TimeoutError:
                raise EpochStaleError("the catalogue epoch can't be read") from None
        assert self._stamp is not None, "a reading has been published"
        return self._stamp

    async def current(self) -> int:
        """Return the epoch of the catalogue, as `stamp` does."""
        return (await self.stamp()).epoch

    def stands(self, stamp: Stamp, tenant: UUID | None) -> bool:
        """True while nothing changed since `stamp` that an entry about `tenant` (None: about any) rests on."""
        now = self._stamp
        if now is None or stamp.epoch != now.epoch or stamp.sequence > now.sequence:
            return False
        return stamp.sequence == now.sequence if tenant is None else self._tenants.get(tenant, 0) <= stamp.sequence

    async def next(self) -> int:
        """Wait for the next reading and return its epoch."""
        await self._published.wait()
        assert self._stamp is not None, "a reading has been published"
        return self._stamp.epoch


class EpochPoller:
    """Reads the epoch each `INTERVAL` seconds on a thread of its own and publishes it on the event loop.

    A reading that neither succeeds nor fails for `SILENT_AFTER` seconds (a connection that went deaf, a hanging disk)
    is left to itself, and another thread reads on with another connection.
    """

    def __init__(
        self, epoch: Epoch, read: Callable[[int | None], Reading] = read_epoch, interval: float = INTERVAL
    ) -> None:
        self._epoch = epoch
        self._read = read
        self._interval = interval
        self._stop = threading.Event()  # of the thread that reads now
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._heard_at = float("-inf")

    async def start(self) -> None:
        """Return when the first reading is published; raise what it raised when it failed."""
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begin(first)
        try:
            await first
        except BaseException:
            await self.close()
            raise

    async def watch(self) -> None:
        """Replace the thread whenever it is silent, until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            if time.monotonic() - self._heard_at > SILENT_AFTER:
                log.error("epoch_reading_hangs", seconds=SILENT_AFTER)
                self._begin(None)

    def look(self) -> None:
        """Read at once instead of at the end of the interval: something may have changed. Many hints are one."""
        self._wake.set()

    async def close(self) -> None:
        """Stop reading and close the connection; a reading that hangs is not waited for."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, SILENT_AFTER)

    def _begin(self, first: asyncio.Future[None] | None) -> None:
        self._stop.set()
        self._stop = threading.Event()
        self._heard_at = time.monotonic()
        arguments = (asyncio.get_running_loop(), first, self._stop)
        self._thread = threading.Thread(target=self._poll, args=arguments, name="gateway-epoch", daemon=True)
        self._thread.start()

    def _poll(self, loop: asyncio.AbstractEventLoop, first: asyncio.Future[None] | None, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                read_at = time.monotonic()
                try:
                    with answered_within(SILENT_AFTER):
                        reading = self._read(self._epoch.sequence)
                except Exception as error:  # noqa: BLE001 - whatever it is, the next reading may succeed
                    log.warning("epoch_unreadable", error=str(error))
                    connection.close()
                    _on_loop(loop, self._failed, stop, first, error)
                else:
                    _on_loop(loop, self._succeeded, stop, first, reading, read_at)
                if self._wake.wait(self._interval):
                    stop.wait(TOGETHER)
                    self._wake.clear()  # before the reading: what is hinted at from now on gets another
        finally:
            connection.close()

    def _succeeded(
        self, stop: threading.Event, first: asyncio.Future[None] | None, reading: Reading, read_at: float
    ) -> None:
        if stop.is_set():
            return  # by a thread that was replaced: what it read is old
        self._heard_at = time.monotonic()
        self._epoch.publish(reading, read_at)
        if first is not None and not first.done():
            first.set_result(None)

    def _failed(self, stop: threading.Event, first: asyncio.Future[None] | None, error: Exception) -> None:
        if stop.is_set():
            return
        self._heard_at = time.monotonic()
        if first is not None and not first.done():
            first.set_exception(error)


def _on_loop(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: object) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback, *args)
