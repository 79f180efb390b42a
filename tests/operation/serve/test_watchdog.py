"""What counts as silence, by a movable clock and the file that a process touches."""

import os

import pytest

from operation.serve.processes import START_SECONDS, Watchdog


class Clock:
    def __init__(self):
        self.now = 100.0
        self.touches = 0


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watchdog(tmp_path, clock):
    dog = Watchdog(tmp_path / "heartbeat", 15.0)
    dog.restart(clock.now)
    return dog


def touch(watchdog, clock):
    clock.touches += 1
    watchdog.file.touch()
    os.utime(watchdog.file, ns=(clock.touches, clock.touches))


def pass_by(watchdog, clock, seconds, *, beating=False):
    """Let `seconds` go by in turns of a quarter; return after how many the watchdog complained, None if it didn't."""
    for turn in range(1, int(seconds * 4) + 1):
        clock.now += 0.25
        if beating and turn % 4 == 0:
            touch(watchdog, clock)
        if watchdog.is_silent(clock.now):
            return turn / 4
    return None


def test_a_process_that_touches_its_file_is_left_alone(watchdog, clock):
    assert pass_by(watchdog, clock, 3600, beating=True) is None


def test_fifteen_seconds_of_silence_are_too_long(watchdog, clock):
    touch(watchdog, clock)
    assert pass_by(watchdog, clock, 60) == 15.5  # the first turn hears the touch, the last is beyond the limit


def test_a_slow_start_is_no_hang_but_an_endless_one_is(watchdog, clock):
    assert pass_by(watchdog, clock, START_SECONDS) is None
    assert pass_by(watchdog, clock, 1) == 0.25


def test_what_a_process_before_touched_says_nothing_of_the_next(watchdog, clock):
    touch(watchdog, clock)
    assert pass_by(watchdog, clock, 60) is not None
    watchdog.restart(clock.now)
    assert pass_by(watchdog, clock, 60) is None


def test_a_machine_that_slept_and_a_watcher_that_was_stopped_blame_nobody(watchdog, clock):
    touch(watchdog, clock)
    pass_by(watchdog, clock, 1)
    clock.now += 3600
    assert not watchdog.is_silent(clock.now)
    assert pass_by(watchdog, clock, 3600, beating=True) is None
