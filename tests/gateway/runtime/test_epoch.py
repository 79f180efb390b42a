"""The epoch: published by a poller, refused when it is old."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from base import clock
from base.ids import uuid7
from gateway.runtime import epoch as epoch_module
from gateway.runtime.epoch import STALE_AFTER, Epoch, EpochPoller, EpochStaleError, Reading, Stamp, read_epoch
from tenancy.models import CatalogueEpoch, TenantEpoch


async def test_reading_is_current_for_one_second(monkeypatch):
    assert STALE_AFTER == 1.0
    monkeypatch.setattr(epoch_module, "STALE_AFTER", STALE_AFTER)
    now = [100.0]
    epoch = Epoch(clock=lambda: now[0])
    epoch.publish(Reading(7), 100.0)
    now[0] = 101.0
    assert await epoch.current() == 7


async def test_stale_epoch_waits_for_one_reading_and_then_refuses(monkeypatch):
    monkeypatch.setattr(epoch_module, "STALE_AFTER", STALE_AFTER)
    monkeypatch.setattr(epoch_module, "INTERVAL", 0.01)
    now = [100.0]
    epoch = Epoch(clock=lambda: now[0])
    epoch.publish(Reading(7), 100.0)
    now[0] = 101.1
    with pytest.raises(EpochStaleError):
        await epoch.current()


async def test_stale_epoch_is_answered_by_the_next_reading():
    now = [100.0]
    epoch = Epoch(clock=lambda: now[0])
    asking = asyncio.ensure_future(epoch.current())
    await asyncio.sleep(0)
    epoch.publish(Reading(8), 100.0)
    assert await asking == 8


async def test_poller_publishes_each_reading_and_survives_failures():
    values = iter([1, OSError("away"), 2])
    done = threading.Event()

    def read(since):
        value = next(values, None)
        if value is None:
            done.set()
            return Reading(2)
        if isinstance(value, Exception):
            raise value
        return Reading(value)

    epoch = Epoch()
    poller = EpochPoller(epoch, read, interval=0.001)
    await poller.start()
    await asyncio.to_thread(done.wait, 5)
    await poller.close()
    assert await epoch.current() == 2


async def test_reading_that_hangs_is_replaced_and_what_it_says_later_is_not_believed(monkeypatch):
    """A connection that went deaf: neither data nor an error ever comes."""
    monkeypatch.setattr(epoch_module, "SILENT_AFTER", 0.05)
    heard_again, answered = threading.Event(), threading.Event()
    readings = iter([Reading(1), heard_again])

    def read(since):
        reading = next(readings, Reading(5))
        if isinstance(reading, threading.Event):
            reading.wait(10)
            answered.set()
            return Reading(2)
        return reading

    epoch = Epoch()
    poller = EpochPoller(epoch, read, interval=0.001)
    await poller.start()
    watching = asyncio.create_task(poller.watch())
    async with asyncio.timeout(120):
        while await epoch.next() != 5:
            pass
    heard_again.set()
    await asyncio.to_thread(answered.wait, 5)
    for _ in range(3):
        assert await epoch.next() == 5
    watching.cancel()
    await poller.close()


async def test_poller_that_cannot_read_at_all_says_so_at_once():
    def read(since):
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        await EpochPoller(Epoch(), read).start()


def test_change_of_one_tenant_ends_its_entries_alone():
    epoch, one, other = Epoch(), uuid7(), uuid7()
    epoch.publish(Reading(3, 10), 0.0)
    stamp = Stamp(3, 10)
    epoch.publish(Reading(3, 11, {one: 11}), 0.0)
    assert not epoch.stands(stamp, one)
    assert epoch.stands(stamp, other)
    assert not epoch.stands(stamp, None)  # whose it is wasn't known: any tenant's change may be its own
    assert epoch.stands(Stamp(3, 11), one)
    epoch.publish(Reading(4, 11), 0.0)
    assert not epoch.stands(stamp, other)


def test_numbers_that_went_back_end_every_entry():
    """A database that was restored from a backup."""
    epoch = Epoch()
    epoch.publish(Reading(3, 10), 0.0)
    epoch.publish(Reading(3, 7), 0.0)
    assert not epoch.stands(Stamp(3, 10), uuid7())


@pytest.mark.django_db
def test_read_epoch_is_zero_before_the_first_change():
    CatalogueEpoch.objects.all().delete()
    assert read_epoch() == read_epoch(0) == Reading(0)
    CatalogueEpoch.objects.create(id=1, epoch=12, sequence=5)
    assert read_epoch() == read_epoch(5) == Reading(12, 5)


@pytest.mark.django_db
def test_read_epoch_tells_the_tenants_that_changed_by_one_query(django_assert_num_queries):
    CatalogueEpoch.objects.update_or_create(id=1, defaults={"epoch": 1, "sequence": 8})
    one, two, three = uuid7(), uuid7(), uuid7()
    TenantEpoch.objects.bulk_create(
        TenantEpoch(tenant=id_, sequence=at) for id_, at in [(one, 6), (two, 7), (three, 8)]
    )
    with django_assert_num_queries(1):
        assert read_epoch(6) == Reading(1, 8, {two: 7, three: 8})
    with django_assert_num_queries(1):
        assert read_epoch(8) == Reading(1, 8)
    assert abs(read_epoch(8).now - clock.now()) < timedelta(minutes=1)
