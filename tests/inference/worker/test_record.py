"""The record answers for 24 hours, whatever happened to the process that wrote it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inference.types import EngineFault, Finished, FinishReason, Lost, NothingRan, Usage
from inference.worker.record import FILE_SECONDS, KEEP_SECONDS, Record, RecordLockedError, ends_in
from inference.worker.record_file import RecordFile, _HashTable

DONE = Finished(FinishReason.STOP, Usage(input=3, cache_read=4, output=5), stop="é\n")
FAILED = Finished(FinishReason.ERROR, Usage(), EngineFault("code", "message" * 500, True, "n"))


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
    record.finish({"a": replace(DONE, queued_ms=1.5), "b": FAILED})
    assert record.evidence("a") == DONE  # how long it took is not kept
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


def test_a_torn_last_row_is_forgotten(path: Path, clock: Clock) -> None:
    with Record(path, clock=clock) as record:
        record.begin(["a", "b"])
        record.finish({"a": DONE, "b": DONE})
    path.write_bytes(path.read_bytes()[:-5])
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


def in_memory(record: Record) -> int:
    """Bytes of index that this process keeps to itself."""
    arrays = [part for file in record._files for part in (file._table.tails, file._table.offsets)]
    return sum(part.itemsize * len(part) for part in arrays if isinstance(part, array))


def test_a_request_costs_little_and_only_the_current_file_is_indexed_in_memory(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.worker.record.MAX_IDS", 1000)
    ids = [uuid7_at(clock.now + number / 100, number) for number in range(5000)]
    end = Finished(FinishReason.STOP, Usage(input=120))
    with Record(path, clock=clock) as record:
        for number, request in enumerate(ids):
            clock.now += 0.01
            record.begin([request])
            record.finish({request: end})
            assert record.is_closed(ids[number // 2])
        assert len(record._files) in {5, 6}
        assert in_memory(record) <= 12 * 2048
    assert on_disk(path) < 100 * len(ids)
    for _ in range(2):  # from the indexes beside the files, and without them
        with Record(path, clock=clock) as record:
            assert in_memory(record) <= 12 * 2048
            assert all(record.evidence(request) == end for request in ids)
            assert not record.is_closed(uuid7_at(clock.now, 1))
        for index in path.parent.glob("*.index"):
            index.unlink()


def test_a_fresh_id_is_looked_up_in_the_newest_files_alone(path: Path, clock: Clock) -> None:
    with Record(path, clock=clock) as record:
        for number in range(10):
            record.begin([uuid7_at(clock.now, number)])
            clock.now += FILE_SECONDS + 1
        seen: list[Path] = []
        find = RecordFile.find
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RecordFile, "find", lambda file, key: (seen.append(file.path), find(file, key))[1])
            assert not record.is_closed(uuid7_at(clock.now, 99))
        assert len(seen) <= 2


def test_ids_that_differ_in_few_bits_spread_over_the_table() -> None:
    table = _HashTable.empty()
    probes = 0
    for number in range(20_000):
        tail = int.from_bytes((0x8000000000000000 + number).to_bytes(8), "little")
        start = _HashTable.slot(_HashTable(table.tails, bytearray(len(table.offsets)), 0), tail)
        probes += (table.slot(tail) - start) % len(table.offsets) + 1
        table.put(tail, number + 1)
    assert probes < 3 * 20_000


def test_an_index_that_does_not_match_its_file_is_not_used(path: Path, clock: Clock) -> None:
    with Record(path, clock=clock) as record:
        record.begin(["a"])
        clock.now += FILE_SECONDS
        record.begin(["b"])
    index = path.with_name("record.1.index")
    index.write_bytes(index.read_bytes()[:-1])
    with Record(path, clock=clock) as record:
        assert record.evidence("a") == record.evidence("b") == Lost()


def test_what_is_no_row_is_cut_off(path: Path, clock: Clock) -> None:
    path.parent.mkdir()
    path.write_text('{"e":"begun","id":"a","at":1.0}\n')  # of an earlier version
    with Record(path, clock=clock) as record:
        assert not record.is_closed("a")
        record.begin(["a"])
    whole = path.read_bytes()
    path.write_bytes(whole + bytes([*whole[4:-1], whole[-1] ^ 1]))  # a row whose last byte was never written
    with Record(path, clock=clock) as record:
        assert record.evidence("a") == Lost()
    assert path.read_bytes() == whole


def test_an_audit_reads_beside_the_worker(record: Record, path: Path) -> None:
    done, lost = uuid7_at(1.0, 1), uuid7_at(1.0, 2)
    record.begin([done, lost])
    record.finish({done: DONE})
    assert ends_in(path) == {done: DONE, lost: None}


def uuid7_at(seconds: float, number: int) -> str:
    """An id as gateways make them, in hex."""
    return f"{int(seconds * 1000):012x}7000{0x8000000000000000 + number:016x}"


def test_a_locked_record_is_refused(record: Record, path: Path) -> None:
    with pytest.raises(RecordLockedError):
        Record(path)
    record.begin(["a"])
    assert record.evidence("a") == Lost()


def test_closing_releases_the_lock(path: Path) -> None:
    Record(path).close()
    Record(path).close()


def test_a_full_disk_leaves_whole_rows(record: Record, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record.begin(["a"])
    before = path.read_bytes()
    import os

    real = os.write
    monkeypatch.setattr("inference.worker.record_file.os.write", lambda fd, data: real(fd, data[: len(data) // 2]))
    with pytest.raises(OSError, match="took"):
        record.finish({"a": DONE})
    monkeypatch.undo()
    assert path.read_bytes() == before
    record.finish({"a": DONE})
    assert record.evidence("a") == DONE
