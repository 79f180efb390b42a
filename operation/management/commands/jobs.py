"""``manage.py jobs``: the periodic work, in a loop or, with ``--once``, all that is due now."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from base.heartbeat import touch_heartbeat
from gateway.logs import configure_logs
from operation.jobs.loop import FileVersion, Loop
from operation.jobs_lock import JobsLock, JobsLockedError
from operation.schema import database_problem, need_database

NICENESS = 5  # who waits for an answer goes before what nobody waits for

logger = logging.getLogger("sluice.jobs")


class Command(BaseCommand):
    """Run until SIGTERM, then end after the current chunks; with ``--once`` end when nothing is due, and with an error
    where something failed, which is logged and keeps nothing else from being done.
    """

    help = "Run the periodic work (docs/jobs.md)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="do all that is due now, then end: for cron")

    def handle(self, *args: Any, **options: Any) -> None:
        """Begin on a database that can be used; one that goes away later is waited for."""
        touch_heartbeat()
        with _kept_database():
            need_database()
            if not options["once"]:
                os.nice(NICENESS)
                configure_logs()
                _run_until_told()
            elif failed := _failed():
                raise CommandError(f"failed: {', '.join(failed)}")


def _run_until_told() -> None:
    from operation.jobs.tasks import JOBS

    file = FileVersion(settings.DATABASES["default"]["NAME"]) if settings.SLUICE_EMBEDDED else None
    loop = Loop(JOBS, settings.SLUICE_CELERY_CONCURRENCY, file or (lambda: None))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.stop())
    loop.run()


@contextmanager
def _kept_database() -> Iterator[None]:
    """Within it no restore replaces SQLite's database; raise CommandError while one does."""
    if not settings.SLUICE_EMBEDDED:
        yield
        return
    try:
        lock = JobsLock.share(Path(settings.DATABASES["default"]["NAME"]))
    except JobsLockedError as error:
        raise CommandError(str(error)) from error
    except OSError as error:  # no such folder, or not ours
        raise CommandError(database_problem() or str(error)) from error
    try:
        yield
    finally:
        lock.release()


def _failed() -> list[str]:
    """Do all that is due, and return the names of the jobs that failed."""
    from fleet import fetches
    from operation.jobs.states import noted
    from operation.jobs.tasks import JOBS

    failed = []
    for job in JOBS:
        try:
            noted(job.name, job.run)
        except Exception as error:
            if isinstance(error, DatabaseError) and database_problem():
                raise
            logger.exception("job failed", extra={"job": job.name})
            failed.append(job.name)
    fetches.wait()
    return failed
