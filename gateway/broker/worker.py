"""Celery's worker with beat inside, as one process without a terminal of its own."""

from __future__ import annotations

import signal
from typing import Any

from celery import beat, bootsteps
from celery.apps import worker
from celery.platforms import EX_OK
from celery.worker import state


class BeatStep(bootsteps.StartStopStep):  # type: ignore[misc] # celery has no types
    """Runs beat as a thread of the worker: Celery's own option `--beat` takes another process, and its memory."""

    requires = ("celery.worker.components:Pool",)

    def create(self, worker: Any) -> Any:
        """Return the thread."""
        return beat.EmbeddedService(worker.app, thread=True, scheduler_cls=worker.app.conf.beat_scheduler)

    def stop(self, worker: Any) -> None:
        """Let beat send nothing more. Nobody waits for the thread, which may be waiting for a broker."""
        self.obj.service.stop()


class Worker(worker.Worker):  # type: ignore[misc] # same
    """Ends after the current chunks at the first signal, silently; the supervisor decides about a second one."""

    def install_platform_tweaks(self, worker: Any) -> None:
        """Receive SIGTERM and SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _stop)


def run(app: Any) -> int:
    """Run until a signal comes; return the exit code."""
    app.steps["worker"].add(BeatStep)
    running = Worker(
        app=app, pool="threads", quiet=True, without_gossip=True, without_mingle=True, without_heartbeat=True
    )
    running.start()
    return running.exitcode or 0


def _stop(*_: Any) -> None:
    state.should_stop = EX_OK
