"""Lines of batches begin one after the other, with rests while others are about."""

from __future__ import annotations

import asyncio

import pytest

from gateway.concurrency import ABOUT_SECONDS, LONGEST_REST, REST, Pace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept = []

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.slept.append(round(seconds, 6))
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pace(clock):
    return Pace(clock, clock.sleep)


async def begin(pace, clock, took=0.01):
    async with pace.turn():
        clock.now += took


async def test_alone_they_begin_without_a_rest(pace, clock):
    for _ in range(5):
        await begin(pace, clock)
    assert clock.slept == []


async def test_beside_others_each_waits_for_a_multiple_of_what_the_last_one_took(pace, clock):
    pace.other_came()
    for _ in range(3):
        await begin(pace, clock)
    assert clock.slept == [REST * 0.01] * 2
    clock.now += REST * 0.01 / 2
    await begin(pace, clock)
    assert clock.slept[2:] == [REST * 0.01 / 2], "time that went by counts"


async def test_the_rest_is_bounded_and_over_when_the_others_are_gone(pace, clock):
    pace.other_came()
    await begin(pace, clock, took=100 * LONGEST_REST)
    pace.other_came()
    await begin(pace, clock)
    assert clock.slept == [LONGEST_REST]
    clock.now += ABOUT_SECONDS
    await begin(pace, clock)
    await begin(pace, clock)
    assert clock.slept == [LONGEST_REST]


async def test_one_begins_at_a_time_and_one_that_fails_lets_the_next_begin(pace):
    inside = []

    async def one(number):
        async with pace.turn():
            inside.append(number)
            assert len(inside) == 1
            await asyncio.sleep(0)
            inside.remove(number)
            if number == 1:
                raise RuntimeError("refused")

    ended = await asyncio.gather(*(one(number) for number in range(3)), return_exceptions=True)
    assert [type(end) for end in ended] == [type(None), RuntimeError, type(None)]
