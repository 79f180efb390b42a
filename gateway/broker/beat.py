"""Celery's beat, without a file of its own and with a bound."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from celery import beat
from kombu.exceptions import KombuError

from gateway.runtime.heartbeat import touch_heartbeat

logger = logging.getLogger("sluice.jobs")

MOST_WAITING = 100
QUIET_S = 60.0
"""Seconds for which one line tells that there is no broker."""


class Scheduler(beat.Scheduler):  # type: ignore[misc] # celery has no types
    """Sends what is due, but nothing while `MOST_WAITING` messages wait: without a worker the queue stays short.

    It remembers nothing between two runs. Schedules are short, and what is due less often says so by its rows.
    """

    _quiet_until = 0.0

    def tick(self, *args: Any, **options: Any) -> Any:
        """Send what is due and return for how many seconds nothing is."""
        self._forget_the_future()
        return super().tick(*args, **options)

    def _forget_the_future(self) -> None:
        """Let no entry wait for a time that came already: a clock that was set back would stop it for as long."""
        ahead = [entry for entry in self.schedule.values() if entry.last_run_at > entry.default_now()]
        for entry in ahead:
            entry.last_run_at = entry.default_now()
        if ahead:
            self.populate_heap()  # its order is that of the old times

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send the entry's message; without a broker it is left out, and the next one does its work."""
        try:
            queue = self.app.conf.task_default_queue
            if producer.channel.queue_declare(queue=queue).message_count < MOST_WAITING:
                self.apply_async(entry, producer=producer, advance=False)
        except (beat.SchedulingError, KombuError, *self.connection.recoverable_connection_errors) as error:
            self._note_failure(error)
        if threading.current_thread() is threading.main_thread():  # in a worker, its tasks are the sign of life
            touch_heartbeat()

    def _ensure_connected(self) -> Any:
        return self.connection.ensure_connection(self._note_failure)

    def _note_failure(self, error: Exception, interval: float = 0.0) -> None:
        """Say now and then that there is no broker. Waiting for one is no hang."""
        touch_heartbeat()
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + QUIET_S
            logger.warning("periodic tasks can't be sent", extra={"error": str(error)})
