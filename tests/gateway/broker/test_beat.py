"""Beat sends what is due, and no more than somebody takes."""

from __future__ import annotations

import logging

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from gateway.broker.beat import MOST_WAITING, Scheduler


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


def test_without_a_broker_it_goes_on(scheduler, monkeypatch, caplog, tmp_path):
    def fail(*_, **__):
        raise OperationalError("no broker")

    scheduler.tick()
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING, logger="sluice.jobs"):
        broken.setattr(scheduler.producer.channel, "queue_declare", fail)
        for _ in range(5):
            scheduler.tick()
    assert caplog.text.count("could not be sent") == 1
    scheduler.tick()
    assert len(list(tmp_path.iterdir())) == 2
