"""Beat sends what is due, and no more than somebody takes."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from gateway.broker.beat import MOST_WAITING, Scheduler
from gateway.broker.filesystem import Transport


@pytest.fixture
def scheduler(tmp_path):
    app = Celery("some", set_as_current=False)
    app.conf.update(
        broker_url="localhost",
        broker_transport="gateway.broker.filesystem:Transport",
        broker_transport_options={"folder": str(tmp_path)},
        task_default_queue="q",
        beat_schedule={"due": {"task": "some.task", "schedule": 0}},
    )
    made = Scheduler(app)
    yield made
    made.connection.release()


def test_without_a_worker_the_queue_stays_short(scheduler, tmp_path):
    for _ in range(2 * MOST_WAITING):
        scheduler.tick()
    assert len(list(tmp_path.iterdir())) == MOST_WAITING
    next(tmp_path.iterdir()).unlink()
    scheduler.tick()
    assert len(list(tmp_path.iterdir())) == MOST_WAITING


def test_a_clock_that_is_set_back_stops_nothing(tmp_path, monkeypatch):
    """What ran at a time that is yet to come counts as run now, whichever entry that is."""
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    app = Celery("some", set_as_current=False)
    monkeypatch.setattr(app, "now", lambda: now)
    app.conf.update(
        broker_url="localhost",
        broker_transport="gateway.broker.filesystem:Transport",
        broker_transport_options={"folder": str(tmp_path)},
        task_default_queue="q",
        beat_schedule={name: {"task": name, "schedule": 1} for name in ("first", "second")},
    )
    scheduler = Scheduler(app)

    def run(seconds):
        nonlocal now
        for _ in range(10 * seconds):
            now += timedelta(seconds=0.1)
            for _ in range(3):
                scheduler.tick()
        sent = [json.loads(path.read_text())["headers"]["task"] for path in tmp_path.iterdir()]
        for path in tmp_path.iterdir():
            path.unlink()
        return Counter(sent)

    assert min(run(seconds=5)[name] for name in ("first", "second")) >= 4
    now -= timedelta(hours=1)
    assert min(run(seconds=5)[name] for name in ("first", "second")) >= 4
    scheduler.connection.release()


@pytest.fixture
def heartbeat(monkeypatch, tmp_path_factory):
    """The file that a watched process touches."""
    file = tmp_path_factory.mktemp("watched") / "heartbeat"
    monkeypatch.setenv("SLUICE_HEARTBEAT", str(file))
    return file


def in_a_thread(do):
    thread = threading.Thread(target=do)
    thread.start()
    thread.join()


def test_alone_it_shows_that_it_lives_and_in_a_worker_it_leaves_that_to_the_tasks(scheduler, heartbeat):
    in_a_thread(scheduler.tick)
    assert not heartbeat.exists()
    scheduler.tick()
    assert heartbeat.exists()


def test_waiting_for_a_broker_is_no_hang(scheduler, heartbeat, monkeypatch):
    """The first connection: nobody answers, then somebody does."""
    errors = [OSError("refused"), OSError("refused")]
    establish = Transport.establish_connection

    def answer(transport):
        if errors:
            raise errors.pop()
        return establish(transport)

    monkeypatch.setattr(Transport, "establish_connection", answer)
    monkeypatch.setattr(Transport, "connection_errors", (OSError,))
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _: None)
    in_a_thread(scheduler.tick)
    assert errors == []
    assert heartbeat.exists()


def test_without_a_broker_it_goes_on(scheduler, monkeypatch, caplog, tmp_path):
    def fail(*_, **__):
        raise OperationalError("no broker")

    scheduler.tick()
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING, logger="sluice.jobs"):
        broken.setattr(scheduler.producer.channel, "queue_declare", fail)
        for _ in range(5):
            scheduler.tick()
    assert caplog.text.count("can't be sent") == 1
    scheduler.tick()
    assert len(list(tmp_path.iterdir())) == 2
