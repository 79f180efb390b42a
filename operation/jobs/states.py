"""Notes of periodic work, for metrics: when each task succeeded last, and how often it failed since."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from django.db import DatabaseError
from django.db.models import F

from base import clock
from gateway.runtime.models import TaskState

SUCCESS_SECONDS = 60.0
"""Between two notes of one task's success by one process: some tasks run each second."""

logger = logging.getLogger("sluice.jobs")
_noted: dict[str, float] = {}


def noted(name: str, run: Callable[[], bool]) -> None:
    """Run the task `name` and note how it ended, unless `run` returns False: it did nothing. Raise what it raises.

    That a note can't be written fails no task; a success without a note is logged.
    """
    began = time.monotonic()
    try:
        has_run = run()
    except Exception as error:
        _noted.pop(name, None)
        with suppress(DatabaseError):  # very likely the one that the task raises, which says more
            _note_failure(name, f"{type(error).__name__}: {error}"[:300])
        raise
    now = time.monotonic()
    if has_run and now - _noted.get(name, float("-inf")) >= SUCCESS_SECONDS:
        _noted[name] = now
        try:
            _note_success(name, now - began)
        except DatabaseError as error:
            logger.warning("no note of a task: %s", error, extra={"job": name})


def forget_others(names: Collection[str]) -> int:
    """Delete the notes of tasks that are no more among `names` and not asked for; return how many there were."""
    return TaskState.objects.filter(asked_at=None).exclude(name__in=names).delete()[0]


def _note_failure(name: str, error: str) -> None:
    if not TaskState.objects.filter(name=name).update(failures=F("failures") + 1, error=error):
        TaskState.objects.get_or_create(name=name, defaults={"failures": 1, "error": error})


def _note_success(name: str, seconds: float) -> None:
    TaskState.objects.bulk_create(
        [TaskState(name=name, succeeded_at=clock.now(), seconds=seconds)],
        update_conflicts=True,
        unique_fields=["name"],
        update_fields=["succeeded_at", "seconds", "failures", "error"],
    )
