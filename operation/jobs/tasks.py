"""The periodic work of this installation: what `manage.py jobs` does, and of which Celery's tasks are made."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from django.conf import settings

from base import clock, storage
from base.heartbeat import touch_heartbeat
from billing import jobs as billing
from billing.jobs import Job, sweep_job
from billing.services.reconciliation import reconcile_if_due
from fleet import adapter_files
from fleet.fetches import Fetches
from gateway.apis.responses.rows import losses
from gateway.batches import files
from gateway.batches.intake import take_in
from gateway.batches.results import finish
from gateway.batches.services import forget_batches
from gateway.runtime.observed import ask_for, note_result, take_asked
from operation.checks.checks import Round, examine
from operation.jobs import alerts
from operation.jobs.purge import purge
from operation.jobs.states import forget_others, noted
from tenancy.services import hooks
from tenancy.services.mail import send_due_mail

logger = logging.getLogger("sluice.jobs")

BOOKS, CHECKS = "billing.reconciliation", "operation.checks"
ALL_BOOKS = "billing.reconciliation.whole"
"""Is done when it is asked for, and noted as `BOOKS`."""
LONGEST_S = 5.0
"""Seconds after which a task leaves the rest to the next one, so that no other waits long for a thread."""
BACK_OFF_S = 10.0
"""Seconds for which a job that failed is left alone in this process."""


def jobs() -> tuple[Job, ...]:
    """Return all periodic work, for one process."""
    return (
        *billing.jobs(),
        Job(BOOKS, _reconcile, every_s=60),
        Job("gateway.mail", send_due_mail, every_s=2),
        Job("gateway.purge", _purge, every_s=60),
        sweep_job("gateway.responses", losses(), every_s=30),
        _files(),
        Job("gateway.adapters", lambda: adapter_files.sweep(clock.now(), limit=20) > 0, every_s=300),
        Job("fleet.fetches", Fetches().step, every_s=1),
        Job("gateway.batch_input", take_in, every_s=1),
        Job("gateway.batch_output", finish, every_s=1),
        Job(CHECKS, Round().turn, every_s=60),
        Job("operation.asked", _asked, every_s=2),
        Job("operation.alerts", alerts.look, every_s=60),
        Job("gateway.hooks", hooks.send_due, every_s=5),
    )


def _purge() -> bool:
    forget_others([job.name for job in JOBS])
    now = clock.now()
    return purge(now) + forget_batches(now, limit=200) > 0


def _files() -> Job:
    removal = files.removal()

    def step() -> bool:
        storage.sweep_drafts()
        return files.hide_expired(clock.now(), limit=20) > 0 or removal.turn() > 0

    return Job("gateway.files", step, every_s=60)


def _reconcile() -> bool:
    reconcile_if_due(timedelta(hours=settings.SLUICE_RECONCILE_HOURS))
    return False


def _asked() -> bool:
    """Do what pages asked for: the books and the checks whole, though they aren't due; of the rest what is due."""
    if name := take_asked():
        noted(BOOKS if name == ALL_BOOKS else name, partial(_do_now, name))
    return bool(name)


def _do_now(name: str) -> bool:
    if name in {BOOKS, ALL_BOOKS}:
        reconcile_if_due(timedelta(0), whole=name == ALL_BOOKS)
    elif name == CHECKS:
        for result in examine():
            touch_heartbeat()
            note_result(result)
    else:
        for job in JOBS:
            if job.name == name and not job.run(seconds=LONGEST_S):
                ask_for(name)  # another thread does it now: once more after that
    return True


def task(job: Job, goes_on: Callable[[], bool]) -> Callable[[], bool]:
    """Return what does the job's next chunks while `goes_on()`, and raises nothing: a job that fails rests for a while.

    Each chunk shows that the process lives. It returns whether it ran, and didn't fail.
    """
    rests_until = 0.0

    def run() -> bool:
        nonlocal rests_until
        if time.monotonic() < rests_until:
            return False
        try:
            noted(job.name, lambda: job.run(seconds=LONGEST_S, goes_on=lives_and_goes_on))
        except Exception:
            # A database that can't be reached and a bad row are both logged, since both need people.
            logger.exception("job failed", extra={"job": job.name})
            rests_until = time.monotonic() + BACK_OFF_S
            return False
        finally:
            touch_heartbeat()
        return True

    def lives_and_goes_on() -> bool:
        touch_heartbeat()
        return goes_on()

    return run


JOBS = jobs()
