"""The log of one answer: what each reader gets, whenever it comes."""

from __future__ import annotations

import asyncio

import pytest

from gateway.durable.log import EventLog, Head, events_of
from gateway.errors.refusal import Refusal

HEAD = Head(200, (), True)


async def collected(log, after=None):
    return [(batch.first, b"".join(batch.events)) async for batch in log.read(after)]


async def test_readers_get_every_event_once_whenever_they_come():
    log = EventLog()
    log.append(b"a", b"b")
    early = asyncio.create_task(collected(log))
    late = asyncio.create_task(collected(log, after=1))
    await asyncio.sleep(0)
    log.append(b"c")
    log.append(b"d")  # before anybody could look again: both in one batch
    log.end()
    assert await early == [(0, b"ab"), (2, b"cd")]
    assert await late == [(2, b"cd")]
    assert await collected(log, after=2) == [(3, b"d")]
    assert await collected(log, after=3) == []


async def test_a_reader_that_leaves_takes_nothing_from_the_others():
    log = EventLog(first=10)
    leaving, staying = (asyncio.create_task(collected(log)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    log.append(b"x")
    log.end()
    assert await staying == [(10, b"x")]


async def test_failure_is_told_to_all_who_wait_and_all_who_come():
    log, lost = EventLog(), Refusal(503, "gone", "Gone.")
    waiting = asyncio.create_task(log.begun())
    await asyncio.sleep(0)
    log.end(lost)
    for told in (waiting, log.begun(), log.whole(), collected(log)):
        with pytest.raises(Refusal, match="Gone"):
            await told


async def test_head_comes_before_the_first_event():
    log = EventLog()
    waiting = asyncio.create_task(log.begun())
    await asyncio.sleep(0)
    log.begin(HEAD)
    assert await waiting is HEAD


def test_events_are_told_apart_and_comments_left_out():
    data = b"event: a\ndata: 1\n\n: ping\n\ndata: 2\n\n"
    assert events_of(data) == [b"event: a\ndata: 1\n\n", b"data: 2\n\n"]
