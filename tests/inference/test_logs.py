"""Lines are written by a thread: a reader who stalls stops nobody, and what was dropped is told."""

from __future__ import annotations

import io
import json
import logging
import os
import threading

import pytest

from inference.logs import BackgroundStream, JSONFormatter, request_field


@pytest.fixture
def pipe():
    """A pipe nobody reads from until the test does: its reading end, and a stream to its writing end."""
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    yield reading, stream
    os.close(reading)
    stream.close()


def ignore(count):
    """Tell nobody."""


def read_until(file, text):
    """Read from a descriptor until `text` came; return all."""
    found = b""
    while text not in found:
        found += os.read(file, 1 << 20)
    return found.decode()


def test_a_stalled_reader_stops_nobody_and_is_told_what_is_missing(pipe):
    reading, stream = pipe
    lines = BackgroundStream(stream, lambda count: lines.write(f"dropped {count}\n"), most=200_000)
    given = [f"{number} {'x' * 1000}\n" for number in range(2000)]  # thirty times what a pipe holds
    for line in given:
        lines.write(line)
    assert not lines.drain(0)
    dropped = lines.dropped
    assert 0 < dropped < 2000
    *written, told = read_until(reading, f"dropped {dropped}\n".encode()).splitlines(keepends=True)
    assert written == given[: len(given) - dropped]
    assert told == f"dropped {dropped}\n"
    assert lines.drain()


def test_lines_of_many_threads_arrive_whole(pipe):
    reading, stream = pipe
    lines = BackgroundStream(stream, ignore)
    threads = [
        threading.Thread(target=lambda name=name: [lines.write(f"{name}{number}\n") for number in range(100)])
        for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines.write("end\n")
    written = read_until(reading, b"end\n").splitlines()
    for name in "abcd":
        assert [line for line in written if line[0] == name] == [f"{name}{number}" for number in range(100)]


def test_a_reader_that_has_gone_is_no_error(pipe):
    reading, stream = pipe
    os.dup2(os.open(os.devnull, os.O_RDONLY), reading)  # nothing reads from the pipe any more
    lines = BackgroundStream(stream, ignore)
    lines.write("hello\n")
    assert lines.drain()


def test_a_stream_in_memory_is_written_to():
    stream = io.StringIO()
    lines = BackgroundStream(stream, ignore)
    lines.write("hällo\n")
    assert lines.drain()
    assert stream.getvalue() == "hällo\n"


def test_a_record_becomes_a_line_of_the_schema():
    record = logging.makeLogRecord(
        {"name": "inference.worker", "levelname": "WARNING", "msg": "%s tokens", "args": (3,), "tenant": "t"}
    )
    line = json.loads(JSONFormatter("worker").format(record))
    assert (line["event"], line["level"], line["process"], line["pid"]) == (
        "3 tokens",
        "warning",
        "worker",
        os.getpid(),
    )
    assert (line["logger"], line["tenant"]) == ("inference.worker", "t")


def test_a_request_has_the_same_name_as_at_the_gateway():
    assert request_field("0199c0de5f6a7b8c9d0e1f2a3b4c5d6e") == {"request_id": "0199c0de-5f6a-7b8c-9d0e-1f2a3b4c5d6e"}
    assert request_field("r1") == {"request_id": "r1"}
