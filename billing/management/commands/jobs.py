"""`manage.py jobs`: monthly grants, expiry and rollups in turn, until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

from django.core.management.base import BaseCommand, CommandParser
from django.db import close_old_connections

from billing.services import rollups, sweeps

logger = logging.getLogger("sluice.jobs")

_BACK_OFF_S = 10.0
_LONGEST_WAIT_S = 1.0


@dataclass(slots=True)
class Job:
    """Work in small chunks: `step` does one and returns whether more is due now, else it runs again in `every_s`
    seconds.
    """

    name: str
    step: Callable[[], bool]
    every_s: float
    due_at: float = 0.0


def default_jobs() -> list[Job]:
    """Return the jobs of this process."""
    return [
        sweep_job("monthly_grants", sweeps.monthly_grants(), every_s=30),
        sweep_job("expiry", sweeps.expiry(), every_s=5),
        Job("rollups", lambda: rollups.consume_usage() > 0, every_s=1),
    ]


def sweep_job(name: str, sweep: sweeps.Sweep, *, every_s: float) -> Job:
    """Return the job that runs the sweep's rounds, `every_s` seconds apart."""
    return Job(name, lambda: sweep.turn() > 0 and sweep.is_under_way, every_s=every_s)


class StopSignal:
    """A context in which SIGTERM and SIGINT only set `has_come` and end a `wait` at once; for the main thread."""

    def __init__(self) -> None:
        self.has_come = False
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def __enter__(self) -> Self:
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()

    def wait(self, seconds: float) -> None:
        """Return after `seconds`, or as soon as a signal came."""
        if not self.has_come:
            select.select([self._reader], [], [], seconds)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.has_come = True


class Command(BaseCommand):
    """Runs until SIGTERM or SIGINT, then exits with 0 after the current chunk."""

    help = "Run monthly grants, expiry of grants and usage rollups in turn until SIGTERM."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="do all that is due now, then end")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["once"]:
            for job in self.jobs():
                run_all(job)
            return
        with StopSignal() as stop:
            run_forever(self.jobs(), stop)

    def jobs(self) -> list[Job]:
        """Return the jobs of this process; the gateway's command adds its own."""
        return default_jobs()


def run_all(job: Job) -> None:
    """Do the job's chunks until nothing is due; raises what a chunk raises."""
    while job.step():
        sweeps.rest()


def run_forever(jobs: list[Job], stop: StopSignal) -> None:
    """Do a chunk of every job that is due, in turn, until `stop`; a failing job is logged and tried again later."""
    while not stop.has_come:
        touch_heartbeat()
        for job in jobs:
            if not stop.has_come and job.due_at <= time.monotonic():
                job.due_at = time.monotonic() + _run_chunk(job)
                stop.wait(0.002)  # SQLite's only lock is left free between chunks
        stop.wait(min(max(min(job.due_at for job in jobs) - time.monotonic(), 0), _LONGEST_WAIT_S))


def touch_heartbeat() -> None:
    """Touch the file named by SLUICE_HEARTBEAT, if it is set: the supervisor kills a process that stops doing so."""
    if heartbeat := os.environ.get("SLUICE_HEARTBEAT"):
        Path(heartbeat).touch()


def _run_chunk(job: Job) -> float:
    """Do one chunk and return the seconds until the job's next: 0 while more is due."""
    close_old_connections()
    try:
        return 0.0 if job.step() else job.every_s
    except Exception:
        # The loop survives a database that can't be reached or a bad row: both are logged, since both need people.
        logger.exception("job failed", extra={"job": job.name})
        return _BACK_OFF_S
