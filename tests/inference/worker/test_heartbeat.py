"""What counts as a worker that gets on, by a movable clock; and the file, touched by a real one."""

import threading
from dataclasses import dataclass

from inference.worker.heartbeat import READER_SECONDS, Heartbeat


@dataclass
class Thread:
    busy_since: float | None = None


def heartbeat(clock, **threads):
    reader, steps = threads.get("reader", Thread()), threads.get("steps", Thread())
    return Heartbeat(reader=reader, steps=steps, step_seconds=60.0, clock=lambda: clock[0])


def test_waiting_for_work_is_no_hang_however_long():
    assert heartbeat([1e6]).is_alive()


def test_a_hung_step_stops_the_heartbeat(caplog):
    clock, steps = [0.0], Thread(busy_since=0.0)
    beating = heartbeat(clock, steps=steps)
    clock[0] = 60.0
    assert beating.is_alive()
    clock[0] = 61.0
    assert not beating.is_alive()
    assert not beating.is_alive()
    assert [record.getMessage() for record in caplog.records] == ["a step has lasted longer than 60 s"]
    steps.busy_since = 61.0
    assert beating.is_alive()


def test_a_hung_reader_stops_the_heartbeat():
    clock = [READER_SECONDS + 1]
    assert not heartbeat(clock, reader=Thread(busy_since=0.0)).is_alive()


def test_the_file_is_touched_only_while_both_threads_make_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_HEARTBEAT", str(tmp_path / "beat"))
    ended = threading.Event()
    steps = Thread(busy_since=0.0)
    beating = heartbeat([100.0], steps=steps)
    look, seen = beating.is_alive, []

    def once():
        seen.append(look())
        ended.set()
        return seen[-1]

    beating.is_alive = once
    beating.run(ended)
    assert not (tmp_path / "beat").exists()
    ended.clear()
    steps.busy_since = None
    beating.run(ended)
    assert (tmp_path / "beat").exists()
    assert seen == [False, True]
