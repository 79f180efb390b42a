"""Messages as files: whole, taken once, and none lost while they are written."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from queue import Empty

import pytest
from kombu import Connection, Queue
from kombu.transport import filesystem as stock

from gateway.broker import filesystem

QUEUE = "q"


@pytest.fixture
def connect(tmp_path):
    made = []

    def connect():
        made.append(
            Connection("localhost", transport=filesystem.Transport, transport_options={"folder": str(tmp_path)})
        )
        return made[-1].channel()

    yield connect
    for connection in made:
        connection.release()


def waiting(folder):
    return [path.name for path in folder.iterdir()]


@pytest.fixture
def stock_connection(tmp_path):
    """A connection of kombu's own transport."""
    options = {"data_folder_in": str(tmp_path), "data_folder_out": str(tmp_path), "control_folder": str(tmp_path)}
    with Connection("filesystem://", transport_options=options) as connection:
        yield connection


def test_kombus_own_transport_loses_what_is_read_while_it_is_written(stock_connection, monkeypatch, tmp_path):
    """The fault that ours is for: the reader's loop ends with an error that no worker survives, the message is gone."""
    connection, failures = stock_connection, []
    channel = connection.channel()
    consumer = connection.Consumer(Queue(QUEUE), callbacks=[lambda _, message: message.ack()])

    def read_first(payload, dumps=stock.dumps):
        try:
            connection.drain_events(timeout=0.01)
        except Exception as error:  # noqa: BLE001 - looked at below
            failures.append(error)
        return dumps(payload)

    with consumer:
        monkeypatch.setattr(stock, "dumps", read_first)
        channel._put(QUEUE, {"a": 1})
    [failure] = failures
    assert isinstance(failure, ValueError)
    assert not isinstance(failure, connection.connection_errors + connection.channel_errors)  # what a worker survives
    assert [name for name in waiting(tmp_path) if name.endswith(".msg")] == []


@pytest.mark.parametrize("moment", ["half written", "without its name"])
def test_a_message_is_found_only_whole(connect, monkeypatch, moment):
    writer, reader = connect(), connect()
    looked = []

    def look():
        with pytest.raises(Empty):
            reader._get(QUEUE)
        looked.append(reader._size(QUEUE))

    def write_halves(path, text, write=Path.write_text):
        write(path, text[:10])
        look()
        return write(path, text)

    def rename_late(path, target, rename=Path.rename):
        look()
        return rename(path, target)

    if moment == "half written":
        monkeypatch.setattr(Path, "write_text", write_halves)
    else:
        monkeypatch.setattr(Path, "rename", rename_late)
    writer._put(QUEUE, {"a": 1})
    assert looked == [0]
    assert reader._get(QUEUE) == {"a": 1}


def test_many_writers_and_readers_lose_none_and_take_each_once(connect):
    writers, readers, each = 4, 3, 150
    taken, is_written = [], threading.Event()

    def write(number, channel):
        for message in range(each):
            channel._put(QUEUE, [number, message])

    def read(channel):
        while True:
            is_last = is_written.is_set()
            try:
                taken.append(tuple(channel._get(QUEUE)))
            except Empty:
                if is_last:
                    return

    reading = [threading.Thread(target=read, args=(connect(),)) for _ in range(readers)]
    writing = [threading.Thread(target=write, args=(number, connect())) for number in range(writers)]
    for thread in (*reading, *writing):
        thread.start()
    for thread in writing:
        thread.join()
    is_written.set()
    for thread in reading:
        thread.join()
    assert sorted(taken) == [(number, message) for number in range(writers) for message in range(each)]


def test_a_message_that_cannot_be_read_is_dropped_and_the_next_comes(connect, tmp_path):
    """A machine that lost power may leave an empty file under a whole one's name."""
    channel = connect()
    channel._put(QUEUE, 1)
    [path] = tmp_path.iterdir()
    path.write_text("")
    channel._put(QUEUE, 2)
    assert channel._get(QUEUE) == 2
    assert waiting(tmp_path) == []


def test_queues_are_apart_and_in_order(connect):
    channel = connect()
    for number in range(3):
        channel._put(QUEUE, number)
    channel._put("other", 9)
    assert [channel._get(QUEUE) for _ in range(3)] == [0, 1, 2]
    assert (channel._size(QUEUE), channel._size("other")) == (0, 1)
    assert (channel._purge("other"), channel._size("other")) == (1, 0)


def test_what_a_killed_writer_left_is_removed_and_what_is_written_now_stays(connect, tmp_path):
    old, new = tmp_path / "1.q.msg.draft", tmp_path / "2.q.msg.draft"
    for draft in (old, new):
        draft.touch()
    an_hour_ago = time.time() - 3600
    os.utime(old, (an_hour_ago, an_hour_ago))
    connect()
    assert waiting(tmp_path) == [new.name]


def test_the_folder_is_its_owners_alone(tmp_path):
    folder = tmp_path / "celery"
    with Connection("localhost", transport=filesystem.Transport, transport_options={"folder": str(folder)}) as link:
        link.channel()
    assert folder.stat().st_mode & 0o077 == 0


def test_a_queue_that_was_emptied_by_removing_its_folder_goes_on(connect, tmp_path):
    """No task was sent any more until its process was started anew, and nothing did that."""
    channel = connect()
    tmp_path.rmdir()
    channel._put(QUEUE, {"body": "1"})
    assert channel._get(QUEUE) == {"body": "1"}
    assert tmp_path.stat().st_mode & 0o777 == 0o700
