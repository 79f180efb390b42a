"""The epoch: published by a poller, refused when it is old."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gateway.models import CatalogueEpoch
from gateway.runtime import epoch as epoch_module
from gateway.runtime.epoch import Epoch, EpochPoller, EpochStaleError, read_epoch


async def test_reading_is_current_for_one_second():
    now = [100.0]
    epoch = Epoch(clock=lambda: now[0])
    epoch.publish(7, 100.0)
    now[0] = 101.0
    assert await epoch.current() == 7


async def test_stale_epoch_waits_for_one_reading_and_then_refuses(monkeypatch):
    monkeypatch.setattr(epoch_module, "INTERVAL", 0.01)
    now = [100.0]
    epoch = Epoch(clock=lambda: now[0])
    epoch.publish(7, 100.0)
    now[0] = 101.1
    with pytest.raises(EpochStaleError):
        await epoch.current()


async def test_stale_epoch_is_answered_by_the_next_reading():
    now = [100.0]
    epoch = Epoch(clock=lambda: now[0])
    asking = asyncio.ensure_future(epoch.current())
    await asyncio.sleep(0)
    epoch.publish(8, 100.0)
    assert await asking == 8


async def test_poller_publishes_each_reading_and_survives_failures():
    values = iter([1, OSError("away"), 2])
    done = threading.Event()

    def read():
        value = next(values, None)
        if value is None:
            done.set()
            return 2
        if isinstance(value, Exception):
            raise value
        return value

    epoch = Epoch()
    poller = EpochPoller(epoch, read, interval=0.001)
    await poller.start()
    await asyncio.to_thread(done.wait, 5)
    await poller.close()
    assert await epoch.current() == 2


async def test_poller_that_cannot_read_at_all_says_so_at_once():
    def read():
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        await EpochPoller(Epoch(), read).start()


@pytest.mark.django_db
def test_read_epoch_is_zero_before_the_first_change():
    CatalogueEpoch.objects.all().delete()
    assert read_epoch() == 0
    CatalogueEpoch.objects.create(id=1, epoch=12)
    assert read_epoch() == 12
