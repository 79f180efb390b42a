"""However many ask whether the gateway is ready, the database is asked once a second, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from base import home
from gateway.runtime import readiness


@pytest.fixture
async def look(monkeypatch):
    look = readiness.Look()
    look.asked = []

    def missing():
        look.asked.append(threading.current_thread().name)
        return []

    monkeypatch.setattr(readiness, "missing_triggers", missing)
    yield look
    await look.close()


async def test_a_flood_of_probes_asks_the_database_once(look):
    answers = await asyncio.gather(*(look.problems() for _ in range(1000)))
    assert {tuple(answer.items()) for answer in answers} == {(("disk", ""), ("triggers", ""))}
    await look.problems()
    assert len(look.asked) == 1
    look._good_until = time.monotonic()
    await look.problems()
    assert len(look.asked) == 2


async def test_a_prober_that_leaves_takes_nobody_elses_answer(look):
    leaving = asyncio.create_task(look.problems())
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await look.problems())["triggers"] == ""
    assert len(look.asked) == 1


async def test_a_database_that_hangs_holds_one_thread(look, monkeypatch):
    hanging = threading.Event()
    asked = []

    def missing():
        asked.append(1)
        hanging.wait(10)
        return []

    monkeypatch.setattr(readiness, "missing_triggers", missing)
    monkeypatch.setattr(readiness, "LOOK_SECONDS", 0.01)
    for _ in range(3):
        assert (await look.problems())["triggers"].startswith("can't be read")
        look._good_until = 0.0
    assert len(asked) == 1
    hanging.set()


async def test_a_full_disk_is_said(look, monkeypatch, tmp_path, settings):
    settings.SLUICE_HOME = tmp_path
    monkeypatch.setattr(home, "LEAST_FREE", 2**62)
    assert (await look.problems())["disk"] == "nearly full"
