"""The record answers for 24 hours, whatever happened to the process that wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.types import EngineFault, Finished, FinishReason, Lost, NothingRan, Usage
from inference.worker.record import KEEP_SECONDS, Record, RecordLockedError

DONE = Finished(FinishReason.STOP, Usage(input=3, cache_read=4, output=5), stop="é\n", queued_ms=1.5)
FAILED = Finished(FinishReason.ERROR, Usage(), EngineFault("code", "message" * 500, retryable=True))


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def on_disk(path: Path) -> int:
    return sum(file.stat().st_size for file in path.parent.glob("record*"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "record"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def record(path: Path, clock: Clock) -> Iterator[Record]:
    with Record(path, clock=clock) as record:
        yield record


def test_ends_are_read_back_as_they_were(record: Record) -> None:
    record.begin(["a", "b"])
    record.finish({"a": DONE, "b": FAILED})
    assert record.evidence("a") == DONE
    assert record.evidence("b") == FAILED


def test_begun_and_not_finished_is_lost(record: Record) -> None:
    record.begin(["a"])
    assert record.evidence("a") == Lost()


def test_asking_for_the_unknown_closes_its_id(record: Record) -> None:
    assert not record.is_closed("a")
    assert record.evidence("a") == NothingRan()
    assert record.is_closed("a")
    assert record.evidence("a") == NothingRan()


def test_everything_survives_a_restart(path: Path, clock: Clock) -> None:
    with Record(path, clock=clock) as record:
        record.begin(["done", "lost"])
        record.finish({"done": DONE})
        record.evidence("never")
    for _ in range(2):
        with Record(path, clock=clock) as record:
            assert record.evidence("done") == DONE
            assert record.evidence("lost") == Lost()
            assert record.evidence("never") == NothingRan()


def test_a_torn_last_line_is_forgotten(path: Path, clock: Clock) -> None:
    with Record(path, clock=clock) as record:
        record.begin(["a", "b"])
        record.finish({"a": DONE, "b": DONE})
    path.write_bytes(path.read_bytes()[:-30])
    with Record(path, clock=clock) as record:
        assert record.evidence("a") == DONE
        assert record.evidence("b") == Lost()
        record.finish({"b": FAILED})
        assert record.evidence("b") == FAILED


def test_entries_end_after_a_day(path: Path, clock: Clock) -> None:
    with Record(path, clock=clock) as record:
        record.begin(["old"])
        record.finish({"old": DONE})
        clock.now += KEEP_SECONDS - 10
        record.begin(["new"])
        record.finish({"new": DONE})
        assert record.evidence("old") == DONE
        clock.now += 20
        assert record.evidence("new") == DONE
        assert not record.is_closed("old")
    size = on_disk(path)
    with Record(path, clock=clock) as record:
        assert record.evidence("new") == DONE
    assert on_disk(path) < size


def test_a_record_that_is_never_reopened_keeps_a_day(path: Path, clock: Clock) -> None:
    with Record(path, clock=clock) as record:
        for number in range(100):
            record.begin([f"r{number}"])
            record.finish({f"r{number}": DONE})
            clock.now += 1800
            if number == 47:
                day = on_disk(path)
                assert record.evidence("r0") == DONE
        assert on_disk(path) < 1.2 * day
        assert len(record._index) < 60
        assert len(record._files) < 30
        assert record.evidence("r99") == record.evidence("r60") == DONE
        assert not record.is_closed("r40")
        record.begin(["open"])
    with Record(path, clock=clock) as record:
        assert record.evidence("r99") == record.evidence("r60") == DONE
        assert record.evidence("open") == Lost()
        assert not record.is_closed("r40")


def test_an_end_counts_when_its_beginning_lies_in_a_deleted_file(path: Path, clock: Clock) -> None:
    with Record(path, clock=clock) as record:
        record.begin(["long"])
        clock.now += KEEP_SECONDS / 2
        record.finish({"long": DONE})
        clock.now += KEEP_SECONDS * 0.75
        record.begin(["other"])
        assert record.evidence("long") == DONE
    with Record(path, clock=clock) as record:
        assert record.evidence("long") == DONE


def test_many_ends_at_once_leave_the_memory(record: Record, clock: Clock) -> None:
    for turn in range(10):
        record.finish({f"{turn}-{number}": DONE for number in range(32)})
    clock.now += KEEP_SECONDS + 1
    for turn in range(10, 20):
        record.finish({f"{turn}-{number}": DONE for number in range(32)})
    assert len(record._index) == 320


def test_a_second_holder_is_refused(record: Record, path: Path) -> None:
    with pytest.raises(RecordLockedError):
        Record(path)
    record.begin(["a"])
    assert record.evidence("a") == Lost()


def test_the_lock_is_given_back(path: Path) -> None:
    Record(path).close()
    Record(path).close()


def test_old_ids_leave_the_memory(record: Record, clock: Clock) -> None:
    for number in range(10):
        record.finish({f"old{number}": DONE})
    clock.now += KEEP_SECONDS + 1
    for number in range(10):
        record.finish({f"new{number}": DONE})
    assert len(record._index) == 10


def test_a_full_disk_leaves_whole_lines(record: Record, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record.begin(["a"])
    before = path.read_bytes()
    import os

    real = os.write
    monkeypatch.setattr("inference.worker.record.os.write", lambda fd, data: real(fd, data[: len(data) // 2]))
    with pytest.raises(OSError, match="took"):
        record.finish({"a": DONE})
    monkeypatch.undo()
    assert path.read_bytes() == before
    record.finish({"a": DONE})
    assert record.evidence("a") == DONE
