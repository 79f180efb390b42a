"""The loop of `manage.py jobs`: what is due when, in how many threads, and how it ends."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from contextlib import closing
from itertools import pairwise

import pytest
from django.core.management import call_command
from django.db import OperationalError

from billing.jobs import Job
from operation.jobs import tasks
from operation.jobs.loop import FileVersion, Loop, Schedule
from operation.management.commands import jobs as command


def nothing():
    return False


def test_all_is_due_at_once_and_then_each_in_its_time():
    schedule = Schedule([Job("often", nothing, every_s=1), Job("seldom", nothing, every_s=60)], now=100.0)
    assert schedule.rest(100.0) == 0.0
    assert schedule.take(100.0) == ["often", "seldom"]
    for name in ("often", "seldom"):
        schedule.end(name)
    assert schedule.take(100.9) == []
    assert schedule.rest(100.9) == pytest.approx(0.1)
    assert schedule.take(101.0) == ["often"]
    schedule.end("often")
    assert schedule.take(160.5) == ["often", "seldom"]  # that which waits longest comes first


def test_what_runs_is_not_due_and_what_ran_longer_than_its_time_is_due_when_it_ends():
    schedule = Schedule([Job("long", nothing, every_s=1)], now=100.0)
    assert schedule.take(100.0) == ["long"]
    assert schedule.take(105.0) == []
    assert schedule.rest(105.0) is None
    schedule.end("long")
    assert schedule.rest(105.0) == 0.0
    assert schedule.take(105.0) == ["long"]


@pytest.fixture(autouse=True)
def _without_notes(monkeypatch):
    """No database: tasks are run and not noted."""
    monkeypatch.setattr(tasks, "noted", lambda _, run: run())


def loop_of(**steps):
    """A loop with one thread less than jobs, all of which are due all the time."""
    return Loop([Job(name, step, every_s=0) for name, step in steps.items()], max(1, len(steps) - 1))


def test_a_slow_job_holds_up_no_other_and_runs_once_at_a_time():
    others, inside, most = {"a": 0, "b": 0}, [], []
    enough = threading.Event()

    def slow():
        inside.append(1)
        most.append(len(inside))
        enough.wait()
        inside.pop()
        return False

    def quick(name):
        others[name] += 1
        if min(others.values()) > 20:
            enough.set()
            loop.stop()
        return False

    loop = loop_of(slow=slow, a=lambda: quick("a"), b=lambda: quick("b"))
    loop.run()
    assert set(most) == {1}


def test_a_job_that_fails_holds_up_no_other(caplog):
    runs = []

    def fail():
        raise RuntimeError("broken row")

    def quick():
        runs.append(1)
        if len(runs) == 5:
            loop.stop()
        return False

    loop = loop_of(fails=fail, works=quick)
    loop.run()
    assert "broken row" in caplog.text
    assert len(runs) == 5


def test_it_ends_after_the_current_chunks_and_begins_nothing_more():
    chunks = []

    def step():
        chunks.append(1)
        loop.stop()
        return True

    loop = Loop([Job("first", step, every_s=0), Job("second", step, every_s=0)], 1)
    loop.run()
    assert chunks == [1]


def test_after_each_run_its_connection_rests(monkeypatch):
    closed = []
    monkeypatch.setattr("operation.jobs.loop.ThreadConnections.rest", lambda _: closed.append(1))

    def step():
        if len(closed) == 3:
            loop.stop()
        return False

    loop = loop_of(only=step)
    loop.run()
    assert len(closed) == 4


def test_a_connection_that_fails_to_close_ends_no_job(monkeypatch):
    def fail(_):
        raise OperationalError("lost")

    monkeypatch.setattr("operation.jobs.loop.ThreadConnections.rest", fail)
    runs = []

    def step():
        runs.append(1)
        if len(runs) == 3:
            loop.stop()
        return False

    loop = loop_of(only=step)
    loop.run()
    assert len(runs) == 3


def test_what_nobody_wrote_for_waits(monkeypatch):
    """A job runs once something was written since it began last, or after a while: time may make something due."""
    now, versions, runs = [0.0], [1], []
    monkeypatch.setattr("operation.jobs.loop.time.monotonic", lambda: now[0])
    looks = iter(range(1, 1_000))

    def version():
        look = next(looks)
        now[0] = look / 10
        if look == 200:
            versions.append(2)
        if look == 700:
            loop.stop()
        return versions[-1]

    def step():
        runs.append(now[0])
        return False

    loop = Loop([Job("only", step, every_s=0)], 1, version)
    loop.run()
    assert [round(one) for one in runs] == [0, 20, 50]


def test_what_failed_is_done_again_though_nobody_wrote(monkeypatch):
    monkeypatch.setattr(tasks, "BACK_OFF_S", 0.0)
    runs = []

    def step():
        runs.append(1)
        if len(runs) == 1:
            raise RuntimeError("locked")
        loop.stop()
        return False

    loop = Loop([Job("only", step, every_s=0)], 1, lambda: 1)
    loop.run()
    assert len(runs) == 2


def test_the_version_of_a_file_is_another_after_each_commit(tmp_path):
    path = str(tmp_path / "file.sqlite3")
    version = FileVersion(path)
    with closing(sqlite3.connect(path)) as writer:
        seen = [version()]
        for statement in ("CREATE TABLE t (n)", "INSERT INTO t VALUES (1)", "SELECT n FROM t"):
            writer.execute(statement)
            writer.commit()
            seen.append(version())
    version.close()
    assert [one == before for before, one in pairwise(seen)] == [False, False, True]
    assert FileVersion(str(tmp_path))() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command(monkeypatch, settings, number):
    settings.SLUICE_EMBEDDED = False  # there is no database to keep
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(command, "need_database", lambda: None)
    monkeypatch.setattr(command, "configure_logs", lambda: None)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    chunks = []

    def step():
        chunks.append(1)
        os.kill(os.getpid(), number)
        return False

    monkeypatch.setattr(tasks, "JOBS", [Job("only", step, every_s=60)])
    try:
        call_command("jobs")
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert chunks == [1]
